"""`penstock replay snapshot` and `penstock replay snapshots`: take and list snapshots of an active run."""

import json
import shlex
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from penstock.cli.options import parse
from penstock.config import Config
from penstock.errors import ConfigurationError
from penstock.rpc.clients.snapshots import RunSnapshotClient, SnapshotClient
from penstock.rpc.loop import LoopThread
from penstock.run_folder import RunFolder
from penstock.types.snapshots import RunSnapshot, Snapshot, SnapshotProgress

_PIPE_WIDTH = 160
TAKE = "snapshot"


def command(name: str, arguments: Sequence[str]) -> int:
    """Runs `penstock replay snapshot [NAME]` or `penstock replay snapshots`; returns its exit code."""
    description = (
        "Take a snapshot of the run in run.dir, or of the learner at evaluation.learner-address: its policy and its"
        " whole store."
        if name == TAKE
        else "List the snapshots of the run in run.dir, or of the replay services at learner.replay-addresses."
    )
    options = parse(
        f"penstock replay {name}", description, arguments, trains=False, operand="NAME" if name == TAKE else ""
    )
    run = Path(options.config.run.dir) if options.config.run.dir else None
    thread = LoopThread()
    try:
        if name == TAKE:
            return _take(thread, _learner_address(options.config, run), name=options.operand, run=run)
        return _list(thread, _replay_addresses(options.config, run))
    finally:
        thread.close()


def _learner_address(config: Config, run: Path | None) -> str:
    return config.evaluation.learner_address if run is None else _services(run)["learner"]


def _replay_addresses(config: Config, run: Path | None) -> list[str]:
    if run is None:
        return list(config.learner.replay_addresses)
    return [address for name, address in _services(run).items() if name.startswith("replay")]


def _services(run: Path) -> dict[str, str]:
    """Returns the address (host:port) of each service of a run, by name."""
    folder = RunFolder(run)
    if not folder.services.exists():
        raise ConfigurationError(f"no run is active in {folder.root}, so its services can't be found; resume it first")
    return {name: str(address) for name, address in json.loads(folder.services.read_text()).items()}


def _take(thread: LoopThread, learner: str, *, name: str, run: Path | None) -> int:
    console = _console()
    client = RunSnapshotClient(thread, learner)
    try:
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        ) as display:
            taken = client.take(name, _Shown(display))
    finally:
        client.close()
    for line in _lines(taken, run):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return 0


def _lines(taken: RunSnapshot, run: Path | None) -> list[str]:
    stores = _Sum(taken.stores)
    parts = [
        f"version {taken.version:,}",
        f"{taken.env_steps:,} steps",
        f"{stores.segments:,} segments",
        *([f"{stores.absent:,} overwritten before they were copied"] if stores.absent else []),
        *([f"{stores.damaged:,} left out as damaged"] if stores.damaged else []),
        f"{decimal(stores.written_bytes)} written, {decimal(stores.shared_bytes)} shared",
        f"{stores.seconds:.1f} s",
        *([f"from {stores.services} services"] if stores.services > 1 else []),
    ]
    root = Path(taken.stores[0].folder).parents[stores.services > 1]
    place = shlex.quote(str(run)) if run else f"RUN --replay.snapshot-folder {shlex.quote(str(root))}"
    return [
        f"snapshot {taken.name}: {', '.join(parts)}, in {root}",
        f"create a run from it with: penstock replay restore {taken.name} --run-dir {place} --into NEW",
    ]


class _Shown:
    """The progress bar of a snapshot."""

    def __init__(self, display: Progress) -> None:
        self._display, self._task = display, display.add_task("snapshot", total=None)

    def __call__(self, progress: SnapshotProgress) -> None:
        """Shows the progress of the snapshot."""
        self._display.update(self._task, completed=progress.bytes, total=progress.total_bytes or None)


class _Sum:
    """The totals of the snapshots that several services have under one name."""

    def __init__(self, snapshots: Sequence[Snapshot]) -> None:
        self.services = len(snapshots)
        self.version = snapshots[0].version
        self.taken_unix_s = max(each.taken_unix_s for each in snapshots)
        self.segments = sum(each.segments for each in snapshots)
        self.absent = sum(each.absent for each in snapshots)
        self.damaged = sum(each.damaged for each in snapshots)
        self.written_bytes = sum(each.written_bytes for each in snapshots)
        self.shared_bytes = sum(each.shared_bytes for each in snapshots)
        # The services take their snapshots in parallel.
        self.seconds = max(each.seconds for each in snapshots)


def _list(thread: LoopThread, addresses: Sequence[str]) -> int:
    by_name = defaultdict[str, list[Snapshot]](list)
    for address in addresses:
        client = SnapshotClient(thread, address)
        try:
            for each in client.complete():
                by_name[each.name].append(each)
        finally:
            client.close()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("snapshot", overflow="fold")
    table.add_column("taken (UTC)", no_wrap=True)
    headers = ("version", "segments", "left out", "written", "shared", *(["services"] if len(addresses) > 1 else []))
    for header in headers:
        table.add_column(header, justify="right", no_wrap=True)
    for name, total in {name: _Sum(snapshots) for name, snapshots in by_name.items()}.items():
        taken = datetime.fromtimestamp(total.taken_unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
        counts = [f"{total.version:,}", f"{total.segments:,}", f"{total.absent + total.damaged:,}"]
        sizes = [decimal(total.written_bytes), decimal(total.shared_bytes)]
        # A snapshot that is missing on some services can't be restored.
        services = [f"{total.services} of {len(addresses)}"] if len(addresses) > 1 else []
        table.add_row(name, taken, *counts, *sizes, *services)
    console = _console()
    console.print(table if table.row_count else "no snapshots")
    return 0


def _console() -> Console:
    console = Console()
    # A pipe has no width, and names must not be cut.
    return console if console.is_terminal else Console(width=_PIPE_WIDTH)
