"""How the run goes, in numbers: what actors report, what training yields, what evaluations find.

Reports come on the server's thread, training on the main one; one lock is between them. Readers get frozen values.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from penstock.learning.actor_states import ActorStates
from penstock.learning.coordinator import Coordinator, Totals
from penstock.learning.training_statistics import TrainingStatistics
from penstock.telemetry import logs, metrics
from penstock.types import (
    ActorReport,
    Batch,
    CommitOutcome,
    CoordinatorStatistics,
    EvaluationSummary,
    Notice,
    RunStatus,
    SamplingPlan,
    VariantStatus,
)

_RECENT_EPISODES = 100
_RATE_WINDOW_S = 10.0
_NOTICES = 16
"""Kept for readers; a reader that asks several times a second misses none unless events flood."""


class RunStatistics:
    """Collects, and answers with a `RunStatus`. Any thread may call."""

    def __init__(
        self,
        *,
        total_steps: int,
        earlier_s: float,
        earlier_steps_taken: int = 0,
        variants: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        total_steps: What the run is heading for.
        earlier_s: Seconds of training in earlier sessions of this run.
        earlier_steps_taken: Environment steps that actors reported in earlier sessions.
        variants: What sets each environment variant apart, if there are any.
        clock: Monotonic seconds.
        """
        self._lock = threading.Lock()
        self._clock, self._started, self.earlier_s = clock, clock(), earlier_s
        self._total_steps = total_steps
        self._first_step_at, self._stood_still_s = math.inf, 0.0
        self._env_steps_taken = earlier_steps_taken
        self._returns: deque[float] = deque(maxlen=_RECENT_EPISODES)
        self._episodes = 0
        self._variants = [VariantStatus(arguments) for arguments in variants]
        self._variant_returns: list[deque[float]] = [deque(maxlen=_RECENT_EPISODES) for _ in variants]
        self._trail: deque[tuple[float, int, int]] = deque()
        self._phase, self._waiting_for, self._environment_id = "waiting", "actors", ""
        self._version = self._env_steps = self._updates = 0
        self._last: EvaluationSummary | None = None
        self._best: EvaluationSummary | None = None
        self._training: TrainingStatistics | None = None
        self._batch: Batch | None = None
        self._samples_per_insert = 0.0
        self._actors: Callable[[], int] = lambda: 0
        self._coordinator = Coordinator(clock)
        self._notices: deque[Notice] = deque(maxlen=_NOTICES)
        self.actors = ActorStates(self.notice, clock)

    def notice(self, text: str) -> None:
        """Tells the user of an event: logs one line and shows it in the terminal of `penstock train`.

        The caller limits how often the same event is told.
        """
        logs.note("notice", text=text)
        with self._lock:
            # By a clock of the host that is never set back, so that numbers also increase from one learner process to
            # the next.
            latest = self._notices[-1].number if self._notices else 0
            self._notices.append(Notice(max(latest + 1, time.monotonic_ns() // 1000), text))

    def watch_actors(self, count: Callable[[], int]) -> None:
        """Where the number of actors is read from."""
        self._actors = count

    def report(self, report: ActorReport, variant: int = 0) -> None:
        """Takes in the report of an actor in this environment variant."""
        with self._lock:
            if report.first_step_at_s > 0.0:
                # An actor reports as it begins. Its own clock may differ from this host's by any amount.
                self._first_step_at = min(self._first_step_at, self._clock())
            self._env_steps_taken += report.env_steps
            metrics.LEARNER_ENV_STEPS_TAKEN.set(self._env_steps_taken)
            self._coordinator.report(report)
            self._returns.extend(episode.episode_return for episode in report.episodes)
            self._episodes += len(report.episodes)
            metrics.EPISODES.inc(len(report.episodes))
            if self._returns:
                metrics.EPISODE_RETURN.set(sum(self._returns) / len(self._returns))
            if self._variants and report.episodes:
                self._count_for_variant(variant, [episode.episode_return for episode in report.episodes])

    def _count_for_variant(self, variant: int, returns: list[float]) -> None:
        recent = self._variant_returns[variant]
        recent.extend(returns)
        before, mean = self._variants[variant], sum(recent) / len(recent)
        self._variants[variant] = VariantStatus(before.arguments, before.episodes + len(returns), mean)
        metrics.VARIANT_EPISODES.labels(str(variant)).inc(len(returns))
        metrics.VARIANT_EPISODE_RETURN.labels(str(variant)).set(mean)

    def begin(self, environment_id: str, *, version: int, env_steps: int, updates: int) -> None:
        """Training begins, or goes on, here."""
        with self._lock:
            self._environment_id = environment_id
            self._version, self._env_steps, self._updates = version, env_steps, updates
            self._trail.append((self._clock(), env_steps, updates))

    def works_by(self, plan: SamplingPlan, *, chosen: bool) -> None:
        """Batches are asked for by this plan from now on; `chosen`: its off-policy degree is the learner's choice."""
        with self._lock:
            self._coordinator.works_by(plan, chosen=chosen)

    def waits(self, reason: str) -> None:
        """The learner waits for this."""
        with self._lock:
            self._waiting_for = reason

    def waited(self, reason: str, seconds: float) -> None:
        """The learner has waited so long for this."""
        with self._lock:
            self._coordinator.waited(reason, seconds)

    def enters(self, phase: str) -> None:
        """The run is now waiting, training, evaluating or finished."""
        with self._lock:
            self._phase, self._waiting_for = phase, ""

    def stood_still(self, seconds: float) -> None:
        """Training waited so long for an evaluation, which is no time of its own."""
        with self._lock:
            self._stood_still_s += seconds

    def trained(
        self,
        batch: Batch,
        training: TrainingStatistics,
        *,
        version: int,
        env_steps: int,
        updates: int,
        samples_per_insert: float,
        train_s: float,
    ) -> None:
        """A batch was trained in so many seconds; the run now stands at these counts."""
        with self._lock:
            self._coordinator.trained(batch, training, fresh_steps=env_steps - self._env_steps, train_s=train_s)
            self._phase, self._waiting_for = "training", ""
            self._batch, self._training = batch, training
            self._version, self._env_steps, self._updates = version, env_steps, updates
            self._samples_per_insert = samples_per_insert
            now = self._clock()
            self._trail.append((now, env_steps, updates))
            while now - self._trail[0][0] > _RATE_WINDOW_S and len(self._trail) > 2:
                self._trail.popleft()

    def left_out(self, *, steps: int, rows: int, values: int) -> None:
        """A batch had so many refused gradient steps, unsound rows, and values kept from the normalisation."""
        with self._lock:
            self._coordinator.left_out(steps=steps, rows=rows, values=values)

    def committed(self, outcome: CommitOutcome) -> None:
        """A commit was answered."""
        with self._lock:
            self._coordinator.committed(outcome)

    def evaluated(self, evaluation: EvaluationSummary, seconds: float) -> None:
        """An evaluation came back, which took its evaluator so long."""
        with self._lock:
            self._coordinator.evaluated(seconds)
            self._last = evaluation
            metrics.EVALUATIONS.inc()
            metrics.EVALUATION_RETURN.set(evaluation.return_mean)
            for variant, returns in enumerate(evaluation.variants):
                metrics.VARIANT_EVALUATION_RETURN.labels(str(variant)).set(returns.return_mean)

    def best_is(self, evaluation: EvaluationSummary) -> None:
        """The best checkpoint has this evaluation; `Evaluations` decides that."""
        with self._lock:
            self._best = evaluation

    @property
    def env_steps_taken(self) -> int:
        """Environment steps that actors took, over all sessions; at least those that were trained."""
        with self._lock:
            return max(self._env_steps_taken, self._env_steps)

    @property
    def elapsed_s(self) -> float:
        """Seconds of this session."""
        return self._clock() - self._started

    @property
    def training_s(self) -> float:
        """Seconds since the first environment step, without those spent waiting for evaluations; earlier sessions
        included.
        """
        with self._lock:
            if not math.isfinite(self._first_step_at):
                return self.earlier_s
            return self.earlier_s + max(0.0, self._clock() - self._first_step_at - self._stood_still_s)

    @property
    def training(self) -> TrainingStatistics | None:
        """Of the last batch."""
        with self._lock:
            return self._training

    @property
    def coordinator(self) -> CoordinatorStatistics | None:
        """How collecting and training get along; None before the run has begun."""
        with self._lock:
            return self._coordinator.statistics()

    def totals(self) -> Totals:
        """What was counted and timed in this session until now."""
        with self._lock:
            return self._coordinator.totals()

    def status(self) -> RunStatus:
        """The run now."""
        states, slowest = self.actors.states(), self.actors.slowest()
        with self._lock:
            first, last = (self._trail[0], self._trail[-1]) if self._trail else ((0.0, 0, 0), (0.0, 0, 0))
            seconds = last[0] - first[0]
            rate = (last[1] - first[1]) / seconds if seconds > 0.0 else 0.0
            counts = self._batch.counts if self._batch else None
            waiting_for, for_actors = self._waiting_for, self._waiting_for.startswith("fresh segments")
            return RunStatus(
                phase=self._phase,
                environment_id=self._environment_id,
                version=self._version,
                env_steps=self._env_steps,
                total_steps=self._total_steps,
                elapsed_s=self.elapsed_s,
                env_steps_per_s=rate,
                updates_per_s=(last[2] - first[2]) / seconds if seconds > 0.0 else 0.0,
                episodes=self._episodes,
                return_mean=sum(self._returns) / len(self._returns) if self._returns else None,
                last_evaluation=self._last,
                best_evaluation=self._best,
                lag_mean=self._training.fresh_lag_mean if self._training else 0.0,
                staleness_mean=self._training.staleness_mean if self._training else 0.0,
                replay_stored=counts.stored if counts else 0,
                replay_capacity=counts.capacity if counts else 0,
                actors=self._actors(),
                remaining_s=max(0, self._total_steps - self._env_steps) / rate if rate > 0.0 else None,
                waiting_for=f"{waiting_for}: {slowest}" if slowest and for_actors else waiting_for,
                samples_per_insert=self._samples_per_insert,
                variants=tuple(self._variants),
                coordinator=self._coordinator.statistics(),
                notices=tuple(self._notices),
                actor_states=states,
                env_steps_taken=max(self._env_steps_taken, self._env_steps),
            )
