"""`penstock replay`: the replay service."""

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from penstock.config import Config, ReplayConfig
from penstock.errors import PenstockError
from penstock.process.disk_watch import DiskWatch
from penstock.process.service import Service
from penstock.replay.admission import Gate
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.scrubbing import Scrub
from penstock.replay.snapshots.taking import Snapshots
from penstock.replay.store.layout import RECORDS_FILE, SEGMENTS_FILE, bytes_of
from penstock.replay.store.ring_store import RingStore
from penstock.replay.store.store_files import held
from penstock.rpc.servicers.replay import ReplayServicer
from penstock.rpc.servicers.snapshots import SnapshotServicer
from penstock.runs.services_file import AddressFile
from penstock.telemetry import metrics
from penstock.telemetry.logs import Logger
from penstock.types.block import Schema
from penstock.types.snapshots import Snapshot


def run(config: Config) -> int:
    """Serves until the service is stopped or, if so configured, until the run is finished.

    Returns the exit code: 0 if the run is finished, else `Service.stop_code`.

    Raises `ConfigurationError` if the store or an address can't be used.
    """
    settings = config.replay
    with Service("replay", config) as service, _held(settings):
        store = _open_store(settings, service.logger)
        _show_snapshots_at_zero()
        buffer = ReplayBuffer(store, Gate(settings.grant_timeout_s, settings.max_actors))
        snapshots = Snapshots(
            buffer,
            Path(settings.snapshots) if settings.snapshots else None,
            kept=settings.snapshots_kept,
            bytes_per_s=int(settings.snapshot_bytes_per_s),
            ended=partial(_note_snapshot, service.logger),
        )
        finished = asyncio.run(_serve(config, service, buffer, snapshots))
        snapshots.stop()
        store.flush()
        return 0 if finished else service.stop_code


async def _serve(config: Config, service: Service, buffer: ReplayBuffer, snapshots: Snapshots) -> bool:
    """Serves, and returns whether the service ended with its run. What is opened last is closed first."""
    settings, loop = config.replay, asyncio.get_running_loop()
    servicer = ReplayServicer(
        buffer,
        max_actors=settings.max_actors,
        staging_bytes=int(settings.staging_bytes),
        advertise=settings.advertise,
        location=service.location,
        more_methods=SnapshotServicer(snapshots).behaviours,
        credentials=service.credentials,
    )
    async with contextlib.AsyncExitStack() as stack:
        await servicer.server.start(
            settings.listen, config.telemetry.ready_file, settings.health_listen, settings.stream_port
        )
        stack.push_async_callback(servicer.server.stop)
        service.check_names(servicer.place.addresses)
        if settings.address_file:
            file = AddressFile(settings.address_file)
            file.write(servicer.place)
            stack.callback(file.remove)
        size = settings.store_size
        service.logger.info("serving", listen=str(servicer.server.address), **{size.setting: size.amount})

        def note_storage(sound: bool) -> None:
            asyncio.run_coroutine_threadsafe(servicer.server.report_storage(sound), loop)

        if settings.folder:
            stack.enter_context(contextlib.closing(DiskWatch(Path(settings.folder), note_storage)))
        scrubbing = Scrub(buffer).run(partial(_note_damage, service.logger))
        tasks = [asyncio.create_task(work) for work in (servicer.tick(), scrubbing)]
        for task in tasks:
            stack.callback(task.cancel)
        # A launcher ends its services itself.
        stops_with_run = settings.stop_with_run and not service.supervised
        await service.serve_until(
            lambda: (stops_with_run and servicer.run_finished) or any(task.done() for task in tasks)
        )
        finished = stops_with_run and servicer.run_finished
        if finished:
            service.logger.info("run finished")
        for task in filter(asyncio.Task.done, tasks):
            # Raises the task's error: tasks end only by an error.
            task.result()
    return finished


def _held(settings: ReplayConfig) -> contextlib.AbstractContextManager[None]:
    return held(Path(settings.folder), alone=False) if settings.folder else contextlib.nullcontext()


def _open_store(settings: ReplayConfig, logger: Logger) -> RingStore:
    configured = settings.store_size

    def sized(schema: Schema) -> int:
        size = bytes_of(configured, schema)
        logger.info("store sized", configured=str(configured), bytes=size, segment_bytes=schema.segment_bytes)
        metrics.REPLAY_CAPACITY_BYTES.set(size)
        return size

    size: int | Callable[[Schema], int] = sized
    if configured.unit == "bytes":
        size = configured.amount
        metrics.REPLAY_CAPACITY_BYTES.set(size)
    store = RingStore(Path(settings.folder) if settings.folder else None, size)
    if store.schema is not None:
        found = store.recovery
        logger.info("store recovered", segments=found.segments, damaged=found.damaged, torn=found.torn)
        if found.damaged:
            logger.error("dropped damaged segments", file=f"{store.folder}/{SEGMENTS_FILE}", segments=found.damaged)
        if found.repaired:
            logger.warning(
                "repaired records from their other copy", file=f"{store.folder}/{RECORDS_FILE}", copies=found.repaired
            )
        metrics.REPLAY_DAMAGED.inc(found.damaged)
        metrics.REPLAY_TORN.inc(found.torn)
    return store


def _show_snapshots_at_zero() -> None:
    """Creates every series at 0: a query for a series that does not exist yet returns nothing."""
    for name in ("kept", "absent", "damaged"):
        metrics.REPLAY_SNAPSHOT_SEGMENTS.labels(name)
    for kind in ("written", "shared"):
        metrics.REPLAY_SNAPSHOT_BYTES.labels(kind)


def _note_damage(logger: Logger, segments: int) -> None:
    logger.error("dropped damaged segments", segments=segments)
    metrics.REPLAY_DAMAGED.inc(segments)


def _note_snapshot(logger: Logger, outcome: Snapshot | PenstockError) -> None:
    """Logs and counts the outcome of a snapshot. The service continues after a failure, such as a full disk."""
    if isinstance(outcome, PenstockError):
        logger.error("snapshot failed", reason=str(outcome))
        metrics.REPLAY_SNAPSHOT_FAILURES.inc()
        return
    logger.info(
        "snapshot taken",
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
    for name, count in (("kept", outcome.segments), ("absent", outcome.absent), ("damaged", outcome.damaged)):
        metrics.REPLAY_SNAPSHOT_SEGMENTS.labels(name).set(count)
    metrics.REPLAY_SNAPSHOT_BYTES.labels("written").set(outcome.written_bytes)
    metrics.REPLAY_SNAPSHOT_BYTES.labels("shared").set(outcome.shared_bytes)
