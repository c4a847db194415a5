"""`penstock learner`: admits actors, trains, publishes weights and maintains the run's folder."""

import contextlib
import dataclasses
import time
from functools import partial
from pathlib import Path

import torch

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
from penstock.learning.step.devices import payload_memory, prepared_device
from penstock.learning.step.learner import Learner
from penstock.machine.files import restored_after, write_atomically
from penstock.process.service import Service, show_run
from penstock.rpc.clients.batch_source import ReplayBatchSource
from penstock.rpc.clients.sharded_source import ShardedBatchSource, open_batch_source
from penstock.runs.end import RunEnd, read_end
from penstock.runs.folder import RunFolder
from penstock.runs.services_file import replay_peers
from penstock.runs.summary import Summary
from penstock.telemetry import metrics
from penstock.types.replay import Batch
from penstock.types.waits import Awaited

_ACTOR_WAIT_S = 0.05
_FAREWELL_S = 3.0
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
        folder = prepared_folder(config, service.logger)
        if folder is None:
            announce_end(config, service, read_end(RunFolder(Path(str(config.run.dir)))))
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
            leader = _Leader(session, service, services, lead)
            learner = leader.await_actors(device)
            if learner is None:
                return service.stop_code
            copying = _copying(session)
            conclusion = leader.train(learner)
            summary = summary_of(session, conclusion, time.monotonic() - started)
            leader.end(conclusion, summary, copying)
            if conclusion.stopped == "interrupted":
                return service.stop_code
            announce_end(config, service, RunEnd.of_summary(folder, summary))
            service.await_scrape()
            return 0


class _Leader:
    """Rank 0 of a session, whose run is served. Used by the main thread."""

    def __init__(self, session: Session, service: Service, services: RunServices, lead: Lead) -> None:
        self._session, self._service, self._services, self._lead = session, service, services, lead

    def await_actors(self, device: torch.device) -> Learner | None:
        """Waits for the first actor, whose spaces decide the policy, opens the learner, and waits for awaited actors.

        Returns None if the service is stopped.
        """
        session, service, roster = self._session, self._service, self._services.roster
        service.wait_until(self._has_begun, _ACTOR_WAIT_S)
        if roster.schema is None or roster.spec is None:
            return None
        session.statistics.waits("its policy")
        learner = opened_learner(session, roster.spec, device, self._lead, service.logger)
        check_schema(roster.schema, learner.policy, session.config.ppo.burn_in_steps)
        self._lead.open(session.config, roster.schema, learner)
        return learner if service.wait_until(self._all_awaited_are_here, _ACTOR_WAIT_S) else None

    def train(self, learner: Learner) -> Conclusion:
        """Trains until the run is done or the service is stopped."""
        session, services = self._session, self._services
        with (
            showing_errors(self._service),
            restored_after(ConfigurationError, session.folder.config),
            failing_after_a_batch(session.statistics),
            contextlib.closing(BatchFeed(learner.parameters.device)) as feed,
            contextlib.closing(self._batch_source(learner, feed)) as source,
        ):
            if not self._service.supervised:
                _write_settings(session)
            parts = LearnerParts(
                learner=learner,
                feed=feed,
                source=source,
                sink=services.servicer,
                desk=services.servicer,
                snapshots=services.snapshots,
                stopping=self._stopping,
                others=self._lead.link,
                identity=services.roster.identity,
            )
            conclusion = training_run(session, parts).run()
            if conclusion.stopped != "interrupted":
                source.finish()
        progress = dataclasses.asdict(conclusion.progress)
        self._service.logger.info("trained", stopped=conclusion.stopped, batches_by=source.reads, **progress)
        return conclusion

    def end(self, conclusion: Conclusion, summary: Summary, copying: Copying | None) -> None:
        """Writes the summary and last files, tells the services that the run is done if it is, and ends the copies."""
        session, interrupted = self._session, conclusion.stopped == "interrupted"
        folder, writes = session.folder, session.writes
        metrics.LEARNER_RUN_END.labels(conclusion.stopped).set(1)
        writes.write(folder.summary.name, partial(summary.write, folder.summary))
        if not interrupted:
            session.statistics.enters("finished")
            metrics.LEARNER_RUN_FINISHED.set(1)
            self._services.servicer.finish(conclusion.stopped, _FAREWELL_S)
        self._services.roster.dismiss()
        writes.finish(f"the checkpoints are saved in {folder.checkpoints}")
        if copying is not None:
            copying.close(_FAREWELL_COPIES_S if interrupted else _LAST_COPIES_S)

    def _has_begun(self) -> bool:
        self._lead.check()
        return self._services.roster.schema is not None

    def _all_awaited_are_here(self) -> bool:
        """Returns whether train.await_actors are connected to the replay services; shows how many are."""
        self._lead.check()
        awaited = self._session.config.awaited_actors
        # The first actor has joined, and one that is alone needs no others.
        if awaited == 1:
            return True
        found = self._services.watch.connected_actors()
        self._session.statistics.waits(f"{Awaited.ACTORS}: {found} of {awaited} are connected (train.await_actors)")
        return found >= awaited

    def _batch_source(self, learner: Learner, feed: BatchFeed) -> ReplayBatchSource | ShardedBatchSource:
        """Opens the batches of the replay services, which go to the feed and to the other ranks."""
        config, roster, link = self._session.config, self._services.roster, self._lead.link
        assert roster.schema is not None

        def arrived(batch: Batch) -> None:
            feed.arrived(batch)
            if link is not None:
                link.send(batch)

        return open_batch_source(
            self._services.thread,
            replay_peers(config.learner),
            roster.schema,
            prefetch_batches=config.learner.prefetch_batches,
            shard_timeout_s=config.learner.shard_timeout_s,
            largest_window=lambda: max(config.actor.environments, roster.largest_window),
            stopping=self._stopping,
            arrived=arrived,
            memory=payload_memory(learner.parameters.device),
            key=roster.identity.key,
        )

    def _stopping(self) -> bool:
        self._lead.check()
        return self._service.stopping


def _copying(session: Session) -> Copying | None:
    """Begins the copies of the run, if there is a place for them."""
    settings, statistics = session.config.checkpoint, session.statistics
    if settings.copy_to is None:
        return None
    return Copying(settings.copy_to, session.folder, interval_s=settings.copy_interval_s, notice=statistics.notice)


def _write_settings(session: Session) -> None:
    """Writes the settings, as a launcher does. Without them, a run can't be evaluated, plotted or repeated."""
    path = session.folder.config
    session.writes.write(path.name, partial(write_atomically, path, session.config.repeatable().to_toml().encode()))
