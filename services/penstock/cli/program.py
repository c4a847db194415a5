"""Commands for the user to copy, in the form that works on this machine."""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from penstock.machine import installation

TRUST_CODE = " --trust-code"
"""Option of commands that read a run, after which they import the code that the run names."""


def program() -> str:
    """Returns the command that starts Penstock from here; with `make`, the virtual environment is not on the path."""
    if shutil.which("penstock"):
        return "penstock"
    given = sys.argv[0]
    return min(given, os.path.relpath(given), key=len) if Path(given).name == "penstock" else "python -m penstock"


def how_to_resume(run_dir: str, *, names_code: bool = False, settings: Mapping[str, str] | None = None) -> str:
    """Returns how to resume a run, by a command. Print it unfolded and without markup, so that it can be copied.

    `names_code` is whether the run names code that the user trusts, which a command imports only if told to.
    `settings`, as section.key, are changed.
    """
    command = f"{program()} train --resume {shlex.quote(run_dir)}{TRUST_CODE if names_code else ''}"
    return installation.how_to_resume(command, run_dir, settings)
