"""`python -m penstock`."""

import os
import sys

# Python puts the current folder first in sys.path, where a file such as grpc.py would shadow the module.
if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:  # noqa: PTH109 - pathlib is not loaded yet
    del sys.path[0]

from penstock.cli.main import main

main()
