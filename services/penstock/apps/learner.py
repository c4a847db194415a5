"""`penstock learner`: admits actors, trains, publishes weights and maintains the run's folder."""

import contextlib
import dataclasses
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from penstock.apps.earlier_session import opened_session, prepared_folder
from penstock.apps.learner_services import RunServices, serving
from penstock.apps.ranks import device_name, follow, leading, own_place
from penstock.apps.session_end import announce_end, announcing_faults, failing_after_a_batch, showing_errors, summary_of
from penstock.config import Config
from penstock.errors import ConfigurationError
from penstock.learning.durable.copying import Copying
from penstock.learning.run.assembly import opened_learner, training_run
from penstock.learning.run.session import Lead, LearnerParts, Session
from penstock.learning.run.training import Conclusion
from penstock.learning.step.batches import BatchFeed, check_schema
from penstock.learning.step.demonstrations import DemonstratedSegments
from penstock.learning.step.devices import payload_memory, prepared_device
from penstock.learning.step.learner import Learner
from penstock.machine.files import restored_after, write_atomically
from penstock.process.service import Service, show_run
from penstock.rpc.clients.batch_source import ReplayBatchSource
from penstock.rpc.clients.sharded_source import ShardedBatchSource, open_batch_source
from penstock.runs import demonstration_file
from penstock.runs.end import RunEnd
from penstock.runs.services_file import replay_peers
from penstock.runs.summary import Summary
from penstock.telemetry import metrics
from penstock.types.replay import Batch
from penstock.types.spaces import EnvironmentSpec
from penstock.types.waits import Awaited

_ACTOR_WAIT_S, _FAREWELL_S = 0.05, 3.0
_LAST_COPIES_S, _FAREWELL_COPIES_S = 60.0, 10.0
"""Seconds for which the end of a run, or of a process that is stopped, waits for its last copies."""


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
        announcing_faults(config, service),
        leading(config, place, lambda: service.stopping) as lead,
    ):
        folder = prepared_folder(config, service)
        if folder is None:
            return 0
        show_run(folder.root.name, config.environment.short_name)
        device = prepared_device(config.learner, *device_name(config, place), ranks=lead.ranks)
        session = opened_session(config, folder, service)
        with serving(session, service) as services:
            service.logger.info(
                "serving",
                listen=str(services.servicer.server.address),
                device=str(device),
                execution=config.learner.execution,
                precision=config.learner.precision,
                ranks=place.count,
                resumed_from=str(path) if (path := session.recovered.path) else None,
            )
            own = _Leading(session, service, services, lead)
            opened = partial(opened_learner, session, device=device, lead=lead, logger=service.logger)
            learner = _awaited_learner(own, opened)
            if learner is None:
                return service.stop_code
            copying = _copying(session)
            conclusion = _train(own, learner)
            summary = summary_of(session, conclusion, time.monotonic() - started)
            _end(own, conclusion, summary, copying)
            if conclusion.stopped == "interrupted":
                return service.stop_code
            announce_end(config, service, RunEnd.of_summary(folder, summary))
            service.await_scrape()
            return 0


@dataclasses.dataclass(frozen=True, slots=True)
class _Leading:
    """What rank 0 leads a session with: the session, its process, what serves its run, and the other ranks."""

    session: Session
    service: Service
    services: RunServices
    lead: Lead


def _awaited_learner(own: _Leading, opened: Callable[[EnvironmentSpec], Learner]) -> Learner | None:
    """Waits for the first actor, whose spaces decide the policy, opens the learner, and waits for awaited actors.

    Returns None if the service is stopped.
    """
    session, service, roster = own.session, own.service, own.services.roster
    service.wait_until(partial(_has_begun, own), _ACTOR_WAIT_S)
    if roster.schema is None or roster.spec is None:
        return None
    session.statistics.waits("its policy")
    learner = opened(roster.spec)
    check_schema(roster.schema, learner.policy, session.config.ppo.burn_in_steps)
    own.lead.open(session.config, roster.schema, learner)
    return learner if service.wait_until(partial(_all_awaited_are_here, own), _ACTOR_WAIT_S) else None


