"""`penstock replay snapshot` and `penstock replay snapshots`: take and list snapshots of an active run."""

import contextlib
import dataclasses
import functools
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from penstock.cli.operator import operator_of
from penstock.cli.options import parse
from penstock.config import Config
from penstock.errors import ConfigurationError
from penstock.machine import installation
from penstock.machine.installation import program
from penstock.rpc.clients.connection import Peer
from penstock.rpc.clients.operator import RunSnapshotClient
from penstock.rpc.clients.snapshots import SnapshotClient
from penstock.rpc.loop import LoopThread
from penstock.runs.folder import LEARNER, RunFolder, kept_identity
from penstock.runs.services_file import replay_peers
from penstock.types.location import Place
from penstock.types.snapshots import RunSnapshot, Snapshot, SnapshotProgress

_PIPE_WIDTH = 160


_VOLUMES = "/var/lib/penstock"
"""Folder of the volumes under Docker Compose."""

TAKE = "snapshot"
_SUMMED = ("segments", "absent", "damaged", "written_bytes", "shared_bytes")


def wide_console() -> Console:
    """Returns a console that does not cut names in a pipe, which has no width."""
    console = Console()
    return console if console.is_terminal else Console(width=_PIPE_WIDTH)


@contextlib.contextmanager
def progress_bars(console: Console) -> Iterator[Callable[[str, SnapshotProgress], None]]:
    """Yields a function that shows the progress of a copy, given a label, in one bar per label."""
    columns = "{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as display:

        def show(label: str, progress: SnapshotProgress) -> None:
            if label not in tasks:
                tasks[label] = display.add_task(label, total=None)
            display.update(tasks[label], completed=progress.bytes, total=progress.total_bytes or None)

        yield show


def command(arguments: Sequence[str]) -> int:
    """Runs the command, whose first argument is `snapshot` or `snapshots`; returns its exit code."""
    name, *others = arguments
    description = (
        "Take a snapshot of the run in run.dir, or of the learner at evaluation.learner-address: its policy and its"
        " whole store."
        if name == TAKE
        else "List the snapshots of the run in run.dir, or of the replay services at learner.replay-addresses."
    )
    options = parse(
        f"penstock replay {name}", description, others, trains=False, operand="NAME" if name == TAKE else ""
    )
    run = Path(options.config.run.dir) if options.config.run.dir else None
    credentials = operator_of(None if run is None else RunFolder(run), options.config.security)
    with contextlib.closing(LoopThread(credentials)) as thread:
        if name == TAKE:
            learner = options.config.evaluation.learner_address if run is None else _services(run)[LEARNER]
            return _take(thread, learner, name=options.operand, run=run)
        return _list(thread, _replay_addresses(options.config, run))


def _replay_addresses(config: Config, run: Path | None) -> list[Peer]:
    if run is None:
        return list(replay_peers(config.learner))
    return [place for name, place in _services(run).items() if name.startswith("replay")]


def _services(run: Path) -> dict[str, Place]:
    folder = RunFolder(run)
    if not folder.services.exists():
        raise ConfigurationError(f"no run is active in {folder.root}, so its services can't be found; resume it first")
    return folder.places()


def _take(thread: LoopThread, learner: Peer, *, name: str, run: Path | None) -> int:
    identity = None if run is None else kept_identity(RunFolder(run).identity)
    console, client = wide_console(), RunSnapshotClient(thread, learner, identity.key if identity else b"")
    with contextlib.closing(client), progress_bars(console) as show:
        taken = client.take(name, functools.partial(show, "snapshot"))
    console.print(_describe(taken, run), markup=False, highlight=False, soft_wrap=True)
    return 0


def _describe(taken: RunSnapshot, run: Path | None) -> str:
    total, services = _total(taken.stores), len(taken.stores)
    parts = [
        f"version {taken.version:,}",
        f"{taken.env_steps:,} steps",
        f"{total.segments:,} segments",
        *([f"{total.absent:,} overwritten before they were copied"] if total.absent else []),
        *([f"{total.damaged:,} left out as damaged"] if total.damaged else []),
        f"{decimal(total.written_bytes)} written, {decimal(total.shared_bytes)} shared",
        f"{total.seconds:.1f} s",
        *([f"from {services} services"] if services > 1 else []),
    ]
    root = Path(total.folder).parents[services > 1]
    place = shlex.quote(str(run)) if run else f"RUN --replay.snapshot-folder {shlex.quote(str(root))}"
    how = f"{program()} replay restore {taken.name} --run-dir {place} --into NEW"
    if installation.kind() == "compose":
        # The service restore has the folder of the run, and the volumes in which a new one is made.
        how = f"docker compose run --rm restore {taken.name} --into {_VOLUMES}/runs/NEW --store {_VOLUMES}/replay/NEW"
    return f"snapshot {taken.name}: {', '.join(parts)}, in {root}\ncreate a run from it:  {how}"


def _total(snapshots: Sequence[Snapshot]) -> Snapshot:
    """Returns the sum of the snapshots that several services have under one name."""
    sums = {name: sum(getattr(each, name) for each in snapshots) for name in _SUMMED}
    # The services take their snapshots in parallel.
    latest = {name: max(getattr(each, name) for each in snapshots) for name in ("taken_unix_s", "seconds")}
    return dataclasses.replace(snapshots[0], **sums, **latest)


def _list(thread: LoopThread, peers: Sequence[Peer]) -> int:
    by_name = defaultdict[str, list[Snapshot]](list)
    for peer in peers:
        with contextlib.closing(SnapshotClient(thread, peer)) as client:
            for each in client.complete():
                by_name[each.name].append(each)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("snapshot", overflow="fold")
    table.add_column("taken (UTC)", no_wrap=True)
    # A snapshot that is missing on some services can't be restored.
    several = len(peers) > 1
    for header in ("version", "segments", "left out", "written", "shared", *(["services"] if several else [])):
        table.add_column(header, justify="right", no_wrap=True)
    for name, snapshots in by_name.items():
        total = _total(snapshots)
        taken = datetime.fromtimestamp(total.taken_unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
        counts = [f"{total.version:,}", f"{total.segments:,}", f"{total.absent + total.damaged:,}"]
        sizes = [decimal(total.written_bytes), decimal(total.shared_bytes)]
        services = [f"{len(snapshots)} of {len(peers)}"] if several else []
        table.add_row(name, taken, *counts, *sizes, *services)
    wide_console().print(table if table.row_count else "no snapshots")
    return 0
