"""The runs of this folder: those that `penstock train` put into runs/, and which of them a command means."""

import difflib
import shlex
from collections.abc import Iterator
from pathlib import Path

from penstock import installation
from penstock.errors import ConfigurationError
from penstock.run_folder import RunFolder

RUNS = Path("runs")
"""Folder of the runs whose folder was not chosen."""


def known_runs(root: Path = RUNS) -> list[RunFolder]:
    """Returns the runs below a folder, the newest first: the one that was started or resumed last."""
    started = [(folder.config.stat().st_mtime, folder) for folder in _runs_in(root)]
    return [folder for _, folder in sorted(started, key=lambda each: each[0], reverse=True)]


def run_named(name: str | None) -> Path:
    """Returns the folder of a run, or the file, with this path or name below runs/; None: the newest run.

    Another path that does not exist is returned unchanged. Raises `ConfigurationError` if there is no run to choose, or
    the name resembles that of a run.
    """
    if name is None:
        newest = next(iter(known_runs()), None)
        if newest is None:
            raise ConfigurationError(
                f"there is no run in {shlex.quote(str(RUNS.absolute()))}; start one with"
                f" {installation.how_to_start()}, or name the folder of a run"
            )
        return newest.root
    path = Path(name)
    if path.exists():
        return path
    if (RUNS / name).exists():
        return RUNS / name
    close = difflib.get_close_matches(path.name, [run.root.name for run in known_runs()], n=1)
    if close:
        raise ConfigurationError(f"there is no run {name!r}; did you mean {RUNS / close[0]}?")
    return path


def _runs_in(root: Path) -> Iterator[RunFolder]:
    for path in root.iterdir() if root.is_dir() else ():
        if (folder := RunFolder(path)).config.exists():
            yield folder
