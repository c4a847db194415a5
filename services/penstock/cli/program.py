"""Commands for the user to copy, as they would be given here."""

import os
import shlex
import shutil
import sys
from pathlib import Path


def program() -> str:
    """How the user would call us from where they are: `make` needs no virtual environment on the path."""
    if shutil.which("penstock"):
        return "penstock"
    given = sys.argv[0]
    return min(given, os.path.relpath(given), key=len) if Path(given).name == "penstock" else "python -m penstock"


def how_to_resume(run_dir: str) -> str:
    """The command that goes on with a run, to be copied: print it neither folded nor as markup."""
    return f"{program()} train --resume {shlex.quote(run_dir)}"
