"""`penstock learner`: admits actors, trains, publishes weights and maintains the run's folder."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from penstock.apps.run_summary import summary_of
from penstock.config import Config
from penstock.errors import ConfigurationError, SchemaMismatch, TrainingFailed
from penstock.files import remove_leftovers, restored_after, write_atomically
from penstock.learning import checkpoints, gpu_metrics
from penstock.learning.assembly import learner_of, open_session, training_run
from penstock.learning.batches import BatchFeed
from penstock.learning.devices import check_execution, torch_device, use_threads
from penstock.learning.roster import Roster, spread_temperatures
from penstock.learning.run_snapshots import RunSnapshots
from penstock.learning.session import LearnerParts, Session
from penstock.learning.statistics import RunStatistics
from penstock.learning.training import Conclusion
from penstock.process.disk_watch import DiskWatch
from penstock.process.service import Service
from penstock.rpc.clients.batch_source import ReplayBatchSource
from penstock.rpc.clients.sharded_source import ShardedBatchSource, open_batch_source
from penstock.rpc.clients.snapshots import StoreSnapshots
from penstock.rpc.loop import LoopThread
from penstock.rpc.servicers.run import RunServicer
from penstock.rpc.servicers.run_snapshots import RunSnapshotServicer
from penstock.run_folder import RunFolder
from penstock.summary import nothing_left
from penstock.telemetry.logs import Logger
from penstock.types.block import Schema
from penstock.types.spaces import EnvironmentSpec

_ACTOR_WAIT_S = 0.05
_FAREWELL_S = 3.0


def run(config: Config) -> None:
    """Trains until the run is done or the service is stopped.

    Raises:
        ConfigurationError: A folder, checkpoint, address or device can't be used, or the replay service refuses the
            plan.
        TrainingFailed: The same, after a batch was trained.
    """
    settings, started = config.learner, time.monotonic()
    with Service("learner", config.telemetry, listen=settings.listen, metrics_port=settings.metrics_port) as service:
        folder = _prepared_folder(config, service.logger)
        if folder is None:
            return
        device = torch_device(settings.device)
        check_execution(device, settings.execution)
        if missing := gpu_metrics.show(device):
            service.logger.warning("metrics lack the GPU's utilisation", reason=missing)
        use_threads(settings.threads)
        session = open_session(config, folder, checkpoints.recover(folder))
        roster = _roster_of(session)
        with _serving(session, roster) as (thread, servicer, snapshots):
            service.logger.info(
                "serving",
                listen=settings.listen,
                device=str(device),
                execution=settings.execution,
                precision=settings.precision,
                resumed_from=str(session.recovered.path),
            )
            first = _await_first_actor(service, roster)
            if first is None:
                return
            schema, spec = first
            learner = learner_of(config, spec, device)
            if session.recovered.path is not None:
                checkpoints.restore(learner, session.recovered.path)
            with (
                restored_after(ConfigurationError, folder.config),
                _failing_after_a_batch(session.statistics),
                contextlib.closing(BatchFeed(device)) as feed,
                contextlib.closing(_source_of(session, roster, service, thread, schema, feed)) as source,
            ):
                if not service.supervised:
                    _write_settings(session)
                parts = LearnerParts(
                    learner=learner,
                    feed=feed,
                    source=source,
                    sink=servicer,
                    desk=servicer,
                    snapshots=snapshots,
                    stopping=lambda: service.stopping,
                    largest_window=partial(_largest_window, config, roster),
                )
                conclusion = training_run(session, parts).run()
                if conclusion.stopped != "interrupted":
                    source.finish()
            progress = dataclasses.asdict(conclusion.progress)
            service.logger.info("trained", stopped=conclusion.stopped, batches_by=source.reads, **progress)
            _finish(session, conclusion, servicer, roster, time.monotonic() - started)


def _prepared_folder(config: Config, logger: Logger) -> RunFolder | None:
    """Returns the run's folder without leftovers of earlier processes; None if the run is complete."""
    if config.run.dir is None:
        raise ConfigurationError("the learner needs a folder for the run; name one with --run-dir")
    folder = RunFolder(Path(config.run.dir))
    if reason := nothing_left(folder.summary, config.run):
        # The learner was killed after the run's end, or started again: the results must not be replaced.
        logger.warning("run already finished", reason=reason)
        return None
    folder.create()
    for leftover in [*remove_leftovers(folder.root), *remove_leftovers(folder.checkpoints)]:
        logger.warning("partly written file removed", file=str(leftover))
    return folder


