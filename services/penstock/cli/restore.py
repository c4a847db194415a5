"""`penstock replay restore NAME --run-dir RUN --into NEW`: creates a run from a snapshot."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from penstock.cli.one_line_parser import OneLineParser
from penstock.cli.options import parse
from penstock.errors import ConfigurationError
from penstock.presets import NO_PRESET
from penstock.restoring import RestoredRun, restore_run
from penstock.run_folder import RunFolder
from penstock.types.snapshots import SnapshotProgress

_PROG = "penstock replay restore"
_USAGE = f"{_PROG} NAME --run-dir RUN --into NEW"
_DESCRIPTION = (
    "Create a run from the snapshot NAME of the run in --run-dir: its policy, its whole store and the run's settings,"
    " in the new folder --into. The new run continues at the snapshot's version; the old one is not changed. Settings"
    " given here apply to the new run. With --store FOLDER the store is created there, for individually started"
    " services."
)
_PIPE_WIDTH = 160


def command(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    own = OneLineParser(prog=_PROG, add_help=False, allow_abbrev=False)
    own.add_argument("--into", type=Path)
    own.add_argument("--store", type=Path)
    places, others = own.parse_known_args(list(arguments))
    options = parse(_PROG, _DESCRIPTION, others, trains=False, operand="NAME")
    run = options.config.run.dir
    if not options.operand or run is None or places.into is None:
        missing = "the snapshot's name" if not options.operand else "--run-dir" if run is None else "--into"
        raise ConfigurationError(
            f"{missing} is missing; usage: {_USAGE}; `penstock replay snapshots` lists the snapshots"
        )
    settings = RunFolder(Path(run)).config
    if not settings.exists():
        raise ConfigurationError(
            f"{run} is not a run folder, because it has no config.toml; choose one that Penstock created"
        )
    # Settings given here override those of the old run.
    others += [f"--config={settings}", f"--preset={NO_PRESET}"]
    config = parse(_PROG, _DESCRIPTION, others, trains=False, operand="NAME").config
    console = Console()
    # A pipe has no width, and names must not be cut.
    console = console if console.is_terminal else Console(width=_PIPE_WIDTH)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as display:
        restored = restore_run(config, options.operand, into=places.into, stores=places.store, show=_Shown(display))
    for line in _lines(options.operand, restored, into=places.into, store=places.store):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return 0


class _Shown:
    """A progress bar for each store."""

    def __init__(self, display: Progress) -> None:
        self._display = display
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, service: str, progress: SnapshotProgress) -> None:
        """Shows the progress of a store."""
        if service not in self._tasks:
            self._tasks[service] = self._display.add_task(f"store of {service}", total=None)
        self._display.update(self._tasks[service], completed=progress.bytes, total=progress.total_bytes or None)


def _lines(name: str, restored: RestoredRun, *, into: Path, store: Path | None) -> list[str]:
    damaged = sum(each.damaged for each in restored.stores)
    dropped = sum(each.dropped for each in restored.stores)
    parts = [
        f"version {restored.version:,}",
        f"{restored.env_steps:,} steps",
        f"{sum(each.segments for each in restored.stores):,} segments",
        *([f"{damaged:,} left out as damaged"] if damaged else []),
        *([f"the oldest {dropped:,} left out because replay.capacity_bytes is smaller"] if dropped else []),
        *([f"from {len(restored.stores)} services"] if len(restored.stores) > 1 else []),
    ]
    folder = shlex.quote(str(into))
    if store is None:
        onwards = f"penstock train --resume {folder}"
    else:
        onwards = f"start the services with run.dir {folder} and replay.folder {shlex.quote(str(store))}"
    return [f"restored snapshot {name} into {into}: {', '.join(parts)}", f"resume it:  {onwards}"]
