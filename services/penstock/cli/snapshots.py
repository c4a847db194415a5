"""`penstock replay snapshot` and `penstock replay snapshots`: of replay services that run, taken and listed."""

import json
import shlex
import time
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
from penstock.rpc.loop import LoopThread
from penstock.rpc.snapshot_client import SnapshotClient
from penstock.run_folder import RunFolder
from penstock.types import Snapshot, SnapshotProgress

_PIPE_WIDTH = 160
TAKE, LIST = "snapshot", "snapshots"


def command(name: str, arguments: Sequence[str]) -> int:
    """Runs `penstock replay snapshot [NAME]` or `penstock replay snapshots`; its exit code."""
    told = "Take a snapshot" if name == TAKE else "List the snapshots"
    options = parse(
        f"penstock replay {name}",
        f"{told} of the replay service at replay.listen, or of the run in run.dir.",
        arguments,
        trains=False,
        operand="NAME" if name == TAKE else "",
    )
    run = Path(options.config.run.dir) if options.config.run.dir else None
    addresses = _addresses(options.config, run)
    thread = LoopThread()
    try:
        clients = {service: SnapshotClient(thread, address) for service, address in addresses.items()}
        try:
            return _take(clients, options.operand, run) if name == TAKE else _list(clients)
        finally:
            for client in clients.values():
                client.close()
    finally:
        thread.close()


def _addresses(config: Config, run: Path | None) -> dict[str, str]:
    """host:port of each replay service, by name."""
    if run is None:
        return {"replay": config.replay.listen}
    folder = RunFolder(run)
    if not folder.services.exists():
        raise ConfigurationError(
            f"{folder.root} is no run that is going on, so that no replay service can be found there"
        )
    services = json.loads(folder.services.read_text())
    return {name: str(address) for name, address in services.items() if name.startswith("replay")}


def _take(clients: dict[str, SnapshotClient], name: str, run: Path | None) -> int:
    console = _console()
    # One name for all of them, by which they are restored together.
    name = name or time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    taken = []
    for service, client in clients.items():
        with Progress(
            TextColumn("snapshot of {task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        ) as display:
            taken.append(client.take(name, _Shown(display, service)))
    snapshot = _Sum(taken)
    parts = [
        f"{snapshot.segments:,} segments",
        *([f"{snapshot.absent:,} overwritten before they were copied"] if snapshot.absent else []),
        *([f"{snapshot.damaged:,} left out as damaged"] if snapshot.damaged else []),
        f"{decimal(snapshot.written_bytes)} written, {decimal(snapshot.shared_bytes)} shared",
        f"{snapshot.seconds:.1f} s",
        *([f"of {len(taken)} services"] if len(taken) > 1 else []),
    ]
    root = Path(taken[0].folder).parents[len(taken) > 1]
    console.print(f"snapshot {name}: {', '.join(parts)}, in {root}", markup=False, highlight=False, soft_wrap=True)
    again = f"train --resume {shlex.quote(str(run))}" if run else "replay --replay.folder NEW"
    elsewhere = "" if run else f" --replay.snapshot-folder {shlex.quote(str(root))}"
    console.print(
        f"restore it with: penstock {again} --replay.restore {name}{elsewhere}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    return 0


class _Shown:
    """A snapshot's bar in a display."""

    def __init__(self, display: Progress, service: str) -> None:
        self._display, self._task = display, display.add_task(service, total=None)

    def __call__(self, progress: SnapshotProgress) -> None:
        """Shows how far it is."""
        self._display.update(self._task, completed=progress.bytes, total=progress.total_bytes or None)


class _Sum:
    """Snapshots of one name of several services, added up."""

    def __init__(self, snapshots: Sequence[Snapshot]) -> None:
        self.services = len(snapshots)
        self.taken_unix_s = max(each.taken_unix_s for each in snapshots)
        self.segments = sum(each.segments for each in snapshots)
        self.absent = sum(each.absent for each in snapshots)
        self.damaged = sum(each.damaged for each in snapshots)
        self.written_bytes = sum(each.written_bytes for each in snapshots)
        self.shared_bytes = sum(each.shared_bytes for each in snapshots)
        self.seconds = sum(each.seconds for each in snapshots)


def _list(clients: dict[str, SnapshotClient]) -> int:
    by_name = defaultdict[str, list[Snapshot]](list)
    for client in clients.values():
        for each in client.complete():
            by_name[each.name].append(each)
    sums = {name: _Sum(snapshots) for name, snapshots in by_name.items()}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("snapshot", overflow="fold")
    table.add_column("taken (UTC)", no_wrap=True)
    for header in ("segments", "left out", "written", "shared", *(["services"] if len(clients) > 1 else [])):
        table.add_column(header, justify="right", no_wrap=True)
    for name, total in sorted(sums.items(), key=lambda item: item[1].taken_unix_s):
        taken = datetime.fromtimestamp(total.taken_unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
        counts = [f"{total.segments:,}", f"{total.absent + total.damaged:,}"]
        sizes = [decimal(total.written_bytes), decimal(total.shared_bytes)]
        # One that not all of them have can't be restored.
        services = [f"{total.services} of {len(clients)}"] if len(clients) > 1 else []
        table.add_row(name, taken, *counts, *sizes, *services)
    console = _console()
    console.print(table if table.row_count else "there are no snapshots")
    return 0


def _console() -> Console:
    console = Console()
    # A pipe has no width of its own, and names must stay whole.
    return console if console.is_terminal else Console(width=_PIPE_WIDTH)
