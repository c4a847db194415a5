"""`penstock learner`: admits actors, trains, publishes weights and maintains the run's folder."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from penstock.apps.earlier_session import HOW_TO_BEGIN, changed_settings, log_resumed
from penstock.apps.ranks import device_name, follow, leading, own_place
from penstock.apps.run_summary import summary_of
from penstock.config import Config
from penstock.errors import ConfigurationError, PenstockError, SchemaMismatch, TrainingFailed, exit_code
from penstock.learning.durable import checkpoints
from penstock.learning.durable.copying import Copying
from penstock.learning.durable.progress_log import ProgressLog
from penstock.learning.members.replay_places import ReplayPlaces
from penstock.learning.members.roster import Roster, spread_temperatures
from penstock.learning.members.targets import Targets
from penstock.learning.report.statistics import RunStatistics
from penstock.learning.run.assembly import open_session, opened_learner, training_run
from penstock.learning.run.run_snapshots import RunSnapshots
from penstock.learning.run.session import Lead, LearnerParts, Session
from penstock.learning.run.training import Conclusion
from penstock.learning.step.batches import BatchFeed, check_schema
from penstock.learning.step.devices import payload_memory, prepared_device
from penstock.learning.step.learner import Learner
from penstock.machine.addresses import advertised
from penstock.machine.files import READABLE_FILE, remove_leftovers, restored_after, write_atomically, write_json
from penstock.process.disk_watch import DiskWatch
from penstock.process.service import Service, show_run
from penstock.rpc.clients.replay_watch import ReplayWatch
from penstock.rpc.clients.sharded_source import open_batch_source
from penstock.rpc.clients.snapshots import StoreSnapshots
from penstock.rpc.loop import LoopThread
from penstock.rpc.proofs import public_half
from penstock.rpc.servicers.run import RunServicer
from penstock.rpc.servicers.run_snapshots import RunSnapshotServicer
from penstock.runs import remote_copies
from penstock.runs.end import RunEnd, announce, obstacle, read_end
from penstock.runs.folder import RunFolder
from penstock.runs.services_file import ServicesFile, replay_peers
from penstock.runs.summary import Summary, nothing_left
from penstock.telemetry import metrics
from penstock.telemetry.logs import Logger
from penstock.types.location import Place
from penstock.types.replay import Batch
from penstock.types.spaces import EnvironmentSpec
from penstock.types.waits import Awaited

_ACTOR_WAIT_S = 0.05
_FAREWELL_S = 3.0
_LAST_COPIES_S, _FAREWELL_COPIES_S = 60.0, 10.0
"""Seconds for which the end of a run, or of a process that is stopped, waits for its last copies."""


class _Serving(NamedTuple):
    """What serves the run: its thread, its answers, its snapshots, and the places of its replay services."""

    thread: LoopThread
    servicer: RunServicer
    snapshots: RunSnapshots
    places: ReplayPlaces


def run(config: Config) -> int:
    """Trains until the run is done or the service is stopped.

    Returns the exit code: 0 if the run is done, else `Service.stop_code`.

    Raises `ConfigurationError` if a folder, checkpoint, address or device can't be used, or the replay service refuses
    the plan, `TrainingFailed` for the same after a batch was trained, and `RankLost` if another rank ends early.
    """
    started, place = time.monotonic(), own_place()
    if place.rank:
        return follow(config, place)
    with (
        Service("learner", config) as service,
        _announcing_faults(config, service),
        leading(config, place, lambda: service.stopping) as lead,
    ):
        folder = _prepared_folder(config, service.logger)
        if folder is None:
            _announce(config, service, read_end(RunFolder(Path(str(config.run.dir)))))
            return 0
        show_run(folder.root.name, config.environment.short_name)
        device = prepared_device(config.learner, *device_name(config, place), ranks=lead.ranks)
        session = _opened_session(config, folder, service)
        roster = _roster_of(session)
        with (
            _listed_for_prometheus(session, service) as targets,
            _serving(session, roster, targets, service) as serving,
            _seen_by_others(session, service, serving, targets) as watch,
        ):
            service.logger.info(
                "serving",
                listen=str(serving.servicer.server.address),
                device=str(device),
                execution=config.learner.execution,
                precision=config.learner.precision,
                ranks=place.count,
                resumed_from=str(path) if (path := session.recovered.path) else None,
            )

            def opened(spec: EnvironmentSpec) -> Learner:
                return opened_learner(session, spec, device, lead, service.logger)

            learner = _awaited_learner(session, service, roster, watch, lead, opened)
            if learner is None:
                return service.stop_code
            copying = _copying(session)
            conclusion = _train(session, service, serving, roster, learner, lead)
            summary = summary_of(session, conclusion, time.monotonic() - started)
            _end(session, conclusion, summary, serving, roster, copying)
            if conclusion.stopped == "interrupted":
                return service.stop_code
            _announce(config, service, RunEnd.of_summary(folder, summary))
            service.await_scrape()
            return 0


def _awaited_learner(
    session: Session,
    service: Service,
    roster: Roster,
    watch: ReplayWatch,
    lead: Lead,
    opened: Callable[[EnvironmentSpec], Learner],
) -> Learner | None:
    """Waits for the first actor, whose spaces decide the policy, opens the learner, and waits for the awaited actors.

    Returns None if the service is stopped.
    """
    service.wait_until(partial(_has_begun, roster, lead), _ACTOR_WAIT_S)
    if roster.schema is None or roster.spec is None:
        return None
    session.statistics.waits("its policy")
    learner = opened(roster.spec)
    check_schema(roster.schema, learner.policy, session.config.ppo.burn_in_steps)
    lead.open(session.config, roster.schema, learner)
    all_here = service.wait_until(partial(_all_awaited_are_here, session, watch, lead), _ACTOR_WAIT_S)
    return learner if all_here else None


def _opened_session(config: Config, folder: RunFolder, service: Service) -> Session:
    """Opens the run in its folder, at the newest sound checkpoint if there is one, and logs where it resumes."""
    copy_to = config.checkpoint.copy_to
    # A storage that fails for a while must not keep a run from its continuation.
    if copy_to is not None and not service.supervised and folder.newest_checkpoint_steps() is None:
        remote_copies.check(copy_to)
    session = open_session(config, folder, checkpoints.recover(folder, config.policy.module))
    if not service.supervised:
        log_resumed(folder, session.recovered, config, service.logger)
        if reason := obstacle(config.run.on_end):
            service.logger.warning("the end would not be announced", reason=reason)
    return session


def _end(
    session: Session,
    conclusion: Conclusion,
    summary: Summary,
    serving: _Serving,
    roster: Roster,
    copying: Copying | None,
) -> None:
    """Writes the summary and last files, tells the services that the run is done if it is, and ends the copies."""
    folder, interrupted = session.folder, conclusion.stopped == "interrupted"
    metrics.LEARNER_RUN_END.labels(conclusion.stopped).set(1)
    session.writes.write(folder.summary.name, partial(summary.write, folder.summary))
    if not interrupted:
        session.statistics.enters("finished")
        metrics.LEARNER_RUN_FINISHED.set(1)
        serving.servicer.finish(conclusion.stopped, _FAREWELL_S)
    roster.dismiss()
    session.writes.finish(f"the checkpoints are saved in {folder.checkpoints}")
    if copying is not None:
        copying.close(_FAREWELL_COPIES_S if interrupted else _LAST_COPIES_S)


def _copying(session: Session) -> Copying | None:
    """Begins the copies of the run, if there is a place for them."""
    settings, statistics = session.config.checkpoint, session.statistics
    if settings.copy_to is None:
        return None
    return Copying(settings.copy_to, session.folder, interval_s=settings.copy_interval_s, notice=statistics.notice)


def _announce(config: Config, service: Service, end: RunEnd | None) -> None:
    """Tells whom `run.on_end` names of the run's end, unless a launcher does."""
    if service.supervised or end is None:
        return
    if failure := announce(config.run.on_end, end):
        service.logger.warning("end of the run not sent", reason=failure)


