"""The runs of this folder: those that `penstock train` put into runs/, and which of them a command means."""

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock.errors import ConfigurationError
from penstock.machine import installation
from penstock.machine.spelling import question, similar
from penstock.runs.folder import RunFolder

RUNS = Path("runs")
"""Folder of the runs whose folder was not chosen."""


def known_runs(root: Path = RUNS) -> list[RunFolder]:
    """Returns the runs below a folder, the newest first: the one that was started or resumed last."""
    started = [(folder.config.stat().st_mtime, folder) for folder in _runs_in(root)]
    return [folder for _, folder in sorted(started, key=lambda each: each[0], reverse=True)]


def newest_run(has: Callable[[RunFolder], bool], what: str) -> tuple[Path, list[Path]]:
    """Returns the newest run that meets the needs of a command, and the newer runs that do not.

    Raises `ConfigurationError`, which names `what` the run `has`, if there is none.
    """
    runs, skipped = known_runs(), list[Path]()
    for folder in runs:
        if has(folder):
            return folder.root, skipped
        skipped.append(folder.root)
    lacking = f"run with {what}" if runs else "run"
    only = f" (the newest, {runs[0].root.name}, ended before that)" if runs else ""
    raise ConfigurationError(
        f"there is no {lacking} in {shlex.quote(str(RUNS.absolute()))}{only}; start one with"
        f" {installation.how_to_start()}, or name the folder of a run"
    )


def run_named(name: str) -> Path:
    """Returns the folder of a run, or the file, with this path or name below runs/.

    Another path that does not exist is returned unchanged. Raises `ConfigurationError` if the name resembles the name
    of a run.
    """
    path = Path(name)
    if path.exists():
        return path
    if (RUNS / name).exists():
        return RUNS / name
    if close := similar(path.name, [run.root.name for run in known_runs()]):
        raise ConfigurationError(f"there is no run {name!r}; {question(str(RUNS / close))}")
    return path


def _runs_in(root: Path) -> Iterator[RunFolder]:
    for path in root.iterdir() if root.is_dir() else ():
        if (folder := RunFolder(path)).config.exists():
            yield folder
