"""The run that a command means: the one that is named, or the newest one; and notes about its settings."""

import sys
from pathlib import Path

from penstock.config import read_recorded
from penstock.known_runs import run_named
from penstock.run_folder import RunFolder


def chosen_run(name: str | None) -> Path:
    """Returns the path of a run; None: the newest one, whose folder is printed. Raises as `run_named`."""
    path = run_named(name)
    if name is None:
        # Not on the standard output, which may be parsed.
        print(f"the newest run is {path}", file=sys.stderr)
    return path


def note_removed_settings(folder: RunFolder) -> None:
    """Prints a line about settings of an earlier release that a run records, which the command does not need."""
    if folder.config.exists() and (note := read_recorded(folder.config).removed):
        print(note, file=sys.stderr)