def _train(own: _Leading, learner: Learner) -> Conclusion:
    """Trains until the run is done or the service is stopped."""
    session, services = own.session, own.services
    demonstrated = _demonstrated(own, learner)
    with (
        showing_errors(own.service),
        restored_after(ConfigurationError, session.folder.config),
        failing_after_a_batch(session.statistics),
        contextlib.closing(BatchFeed(learner.parameters.device, demonstrated)) as feed,
        contextlib.closing(_batch_source(own, learner, feed)) as source,
    ):
        if not own.service.supervised:
            # As a launcher does: without its settings, a run can't be evaluated, plotted or repeated.
            path, settings = session.folder.config, session.config.repeatable().to_toml()
            session.writes.write(path.name, partial(write_atomically, path, settings.encode()))
        parts = LearnerParts(
            learner=learner,
            feed=feed,
            source=source,
            sink=services.servicer,
            desk=services.servicer,
            snapshots=services.snapshots,
            stopping=partial(_stopping, own),
            others=own.lead.link,
            identity=services.roster.identity,
            population=services.population,
        )
        conclusion = training_run(session, parts).run()
        if conclusion.stopped != "interrupted":
            source.finish()
    progress = dataclasses.asdict(conclusion.progress)
    own.service.logger.info("trained", stopped=conclusion.stopped, batches_by=source.reads, **progress)
    return conclusion


def _end(own: _Leading, conclusion: Conclusion, summary: Summary, copying: Copying | None) -> None:
    """Writes the summary and last files, tells the services that the run is done if it is, and ends the copies."""
    session, interrupted = own.session, conclusion.stopped == "interrupted"
    folder, writes = session.folder, session.writes
    metrics.LEARNER_RUN_END.labels(conclusion.stopped).set(1)
    writes.write(folder.summary.name, partial(summary.write, folder.summary))
    if not interrupted:
        session.statistics.enters("finished")
        metrics.LEARNER_RUN_FINISHED.set(1)
        own.services.servicer.finish(conclusion.stopped, _FAREWELL_S)
    own.services.roster.dismiss()
    writes.finish(f"the checkpoints are saved in {folder.checkpoints}")
    if copying is not None:
        copying.close(_FAREWELL_COPIES_S if interrupted else _LAST_COPIES_S)


def _has_begun(own: _Leading) -> bool:
    own.lead.check()
    return own.services.roster.schema is not None


def _all_awaited_are_here(own: _Leading) -> bool:
    """Returns whether train.await_actors are connected to the replay services; shows how many are."""
    own.lead.check()
    awaited = own.session.config.awaited_actors
    # The first actor has joined, and one that is alone needs no others.
    if awaited == 1:
        return True
    found = own.services.watch.connected_actors()
    own.session.statistics.waits(f"{Awaited.ACTORS}: {found} of {awaited} are connected (train.await_actors)")
    return found >= awaited


def _demonstrated(own: _Leading, learner: Learner) -> DemonstratedSegments | None:
    """Reads the demonstrations that are added to batches; None if there are none. Raises `ConfigurationError`."""
    config, schema = own.session.config, own.services.roster.schema
    if config.sampling.demonstrations is None:
        return None
    if own.lead.link is not None:
        raise ConfigurationError(
            "sampling.demonstrations can't be used with several ranks of the learner; start it without torchrun"
        )
    assert schema is not None
    found = demonstration_file.read(Path(config.sampling.demonstrations))
    segments = DemonstratedSegments.of(found, config.sampling, schema, learner.policy, config.run.seed)
    own.session.statistics.notice(segments.notice)
    return segments


def _batch_source(own: _Leading, learner: Learner, feed: BatchFeed) -> ReplayBatchSource | ShardedBatchSource:
    """Opens the batches of the replay services, which go to the feed and to the other ranks."""
    config, roster, link = own.session.config, own.services.roster, own.lead.link
    assert roster.schema is not None

    def arrived(batch: Batch) -> None:
        feed.arrived(batch)
        if link is not None:
            link.send(batch)

    return open_batch_source(
        own.services.thread,
        replay_peers(config.learner),
        roster.schema,
        prefetch_batches=config.learner.prefetch_batches,
        shard_timeout_s=config.learner.shard_timeout_s,
        largest_window=lambda: max(config.actor.environments, roster.largest_window),
        stopping=partial(_stopping, own),
        arrived=arrived,
        memory=payload_memory(learner.parameters.device),
        key=roster.identity.key,
    )


def _stopping(own: _Leading) -> bool:
    own.lead.check()
    return own.service.stopping


def _copying(session: Session) -> Copying | None:
    """Begins the copies of the run, if there is a place for them."""
    settings, statistics = session.config.checkpoint, session.statistics
    if settings.copy_to is None:
        return None
    return Copying(settings.copy_to, session.folder, interval_s=settings.copy_interval_s, notice=statistics.notice)
