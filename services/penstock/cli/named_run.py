"""The run that a command means: the one that is named, or the newest one."""

import sys
from pathlib import Path

from penstock.known_runs import run_named


def chosen_run(name: str | None) -> Path:
    """Returns the path of a run; None: the newest one, whose folder is printed. Raises as `run_named`."""
    path = run_named(name)
    if name is None:
        # Not on the standard output, which may be parsed.
        print(f"the newest run is {path}", file=sys.stderr)
    return path
