"""The run as the learner executes it: batch, train, publish, commit, and periodic tasks.

It accesses services only through Protocols, so that it runs in one process in tests as it does over gRPC.
"""

import contextlib
import dataclasses
import secrets
import shlex
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from penstock.config import Config
from penstock.errors import Diverged, SchemaMismatch, Unavailable
from penstock.learning.durable import checkpoints
from penstock.learning.durable.checkpoint_writer import CheckpointWriter
from penstock.learning.durable.checkpoints import RunProgress
from penstock.learning.durable.records import Record, Records, batch_numbers
from penstock.learning.durable.versions import VersionMark
from penstock.learning.run.collection import CollectionWeights
from penstock.learning.run.degree import AutomaticDegree
from penstock.learning.run.evaluations import Evaluations
from penstock.learning.run.own_callbacks import OwnCallbacks
from penstock.learning.run.publication import Publication
from penstock.learning.run.refusals import Refusals
from penstock.learning.run.session import LearnerParts, Session
from penstock.learning.run.varied_collection import VariedCollection
from penstock.learning.step.learner import TrainingOutcome
from penstock.machine import installation
from penstock.telemetry import logs, metrics
from penstock.types.evaluation import EvaluationSummary
from penstock.types.extents import Extent, Recurrence
from penstock.types.replay import Batch, CommitOutcome, SamplingPlan
from penstock.types.statistics import CoordinatorStatistics
from penstock.types.status import AT_A_LIMIT, Stopped
from penstock.types.waits import Awaited, WaitReason

_BATCH_WAIT_S = 0.5
_JOURNAL_INTERVAL_S = 1.0
_JOURNAL_SHARE = 0.01
"""Largest share of a run between two records, so that a one-second run has a curve."""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """Outcome of a run.

    Attributes:
        stopped: Reason for the end.
        progress: Progress at the end.
        evaluation: Evaluation of the best checkpoint; None if there was none.
        env_steps_per_s: Environment steps per second in this session, from its first environment step.
        samples_per_insert: Uses of segments per segment collected.
        statistics: Statistics of collection and training in this session.
        stop_reason: Reason for which a callback has ended the run; empty if none has.
    """

    stopped: Stopped
    progress: RunProgress
    evaluation: EvaluationSummary | None
    env_steps_per_s: float
    samples_per_insert: float
    statistics: CoordinatorStatistics | None
    stop_reason: str = ""