@contextlib.contextmanager
def _announcing_faults(config: Config, service: Service) -> Iterator[None]:
    """Announces an error that ends the context as the end of the run."""
    try:
        yield
    except Exception as error:
        folder = RunFolder(Path(config.run.dir or "."))
        _announce(config, service, RunEnd.of_fault(folder, error, exit_code(error), config.environment.short_name))
        raise


def _prepared_folder(config: Config, logger: Logger) -> RunFolder | None:
    """Returns the run's folder without leftovers of earlier processes; None if the run is complete."""
    if config.run.dir is None:
        raise ConfigurationError("the learner needs a folder for the run; name one with --run-dir")
    folder = RunFolder(Path(config.run.dir))
    if reason := nothing_left(folder.summary, config.run):
        # The learner was killed after the run's end, or started again: the results must not be replaced.
        changes = changed_settings(folder.config, config)
        metrics.LEARNER_RUN_FINISHED.set(1)
        logger.warning("run already finished", reason=reason, unused_settings=changes, hint=HOW_TO_BEGIN)
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
def _listed_for_prometheus(session: Session, service: Service) -> Iterator[Targets]:
    """Lists the metrics addresses of the run's services in its folder inside the context."""
    file = session.folder.targets
    targets = Targets(
        # Prometheus may be another user's.
        lambda content: session.writes.write(file.name, partial(write_json, file, content, READABLE_FILE)),
        service.location,
    )
    try:
        yield targets
    finally:
        targets.close()
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)


