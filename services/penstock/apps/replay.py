"""`penstock replay`: the replay service."""

import asyncio
from pathlib import Path

from penstock.apps.disk_watch import DiskWatch
from penstock.apps.service import Service
from penstock.config import Config, ReplayConfig
from penstock.errors import PenstockError
from penstock.replay.admission import Gate
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.layout import RECORDS_FILE, SEGMENTS_FILE
from penstock.replay.ring_store import RingStore
from penstock.replay.scrubbing import Scrub
from penstock.replay.snapshots import Snapshots
from penstock.rpc.replay_servicer import ReplayServicer
from penstock.rpc.snapshot_servicer import SnapshotServicer
from penstock.telemetry import metrics
from penstock.types import Snapshot

_SNAPSHOT_SEGMENTS, _SNAPSHOT_BYTES = ("kept", "absent", "damaged"), ("written", "shared")
"""Label values of the snapshot metrics."""
_STOP_CHECK_S = 0.1
_SCRUB_PAUSE_S = 0.5


def run(config: Config) -> None:
    """Serves until the service is stopped or, if so configured, until the run is finished.

    Raises:
        ConfigurationError: The store or an address can't be used.
    """
    settings = config.replay
    with Service("replay", config.telemetry, listen=settings.listen, metrics_port=settings.metrics_port) as service:
        store = _open_store(settings, service)
        _show_snapshot_metrics()
        buffer = ReplayBuffer(store, Gate(settings.grant_timeout_s, settings.max_actors))
        snapshots = Snapshots(
            store,
            buffer,
            Path(settings.snapshots) if settings.snapshots else None,
            kept=settings.snapshots_kept,
            bytes_per_s=int(settings.snapshot_bytes_per_s),
            ended=lambda outcome: _note_snapshot(outcome, service),
        )
        asyncio.run(_serve(settings, service, buffer, snapshots, Scrub(store, buffer)))
        snapshots.stop()
        buffer.flush()


def _open_store(settings: ReplayConfig, service: Service) -> RingStore:
    metrics.REPLAY_CAPACITY_BYTES.set(int(settings.capacity_bytes))
    store = RingStore(Path(settings.folder) if settings.folder else None, int(settings.capacity_bytes))
    if store.schema is not None:
        found = store.recovery
        service.logger.info("recovered", segments=found.segments, damaged=found.damaged, torn=found.torn)
        if found.damaged:
            service.logger.error(
                "dropped damaged segments", file=f"{store.folder}/{SEGMENTS_FILE}", segments=found.damaged
            )
        if found.repaired:
            service.logger.warning(
                "repaired records from their other copy", file=f"{store.folder}/{RECORDS_FILE}", copies=found.repaired
            )
        metrics.REPLAY_DAMAGED.set(found.damaged)
        metrics.REPLAY_TORN.set(found.torn)
    return store


def _show_snapshot_metrics() -> None:
    """Creates every series at 0: a query for a series that does not exist yet returns nothing."""
    for name in _SNAPSHOT_SEGMENTS:
        metrics.REPLAY_SNAPSHOT_SEGMENTS.labels(name)
    for kind in _SNAPSHOT_BYTES:
        metrics.REPLAY_SNAPSHOT_BYTES.labels(kind)


async def _serve(
    settings: ReplayConfig, service: Service, buffer: ReplayBuffer, snapshots: Snapshots, scrub: Scrub
) -> None:
    servicer = ReplayServicer(
        buffer,
        max_actors=settings.max_actors,
        staging_bytes=int(settings.staging_bytes),
        more_methods=SnapshotServicer(snapshots).behaviours,
    )
    await servicer.server.start(settings.listen)
    service.logger.info("serving", listen=settings.listen, capacity_bytes=int(settings.capacity_bytes))
    loop = asyncio.get_running_loop()

    def tell_storage(sound: bool) -> None:
        asyncio.run_coroutine_threadsafe(servicer.server.tell_storage(sound), loop)

    disk_watch = DiskWatch(Path(settings.folder), tell_storage) if settings.folder else None
    tasks = [asyncio.create_task(servicer.tick()), asyncio.create_task(_scrub(scrub, service))]
    # A launcher ends its services itself.
    stops_with_run = settings.stop_with_run and not service.supervised
    while (
        not service.stopping
        and not (stops_with_run and servicer.run_finished)
        and not any(task.done() for task in tasks)
    ):
        await asyncio.sleep(_STOP_CHECK_S)
    if stops_with_run and servicer.run_finished:
        service.logger.info("the run is finished")
    ended = [task for task in tasks if task.done()]
    for task in tasks:
        task.cancel()
    if disk_watch is not None:
        disk_watch.close()
    await servicer.server.stop()
    for task in ended:
        # Raises the task's error: tasks end only by an error.
        task.result()


async def _scrub(scrub: Scrub, service: Service) -> None:
    while True:
        await asyncio.sleep(_SCRUB_PAUSE_S)
        # On another thread, because pages that are no longer in memory are read from disk.
        damaged = await asyncio.to_thread(scrub.step)
        if damaged:
            service.logger.error("dropped damaged segments", segments=damaged)
            metrics.REPLAY_DAMAGED.inc(damaged)


def _note_snapshot(outcome: Snapshot | PenstockError, service: Service) -> None:
    """Logs and counts the outcome of a snapshot. The service continues after a failure, such as a full disk."""
    if isinstance(outcome, PenstockError):
        service.logger.error("snapshot failed", reason=str(outcome))
        metrics.REPLAY_SNAPSHOT_FAILURES.inc()
        return
    service.logger.info(
        "snapshot",
        snapshot=outcome.name,
        version=outcome.version,
        segments=outcome.segments,
        absent=outcome.absent,
        damaged=outcome.damaged,
        written_bytes=outcome.written_bytes,
        shared_bytes=outcome.shared_bytes,
        seconds=round(outcome.seconds, 3),
    )
    metrics.REPLAY_SNAPSHOTS.inc()
    metrics.REPLAY_SNAPSHOT_TIME.set(outcome.taken_unix_s)
    metrics.REPLAY_SNAPSHOT_SECONDS.set(outcome.seconds)
    counts, sizes = (outcome.segments, outcome.absent, outcome.damaged), (outcome.written_bytes, outcome.shared_bytes)
    for name, count in zip(_SNAPSHOT_SEGMENTS, counts, strict=True):
        metrics.REPLAY_SNAPSHOT_SEGMENTS.labels(name).set(count)
    for kind, size in zip(_SNAPSHOT_BYTES, sizes, strict=True):
        metrics.REPLAY_SNAPSHOT_BYTES.labels(kind).set(size)