class TrainingRun:
    """Training of a run until it is complete or stopped. Used by one thread."""

    def __init__(
        self,
        session: Session,
        parts: LearnerParts,
        records: Records,
        evaluations: Evaluations,
        callbacks: OwnCallbacks,
    ) -> None:
        """Prepares a session, which `run` executes."""
        self._callbacks = callbacks
        config, statistics, resumed = session.config, session.statistics, session.recovered.progress
        self._config, self._folder, self._statistics, self._writes = config, session.folder, statistics, session.writes
        self._learner, self._feed, self._source = parts.learner, parts.feed, parts.source
        self._publication = Publication(parts.learner, parts.sink)
        self._checkpoints = CheckpointWriter(
            parts.learner, session.folder, session.writes, keep=config.checkpoint.max_checkpoints
        )
        self._snapshots, self._stopping, self._others = parts.snapshots, parts.stopping, parts.others
        self._identity = parts.identity
        self._records, self._evaluations, self._refusals = records, evaluations, Refusals(config, statistics)
        newest = resumed.version if resumed.env_steps else None
        self._versions = VersionMark(session.folder.versions, newest, notice=statistics.notice)
        self._progress = dataclasses.replace(resumed, version=self._versions.first)
        self._earlier = resumed
        self._saved_threshold = resumed.env_steps_to_threshold
        self._save_due = Recurrence(config.checkpoint.intervals, self._extent)
        self._journal_at = 0.0
        self._journal_due = Recurrence(config.run.limits.share_of(_JOURNAL_SHARE), self._extent)
        self._noted_version = self._progress.version
        self._distributions: dict[str, NDArray[Any]] = {}
        self._noted_totals = statistics.session.totals()
        self._collection: CollectionWeights | VariedCollection = (
            CollectionWeights(config.sampling, config.environment.training_variants, config.evaluation.threshold)
            if parts.population is None
            else VariedCollection(config, parts.population, statistics)
        )
        if config.sampling.curriculum is not None:
            statistics.notice(f"sampling.collection {config.sampling.curriculum} divides collection among the variants")
        self._inserted: int | None = None
        self._degree = AutomaticDegree(config.first_degree) if config.collection.degree is None else None

    def run(self) -> Conclusion:
        """Trains until the run ends and returns its outcome. Saves a checkpoint before it raises an error.

        Raises `Diverged` without saving a checkpoint, or `PenstockError` if training can't continue or the last
        checkpoint can't be written.
        """
        with contextlib.closing(self._checkpoints):
            return self._run()

    def _run(self) -> Conclusion:
        with contextlib.closing(self._publication):
            self._begin()
            self._callbacks.start()
            stopped = self._train()
            self._publication.finish()
        training_s = self._statistics.training_s
        self._statistics.end_training()
        self._note()
        self._save(self._checkpoints.save)
        self._callbacks.end(stopped)
        self._statistics.enters("evaluating")
        evaluation = None
        if stopped != "interrupted" and self._progress.env_steps:
            evaluation = self._evaluations.conclude(self._snapshot(), self._stopping)
            self._save(self._checkpoints.save)
            if evaluation is None and self._stopping():
                stopped = "interrupted"
        self._writes.finish(self._advice())
        self._versions.settle()
        here = self._progress.env_steps - self._earlier.env_steps
        seconds = training_s - self._statistics.earlier_s
        return Conclusion(
            stopped=stopped,
            progress=self._progress,
            evaluation=evaluation,
            env_steps_per_s=here / seconds if seconds > 0.0 else 0.0,
            samples_per_insert=self._samples_per_insert(),
            statistics=self._statistics.session.statistics(),
            stop_reason=self._callbacks.stop_reason,
        )

    def _begin(self) -> None:
        progress = self._progress
        metrics.LEARNER_CHECKPOINT_STEPS.set(progress.env_steps)
        self._versions.use(progress.version)
        self._statistics.begin(version=progress.version, extent=progress.extent)
        self._publish()
        seed, session = self._config.run.seed, secrets.randbits(63) | 1
        plan = plan_of(self._config, session=session, next_batch=progress.version, seed=seed)
        self._plan = dataclasses.replace(
            plan,
            run=self._identity.number,
            actor_key=self._identity.actor_key,
            largest_magnitude=self._config.environment.largest_magnitude,
        )
        self._note_plan()
        self._source.open(self._plan)

    def _train(self) -> Stopped:
        """Trains on batch after batch and returns why it ended."""
        self._snapshots.open()
        try:
            while not (stopped := self._reason_to_stop()):
                batch = self._next_batch()
                if batch is not None:
                    self._train_on(batch)
                self._do_what_is_due()
            return stopped
        except Diverged:
            # Not saved, because the newest checkpoint holds a policy that still learnt.
            raise
        except Exception:
            with contextlib.suppress(Diverged):
                self._save(self._checkpoints.save)
            raise
        finally:
            self._snapshots.close()

    def _reason_to_stop(self) -> Stopped | None:
        run, best = self._config.run, self._evaluations.best_return
        if self._stopping():
            return "interrupted"
        self._statistics.actors.check()
        if reached := run.limits.reached(self._extent):
            return AT_A_LIMIT[reached]
        if run.stop_at_return is not None and best is not None and best >= run.stop_at_return:
            return "stop_at_return"
        return "learner_callback" if self._callbacks.stop_reason else None

    @property
    def _extent(self) -> Extent:
        """Work that the run has done until now."""
        return dataclasses.replace(self._progress, clock_s=self._statistics.clock_s).extent

    def _next_batch(self) -> Batch | None:
        # Read before waiting, because it is None once the batch has arrived.
        reason = self._source.waiting_for
        started = time.monotonic()
        with metrics.exchange_cpu_time("batches"):
            batch = self._source.next(_BATCH_WAIT_S)
        waited_s = time.monotonic() - started
        if batch is None:
            reason = self._source.waiting_for
            self._statistics.waits(reason or "")
        self._statistics.session.waited(reason or WaitReason(Awaited.FRESH_SEGMENTS), waited_s)
        return batch

    def _train_on(self, batch: Batch) -> None:
        if batch.number != self._progress.version:
            # Ages, grants and priorities all rely on batch k being trained at version k.
            raise SchemaMismatch(
                f"received batch {batch.number}, expected batch {self._progress.version}: batch k trains version k; the"
                " replay service serves another learner's session or another version of Penstock"
            )
        share_done = self._config.run.limits.nearest(self._extent).share
        # A batch, and above all the first one, may take long.
        self._statistics.enters("training")
        started = time.perf_counter()
        if self._others is not None:
            self._others.train(batch, share_done)
        outcome = self._learner.train(self._feed.tensors(batch), share_done)
        train_s = time.perf_counter() - started
        self._distributions = {"age": batch.ages, "priority": outcome.priorities}
        self._advance(batch, outcome)
        self._versions.use(self._progress.version)
        # Before the commit, which opens the gate for batches that need this version. On CUDA the version may follow its
        # commit by the time that its encoding takes, which an actor with a grant for it waits.
        if self._progress.version % self._config.sampling.publish_interval == 0:
            self._publish()
        try:
            with metrics.exchange_cpu_time("committing"):
                committed = self._source.commit(batch, outcome.priorities)
            committed.add_done_callback(self._note_commit)
        except Unavailable:
            # The replay service may be stopped together with the learner. The checkpoint must still be saved, and the
            # batch's lease is returned.
            if not self._stopping():
                raise
        self._statistics.trained(
            batch,
            outcome.statistics,
            version=self._progress.version,
            extent=self._progress.extent,
            samples_per_insert=self._samples_per_insert(),
            train_s=train_s,
        )
        self._choose_weights(batch, outcome, share_done)
        self._choose_degree(batch, outcome)
        self._refusals.observe(outcome)
        self._callbacks.env_steps, self._callbacks.version = self._progress.env_steps, self._progress.version
        self._callbacks.trained(lambda: batch_numbers(self._statistics.brief(), outcome.statistics))

    def _advance(self, batch: Batch, outcome: TrainingOutcome) -> None:
        progress = self._progress
        segments, steps = self._collected(batch, outcome)
        self._progress = dataclasses.replace(
            progress,
            version=progress.version + 1,
            env_steps=progress.env_steps + steps,
            updates=progress.updates + outcome.updates,
            segments_trained=progress.segments_trained + batch.keys.size,
            segments_fresh=progress.segments_fresh + segments,
            episodes=progress.episodes + outcome.fresh_episodes,
        )

    def _collected(self, batch: Batch, outcome: TrainingOutcome) -> tuple[int, int]:
        """Returns the segments, and their environment steps, that the run has gained since the previous batch."""
        if self._plan.fresh_segments:
            return batch.fresh_segments, outcome.fresh_steps
        if self._inserted is None:
            # The store's count includes the segments that earlier sessions counted, unless the store is new.
            had = self._progress.segments_fresh
            self._inserted = had if had <= batch.counts.inserted else 0
        segments, self._inserted = batch.counts.inserted - self._inserted, batch.counts.inserted
        return segments, segments * self._config.actor.unroll_length

    def _note_commit(self, answered: Future[CommitOutcome]) -> None:
        # Runs on the source's thread. An error that ends the stream is raised by the next call, not here.
        if answered.exception() is None:
            self._statistics.session.committed(answered.result())

    def _choose_weights(self, batch: Batch, outcome: TrainingOutcome, progress: float) -> None:
        if isinstance(self._collection, VariedCollection):
            self._collection.review(progress)
            return
        self._collection.observe(batch.head.slots, outcome.fresh_errors)
        weights = self._collection.review(self._statistics.variant_returns, progress)
        if weights is not None and weights != self._plan.slot_weights:
            self._plan = dataclasses.replace(self._plan, slot_weights=weights)
            self._source.adjust(self._plan)
            self._note_plan()

    def _choose_degree(self, batch: Batch, outcome: TrainingOutcome) -> None:
        if self._degree is None:
            return

        def most() -> int:
            # Segments in collection, those that wait, and the next batch must fit into the store.
            room = (batch.counts.capacity - self._plan.batch_segments) // max(1, self._plan.fresh_segments) - 1
            return min(room, self._config.degree_with(self._statistics.connected_actors()))

        effective_share = outcome.statistics.learning.fresh_effective_share
        session = self._statistics.session
        if self._degree.observe(1.0 if effective_share is None else effective_share, session.work, most):
            self._plan = dataclasses.replace(self._plan, off_policy_degree=self._degree.degree)
            self._source.adjust(self._plan)
            self._note_plan()
            logs.note("degree chosen", degree=str(self._degree.degree), version=str(self._progress.version))

    def _note_plan(self) -> None:
        self._statistics.set_plan(self._plan)

    def _publish(self) -> None:
        with metrics.exchange_cpu_time("publishing"):
            self._publication.publish(self._progress.version)
        metrics.restart_age(metrics.LEARNER_PUBLICATION_AGE)

    def _do_what_is_due(self) -> None:
        self._evaluations.collect()
        if self._evaluations.is_due(self._extent):
            self._evaluations.ask(self._snapshot())
            if self._config.evaluation.mode == "synchronous":
                self._await_evaluation()
        # If the evaluation that reached the threshold is not the best, only this checkpoint records it on disk.
        reached = self._evaluations.env_steps_to_threshold != self._saved_threshold
        if self._save_due.is_due(self._extent) or reached:
            self._save(self._checkpoints.begin)
            self._save_due.restart(self._extent)
        self._snapshots.take_what_is_due(self._snapshot)
        if time.monotonic() >= self._journal_at or self._journal_due.is_due(self._extent):
            self._journal_at = time.monotonic() + _JOURNAL_INTERVAL_S
            self._journal_due.restart(self._extent)
            self._note()
        self._writes.retry()

    def _await_evaluation(self) -> None:
        started = time.monotonic()
        self._statistics.enters("evaluating")
        self._evaluations.wait(self._stopping)
        waited_s = time.monotonic() - started
        self._statistics.stood_still(waited_s)
        # Otherwise an evaluation longer than its interval in minutes would be due again after every batch.
        self._evaluations.restart_interval(self._extent)

    def _note(self) -> None:
        session = self._statistics.session
        training = session.last
        if training is not None and self._progress.version > self._noted_version:
            self._noted_version = self._progress.version
            totals = session.totals()
            times, self._noted_totals = totals.since(self._noted_totals).times, totals
            session.set_features(self._learner.policy.observation_moments.features())
            self._records.write(
                Record.of_training(
                    self._statistics.status(),
                    training,
                    times,
                    self._statistics.training_s,
                    ended_return=self._statistics.take_ended_return(),
                    distributions=self._distributions,
                )
            )

    def _snapshot(self) -> checkpoints.Snapshot:
        return checkpoints.take(self._learner, self._dated())

    def _dated(self) -> RunProgress:
        """Brings the times and evaluations in the progress up to date, and returns it."""
        evaluations = self._evaluations
        self._progress = dataclasses.replace(
            self._progress,
            training_s=self._statistics.training_s,
            env_steps_to_threshold=evaluations.env_steps_to_threshold,
            learn_wall_s_to_threshold=evaluations.learn_wall_s_to_threshold,
            untimed_episode_steps=evaluations.untimed_episode_steps,
            best_return=evaluations.best_return,
            env_steps_taken=self._statistics.env_steps_taken,
            wall_s=self._earlier.wall_s + self._statistics.elapsed_s,
            sessions=self._earlier.sessions + 1,
            clock_s=self._statistics.clock_s,
        )
        return self._progress

    def _save(self, write: Callable[[RunProgress], None]) -> None:
        """Saves a checkpoint of the run as it is now: `write` is a method of the writer."""
        if self._progress.env_steps:
            self._learner.check_finite()
            progress = self._dated()
            self._saved_threshold = progress.env_steps_to_threshold
            write(progress)

    def _advice(self) -> str:
        newest = checkpoints.newest(self._folder)
        saved = f"the newest checkpoint is {newest}" if newest else "there is no checkpoint"
        run_dir = str(self._folder.root)
        command = f"penstock train --resume {shlex.quote(run_dir)}"
        return f"{saved}, and training after it is lost. Continue with {installation.how_to_resume(command, run_dir)}"

    def _samples_per_insert(self) -> float:
        return self._progress.segments_trained / max(1, self._progress.segments_fresh)


def plan_of(config: Config, *, session: int, next_batch: int, seed: int) -> SamplingPlan:
    """Returns the plan with which a run begins. Settings with the name of a field of the plan are copied to it."""
    own: dict[str, Any] = {
        "session": session,
        "next_batch": next_batch,
        "seed": seed,
        "off_policy_degree": config.first_degree,
    }
    sampling = config.sampling
    names = {field.name for field in dataclasses.fields(SamplingPlan) if hasattr(sampling, field.name)} - own.keys()
    return SamplingPlan(**own, **{name: getattr(sampling, name) for name in names})