@contextlib.contextmanager
def _serving(session: Session, roster: Roster, targets: Targets, service: Service) -> Iterator[_Serving]:
    """Serves actors, evaluators and status requests inside the context."""
    settings, thread = session.config.learner, LoopThread(service.credentials)
    places = ReplayPlaces(settings.replay_addresses, on_one_host=service.supervised)
    desk = StoreSnapshots(thread, replay_peers(settings), roster.identity.key)
    snapshots = RunSnapshots(desk, session.statistics, interval_s=session.config.checkpoint.snapshot_interval_s)
    servicer = RunServicer(
        thread,
        roster,
        session.statistics,
        targets,
        places,
        max_actors=settings.max_actors,
        more_methods=RunSnapshotServicer(
            snapshots, b"" if service.credentials else public_half(roster.identity.key)
        ).behaviours,
    )
    ready_file = session.config.telemetry.ready_file
    thread.run(servicer.server.start(settings.listen, ready_file, settings.health_listen))
    disk_watch = DiskWatch(session.folder.root, lambda sound: thread.run(servicer.server.report_storage(sound)))
    try:
        yield _Serving(thread, servicer, snapshots, places)
    finally:
        disk_watch.close()
        thread.run(servicer.server.stop())
        desk.close()
        thread.close()


def _has_begun(roster: Roster, lead: Lead) -> bool:
    lead.check()
    return roster.schema is not None


def _all_awaited_are_here(session: Session, watch: ReplayWatch, lead: Lead) -> bool:
    """Returns whether train.await_actors are connected to the replay services; shows how many are."""
    lead.check()
    awaited = session.config.awaited_actors
    # The first actor has joined, and one that is alone needs no others.
    if awaited == 1:
        return True
    found = watch.connected_actors()
    session.statistics.waits(f"{Awaited.ACTORS}: {found} of {awaited} are connected (train.await_actors)")
    return found >= awaited


def _train(
    session: Session, service: Service, serving: _Serving, roster: Roster, learner: Learner, lead: Lead
) -> Conclusion:
    """Trains until the run is done or the service is stopped."""
    config, servicer = session.config, serving.servicer
    assert roster.schema is not None

    def largest_window() -> int:
        return max(config.actor.environments, roster.largest_window)

    def stopping() -> bool:
        lead.check()
        return service.stopping

    def arrived(batch: Batch) -> None:
        feed.arrived(batch)
        if lead.link is not None:
            lead.link.send(batch)

    with (
        _showing_an_error(service),
        restored_after(ConfigurationError, session.folder.config),
        _failing_after_a_batch(session.statistics),
        contextlib.closing(BatchFeed(learner.parameters.device)) as feed,
        contextlib.closing(
            open_batch_source(
                serving.thread,
                replay_peers(config.learner),
                roster.schema,
                prefetch_batches=config.learner.prefetch_batches,
                shard_timeout_s=config.learner.shard_timeout_s,
                largest_window=largest_window,
                stopping=stopping,
                arrived=arrived,
                memory=payload_memory(learner.parameters.device),
                key=roster.identity.key,
            )
        ) as source,
    ):
        if not service.supervised:
            _write_settings(session)
        parts = LearnerParts(
            learner=learner,
            feed=feed,
            source=source,
            sink=servicer,
            desk=servicer,
            snapshots=serving.snapshots,
            stopping=stopping,
            others=lead.link,
            identity=roster.identity,
        )
        conclusion = training_run(session, parts).run()
        if conclusion.stopped != "interrupted":
            source.finish()
    progress = dataclasses.asdict(conclusion.progress)
    service.logger.info("trained", stopped=conclusion.stopped, batches_by=source.reads, **progress)
    return conclusion


@contextlib.contextmanager
def _seen_by_others(session: Session, service: Service, serving: _Serving, targets: Targets) -> Iterator[ReplayWatch]:
    """Learns where the replay services are inside the context, and lists their metrics. Yields their watch.

    Unless a launcher does, it also logs progress, and lists the services' addresses in the run's folder.
    """
    servicer, places, writes = serving.servicer, serving.places, session.writes
    settings = session.config.learner
    own = Place(advertised(servicer.server.address, settings.advertise), servicer.identity)
    service.check_names(own.addresses)
    file = ServicesFile(session.folder, own, places, certified=service.credentials is not None)

    def note_places() -> None:
        if not service.supervised:
            writes.write(session.folder.services.name, file.write)
        if places.isolated and not servicer.server.address.is_local:
            session.statistics.notice(
                f"the replay service at {places.isolated} can be reached from its own host only, so actors on other"
                " hosts can't send to it; set its replay.listen to 0.0.0.0:7431, or replay.advertise"
            )

    note_places()
    watch = ReplayWatch(serving.thread, replay_peers(settings), places, note_places, partial(targets.put, "replay"))
    with contextlib.ExitStack() as stay:
        if not service.supervised:
            stay.callback(file.remove)
            stay.enter_context(contextlib.closing(ProgressLog(session.statistics.status, service.logger)))
        stay.enter_context(contextlib.closing(watch))
        yield watch


@contextlib.contextmanager
def _showing_an_error(service: Service) -> Iterator[None]:
    """Shows an error that ends the context in the metrics, until Prometheus has read them."""
    try:
        yield
    except PenstockError:
        metrics.LEARNER_RUN_END.labels("error").set(1)
        service.await_scrape()
        raise


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
