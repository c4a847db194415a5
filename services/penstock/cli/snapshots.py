"""`penstock replay snapshot` and `penstock replay snapshots`: of replay services that run, taken and listed."""

import json
import shlex
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

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
    given = list(arguments)
    chosen = given.pop(0) if name == TAKE and given and not given[0].startswith("-") else ""
    wanted = "[NAME] " if name == TAKE else ""
    told = "Take a snapshot" if name == TAKE else "List the snapshots"
    config = parse(
        f"penstock replay {name} {wanted}".strip(),
        f"{told} of the replay service at replay.listen, or of the run in run.dir.",
        given,
        trains=False,
    ).config
    addresses = _addresses(config)
    thread = LoopThread()
    try:
        clients = {service: SnapshotClient(thread, address) for service, address in addresses.items()}
        try:
            return _take(clients, chosen) if name == TAKE else _list(clients)
        finally:
            for client in clients.values():
                client.close()
    finally:
        thread.close()


def _addresses(config: Config) -> dict[str, str]:
    """host:port of each replay service, by name."""
    if config.run.dir is None:
        return {"replay": config.replay.listen}
    folder = RunFolder(Path(config.run.dir))
    if not folder.services.exists():
        raise ConfigurationError(
            f"{folder.root} is no run that is going on, so that no replay service can be found there"
        )
    services = json.loads(folder.services.read_text())
    return {name: str(address) for name, address in services.items() if name.startswith("replay")}


def _take(clients: dict[str, SnapshotClient], name: str) -> int:
    console = Console()
    if len(clients) > 1:
        # One name for all of them, by which they are restored together.
        name = name or time.strftime("%Y%m%d-%H%M%S", time.gmtime())
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
            snapshot = client.take(name, _Shown(display, service))
        for line in _describe(snapshot):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    return 0


class _Shown:
    """A snapshot's bar in a display."""

    def __init__(self, display: Progress, service: str) -> None:
        self._display, self._task = display, display.add_task(service, total=None)

    def __call__(self, progress: SnapshotProgress) -> None:
        """Shows how far it is."""
        self._display.update(self._task, completed=progress.bytes, total=progress.total_bytes or None)


def _describe(snapshot: Snapshot) -> list[str]:
    """What is in it, and how it is restored."""
    left_out = [
        f"{count:,} {what}"
        for count, what in (
            (snapshot.absent, "overwritten before they were copied"),
            (snapshot.damaged, "left out as damaged"),
        )
        if count
    ]
    size = f"{decimal(snapshot.written_bytes)} written, {decimal(snapshot.shared_bytes)} shared"
    parts = [f"{snapshot.segments:,} segments", *left_out, size, f"{snapshot.seconds:.1f} s", snapshot.folder]
    root = shlex.quote(str(Path(snapshot.folder).parent))
    return [
        f"snapshot {snapshot.name}: {', '.join(parts)}",
        f"restore it with: penstock replay --replay.restore {snapshot.name} --replay.snapshot-folder {root}"
        " --replay.folder NEW",
    ]


def _list(clients: dict[str, SnapshotClient]) -> int:
    table = Table("snapshot", "taken")
    if len(clients) > 1:
        table.add_column("service")
    for name in ("segments", "absent", "damaged", "written", "shared", "seconds"):
        table.add_column(name, justify="right")
    for service, client in clients.items():
        for each in client.complete():
            taken = datetime.fromtimestamp(each.taken_unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
            counts = [f"{count:,}" for count in (each.segments, each.absent, each.damaged)]
            sizes = [decimal(each.written_bytes), decimal(each.shared_bytes), f"{each.seconds:.1f}"]
            table.add_row(each.name, taken, *([service] if len(clients) > 1 else []), *counts, *sizes)
    console = Console()
    if not table.row_count:
        console.print("there are no snapshots")
        return 0
    # A pipe has no width of its own, and names must stay whole.
    console.print(table, width=None if console.is_terminal else _PIPE_WIDTH)
    return 0
