"""The run that a command means: the one that is named, or the newest one; and notes about its settings."""

import sys
from collections.abc import Callable
from pathlib import Path

from penstock.config import read_recorded
from penstock.runs.folder import RunFolder
from penstock.runs.known import newest_run, run_named


def chosen_run(name: str | None, has: Callable[[RunFolder], bool] = lambda folder: True, what: str = "") -> Path:
    """Returns the path of a run; None: the newest one that has what the command needs, which is printed.

    Messages say `what` the run `has`, such as "a checkpoint". Raises as `newest_run` and `run_named`.
    """
    if name is not None:
        return run_named(name)
    path, skipped = newest_run(has, what)
    # Not on the standard output, which may be parsed.
    print(f"the newest run{f' with {what}' if skipped else ''} is {path}", file=sys.stderr)
    if skipped:
        print(f"skipped, without {what}: {', '.join(map(str, skipped))}", file=sys.stderr)
    return path


def note_removed_settings(folder: RunFolder) -> None:
    """Prints a line about settings of an earlier release that a run records, which the command does not need."""
    if folder.config.exists() and (note := read_recorded(folder.config).removed):
        print(note, file=sys.stderr)