def _roster_of(session: Session) -> Roster:
    config, settings = session.config, session.config.learner
    roster = Roster(
        session.folder.roster,
        seed=config.run.seed,
        replay_addresses=settings.replay_addresses,
        max_actors=settings.max_actors,
        rejoin_timeout_s=settings.rejoin_timeout_s,
        now=time.monotonic(),
        writes=session.writes,
        notice=session.statistics.notice,
        expected=session.recovered.path is not None,
        variants=max(1, len(config.environment.variants)),
        temperatures=spread_temperatures(
            config.actor.lowest_temperature, config.actor.highest_temperature, config.train.least_actors
        ),
    )
    roster.spec = session.recovered.spec
    return roster


@contextlib.contextmanager
def _serving(session: Session, roster: Roster) -> Iterator[tuple[LoopThread, RunServicer, RunSnapshots]]:
    """Serves actors, evaluators and status requests inside the context."""
    settings = session.config.learner
    thread = LoopThread()
    desk = StoreSnapshots(thread, settings.replay_addresses)
    snapshots = RunSnapshots(desk, session.statistics, interval_s=session.config.checkpoint.snapshot_interval_s)
    servicer = RunServicer(
        thread,
        roster,
        session.statistics,
        max_actors=settings.max_actors,
        more_methods=RunSnapshotServicer(snapshots).behaviours,
    )
    thread.run(servicer.server.start(settings.listen))
    disk_watch = DiskWatch(session.folder.root, lambda sound: thread.run(servicer.server.report_storage(sound)))
    try:
        yield thread, servicer, snapshots
    finally:
        disk_watch.close()
        thread.run(servicer.server.stop())
        desk.close()
        thread.close()


def _await_first_actor(service: Service, roster: Roster) -> tuple[Schema, EnvironmentSpec] | None:
    """Waits for the first actor; returns its schema and spaces, so that the learner's machine needs no environment.

    Returns None if the service is stopped first.
    """
    service.wait_until(lambda: roster.schema is not None, _ACTOR_WAIT_S)
    return None if roster.schema is None or roster.spec is None else (roster.schema, roster.spec)


def _source_of(
    session: Session, roster: Roster, service: Service, thread: LoopThread, schema: Schema, feed: BatchFeed
) -> ReplayBatchSource | ShardedBatchSource:
    settings = session.config.learner
    return open_batch_source(
        thread,
        settings.replay_addresses,
        schema,
        prefetch_batches=settings.prefetch_batches,
        shard_timeout_s=settings.shard_timeout_s,
        largest_window=partial(_largest_window, session.config, roster),
        stopping=lambda: service.stopping,
        arrived=feed.arrived,
    )


def _largest_window(config: Config, roster: Roster) -> int:
    return max(config.actor.environments, roster.largest_window)


@contextlib.contextmanager
def _failing_after_a_batch(statistics: RunStatistics) -> Iterator[None]:
    """Turns errors of settings into `TrainingFailed` once a batch was trained.

    The settings were valid then, and the files in the folder belong to the run.
    """
    try:
        yield
    except (ConfigurationError, SchemaMismatch) as error:
        cause = ConfigurationError if statistics.session.last is None else TrainingFailed
        raise cause(str(error)) from error


def _write_settings(session: Session) -> None:
    """Writes the settings, as a launcher does. Without them, a run can't be evaluated, plotted or repeated."""
    path = session.folder.config
    session.writes.write(path.name, partial(write_atomically, path, session.config.repeatable().to_toml().encode()))


def _finish(session: Session, conclusion: Conclusion, servicer: RunServicer, roster: Roster, wall_s: float) -> None:
    """Writes the summary, and announces the end of the run unless it was interrupted."""
    folder, writes = session.folder, session.writes
    writes.write(folder.summary.name, partial(summary_of(session, conclusion, wall_s).write, folder.summary))
    if conclusion.stopped != "interrupted":
        session.statistics.enters("finished")
        servicer.finish(conclusion.stopped, _FAREWELL_S)
    roster.dismiss()
    writes.finish(f"the run is saved in {folder.checkpoints}; free space or make {folder.root} writable")
