"""Statistics of the run: reports of actors, results of training, and results of evaluations.

Every number is recorded here once, for the status of the run as well as for the metrics.
"""

import dataclasses
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from penstock.learning.members.actor_states import ActorStates
from penstock.learning.members.wanted_actors import ExpectedActors, WantedActors
from penstock.learning.report.info_statistics import InfoStatistics, evaluated
from penstock.learning.report.return_curve import ReturnCurve
from penstock.learning.report.session_totals import SessionTotals
from penstock.learning.report.variant_statistics import VariantStatistics
from penstock.learning.step.training_statistics import TrainingStatistics
from penstock.telemetry import logs, metrics
from penstock.types.evaluation import EvaluationSummary
from penstock.types.extents import Amounts, Extent, Unit
from penstock.types.replay import Batch, SamplingPlan
from penstock.types.run import ActorReport
from penstock.types.status import Notice, Phase, RunStatus
from penstock.types.waits import Awaited, WaitReason

_RATE_WINDOW_S = 10.0
"""Seconds of the last batches over which the speed is computed, and after which a batch that is late makes it 0."""
_NOTICES = 16
"""Notices kept for readers. A reader that polls several times per second misses none except in a burst."""


class RunStatistics:
    """Statistics of the run, from which `RunStatus` is computed. Any thread may call.

    Attributes:
        session: Counts and times of collection and training in this session.
        actors: States of the actors.
        best_evaluation: Evaluation of the best checkpoint, which `Evaluations` chooses.
        connected_actors: Function that returns the number of actors in the run.
        record_episodes: Function that gets each report with its variant and the environment steps trained before it.
        earlier_s: Seconds of training in earlier sessions of this run.
    """

    def __init__(
        self,
        *,
        limits: Amounts,
        earlier_s: float,
        environment_id: str = "",
        earlier_steps_taken: int = 0,
        earlier_episodes: int = 0,
        earlier_clock_s: float = 0.0,
        variants: Sequence[str] = (),
        info_metrics: Sequence[str] = (),
        wanted: WantedActors | None = None,
        expected: ExpectedActors | None = None,
        curve: ReturnCurve | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begins a session of a run that ends at the first of these limits.

        `earlier_steps_taken` are the environment steps that actors reported in earlier sessions, `earlier_episodes` the
        episodes that were trained in them, and `earlier_clock_s` the seconds of `clock_s` in them. `variants` are the
        arguments of each environment variant, as shown to the user; empty if there are none. `info_metrics` are keys of
        the infos whose values actors report. `wanted` judges the number of actors; None: it is not judged. `expected`
        has the actors that there should be; None: none. `curve` collects
        the returns; None: one of a new run. `clock` returns monotonic seconds.
        """
        self._lock = threading.Lock()
        self._clock, self._started, self.earlier_s = clock, clock(), earlier_s
        self._limits, self._earlier_clock_s = limits, earlier_clock_s
        self._began_at = self._ended_at = math.inf
        self._first_step_at, self._stood_still_s = math.inf, 0.0
        self._env_steps_taken = earlier_steps_taken
        self._ended, self._ended_return = 0, 0.0
        self._episodes = earlier_episodes
        self._variants, self._info = VariantStatistics(variants), InfoStatistics(info_metrics)
        self._trail: deque[tuple[float, Extent]] = deque()
        self._phase: Phase = "waiting"
        self._waiting_for: WaitReason | str = WaitReason(Awaited.ACTORS)
        self._environment_id = environment_id
        self._version, self._extent = 0, Extent()
        self._last: EvaluationSummary | None = None
        self.best_evaluation: EvaluationSummary | None = None
        self._batch: Batch | None = None
        self._samples_per_insert = 0.0
        self.connected_actors: Callable[[], int] = lambda: 0
        self.record_episodes: Callable[[ActorReport, int, int], None] = lambda report, variant, env_steps: None
        self.session = SessionTotals(clock, curve)
        self._notices: deque[Notice] = deque(maxlen=_NOTICES)
        self.actors = ActorStates(self.notice, clock)
        self._wanted = wanted
        self._expected = expected or ExpectedActors(None)
        metrics.LEARNER_WANTED_ACTORS.set(self._wanted_actors or 0)

    def notice(self, text: str) -> None:
        """Notifies the user of an event: logs one line and shows it in the terminal of `penstock train`.

        The caller limits how often the same event is reported.
        """
        logs.note("notice", text=text)
        with self._lock:
            # A clock of the host that is never set back makes numbers increase across learner processes.
            latest = self._notices[-1].number if self._notices else 0
            self._notices.append(Notice(max(latest + 1, time.monotonic_ns() // 1000), text))

    @property
    def _wanted_actors(self) -> int | None:
        return self._wanted.number if self._wanted is not None else None

    def look(self) -> None:
        """Notifies the user of stuck and missing actors, and judges how many the run can use.

        Called about once per second. The exported progress follows the clock, also while nothing is trained.
        """
        self.actors.look()
        self._look_for_missing()
        work = self.session.work()
        with self._lock:
            self._show_progress()
            if self._wanted is None:
                return
            # The session's clock runs during evaluations for which training waits.
            work = dataclasses.replace(work, excluded_s=work.excluded_s + self._stood_still_s)
            reason, number = self._wanted.observe(work), self._wanted.number
        if number is not None:
            metrics.LEARNER_WANTED_ACTORS.set(number)
        if reason:
            logs.note("actors wanted", number=str(number), present=str(self.connected_actors()), reason=reason)

    def _look_for_missing(self) -> None:
        present, now_s = self.connected_actors(), self._clock()
        with self._lock:
            newly = self._expected.observe(now_s, present, self._wanted_actors)
            missing = self._expected.missing(now_s)
        if newly and missing:
            logs.note(
                "actors missing", number=str(missing.expected - present), present=str(present), why=missing.command
            )

    def report(self, report: ActorReport, variant: int = 0) -> None:
        """Adds the report of an actor in this environment variant."""
        with self._lock:
            if report.first_step_at_s > 0.0:
                # An actor reports when it begins to collect. Its clock may differ from this host's by any amount.
                self._first_step_at = min(self._first_step_at, self._clock())
                self._began_at = min(self._began_at, self._first_step_at)
            self._env_steps_taken += report.env_steps
            metrics.LEARNER_ENV_STEPS_TAKEN.set(self._env_steps_taken)
            self.session.report(report)
            returns = [episode.episode_return for episode in report.episodes]
            self._episodes += len(report.episodes)
            self._ended += len(returns)
            self._ended_return += sum(returns)
            metrics.EPISODES.inc(len(report.episodes))
            if (mean := self.session.return_mean) is not None:
                metrics.EPISODE_RETURN.set(mean)
            self._variants.ended(report, variant)
            self._info.ended(report)
            self.record_episodes(report, variant, self._extent.steps)

    def take_ended_return(self) -> float | None:
        """Returns the mean return of the training episodes that ended since the last call; None if there are none."""
        with self._lock:
            mean = self._ended_return / self._ended if self._ended else None
            self._ended, self._ended_return = 0, 0.0
        return mean

    def set_plan(self, plan: SamplingPlan) -> None:
        """Sets the plan by which batches are requested."""
        self.session.set_plan(plan)
        with self._lock:
            self._variants.planned(plan)

    def play_in_turn(self, played: Callable[[], Sequence[tuple[int, str, float]]]) -> None:
        """Has actors play variants in turn: number, shown arguments and share of each at the time of the call."""
        with self._lock:
            self._variants.played = played

    def variant_returns(self, numbers: Sequence[int] | None = None) -> list[list[float]]:
        """Returns the returns of the last training episodes of these variants, by default of all, oldest first."""
        with self._lock:
            return self._variants.recent_returns(numbers)

    def variant_episodes(self, number: int) -> int:
        """Returns the number of training episodes of this session that ended in a variant."""
        with self._lock:
            return self._variants.episodes(number)

    def begin(self, *, version: int, extent: Extent) -> None:
        """Sets the version and the extent at which training begins or resumes."""
        with self._lock:
            self._version, self._extent = version, extent
            self._waiting_for = WaitReason(Awaited.FRESH_SEGMENTS)
            self._trail.append((self._clock(), extent))
            self._show_progress()

    def waits(self, reason: WaitReason | str) -> None:
        """Sets the learner's reason for waiting: the reason for a delayed batch, or a text for display."""
        with self._lock:
            self._waiting_for = reason
            self._show_progress()

    def enters(self, phase: Phase) -> None:
        """Sets the phase of the run: waiting, training, evaluating or finished."""
        with self._lock:
            self._phase, self._waiting_for = phase, ""

    def stood_still(self, seconds: float) -> None:
        """Adds time spent waiting for an evaluation, which training time excludes."""
        metrics.LEARNER_WAIT_SECONDS.labels(str(Awaited.EVALUATOR)).inc(seconds)
        with self._lock:
            self._stood_still_s += seconds

    def trained(
        self,
        batch: Batch,
        training: TrainingStatistics,
        *,
        version: int,
        extent: Extent,
        samples_per_insert: float,
        train_s: float,
    ) -> None:
        """Records a trained batch, the seconds that it took, and the run's version and extent after it."""
        metrics.LEARNER_VERSION.set(version)
        metrics.LEARNER_ENV_STEPS.set(extent.steps)
        metrics.LEARNER_USES.set(samples_per_insert)
        with self._lock:
            now, before = self._clock(), self._extent
            metrics.LEARNER_UPDATES.inc(extent.updates - before.updates)
            self.session.trained(batch, training, fresh_steps=extent.steps - before.steps, train_s=train_s)
            self._variants.trained(batch.head.slots)
            self._phase, self._waiting_for = "training", ""
            self._batch = batch
            self._version, self._extent = version, extent
            self._samples_per_insert = samples_per_insert
            # Runs in one process have no actors that report.
            self._began_at = min(self._began_at, now)
            self._show_progress()
            self._trail.append((now, extent))
            while now - self._trail[0][0] > _RATE_WINDOW_S and len(self._trail) > 2:
                self._trail.popleft()

    def evaluated(self, evaluation: EvaluationSummary, seconds: float) -> None:
        """Records an evaluation and the seconds that its evaluator took."""
        with self._lock:
            self.session.evaluated(evaluation, seconds)
            self._last = evaluation
            evaluated(evaluation)
            metrics.EVALUATIONS.inc()
            metrics.EVALUATION_RETURN.set(evaluation.return_mean)
            for returns in evaluation.variants:
                metrics.VARIANT_EVALUATION_RETURN.labels(str(returns.number)).set(returns.return_mean)

    @property
    def env_steps_taken(self) -> int:
        """Environment steps that actors took in all sessions; at least the number trained."""
        with self._lock:
            return max(self._env_steps_taken, self._extent.steps)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the session began."""
        return self._clock() - self._started

    @property
    def training_s(self) -> float:
        """Seconds since the first environment step, including earlier sessions and excluding waits for evaluations."""
        with self._lock:
            if not math.isfinite(self._first_step_at):
                return self.earlier_s
            return self.earlier_s + max(0.0, self._clock() - self._first_step_at - self._stood_still_s)

    def end_training(self) -> None:
        """Stops the clock of the run, before its last evaluations."""
        with self._lock:
            self._ended_at = self._clock()

    @property
    def clock_s(self) -> float:
        """Seconds of training since the first environment step of each session, including waits for evaluations."""
        with self._lock:
            return self._clock_s

    @property
    def _clock_s(self) -> float:
        return self._earlier_clock_s + max(0.0, min(self._clock(), self._ended_at) - self._began_at)

    @property
    def _now(self) -> Extent:
        return dataclasses.replace(self._extent, minutes=self._clock_s / 60.0)

    def _show_progress(self) -> None:
        metrics.LEARNER_PROGRESS.set(self._limits.nearest(self._now).share)
        remaining_s = self._remaining_s
        metrics.LEARNER_REMAINING_SECONDS.set(math.nan if remaining_s is None else remaining_s)

    @property
    def _remaining_s(self) -> float | None:
        return self._limits.remaining_s(self._now, self._per_second)

    def _per_second(self, unit: Unit) -> float:
        """Returns the rate over the last batches until now; 0.0 if there is none yet, or the next one is long overdue.

        The next batch is late from its usual time on, so that the rate does not fall between two batches.
        """
        if unit == "minutes":
            return 1.0 / 60.0 if math.isfinite(self._began_at) else 0.0
        if len(self._trail) < 2:
            return 0.0
        (began, first), (ended, last) = self._trail[0], self._trail[-1]
        usual = (ended - began) / (len(self._trail) - 1)
        # The last evaluations do not belong to the training, whose rate they would lower.
        late = max(0.0, min(self._clock(), self._ended_at) - ended - usual)
        if ended <= began or late > max(_RATE_WINDOW_S, usual):
            return 0.0
        return (last.of(unit) - first.of(unit)) / (ended - began + late)

    def brief(self) -> RunStatus:
        """Returns the part of the status that one batch changes, which takes a few microseconds."""
        with self._lock:
            return RunStatus(
                version=self._version,
                env_steps=self._extent.steps,
                episodes=max(self._episodes, self._extent.episodes),
                return_mean=self.session.return_mean,
                info_metrics=self._info.recent(),
            )

    def status(self) -> RunStatus:
        """Returns the current status of the run."""
        states, nodes, slowest = self.actors.states(), self.actors.nodes(), self.actors.slowest()
        session, training = self.session.statistics(), self.session.last
        with self._lock:
            counts = self._batch.counts if self._batch else None
            awaited = self._waiting_for
            for_actors = isinstance(awaited, WaitReason) and awaited.for_actors
            return RunStatus(
                phase=self._phase,
                environment_id=self._environment_id,
                version=self._version,
                env_steps=self._extent.steps,
                elapsed_s=self.elapsed_s,
                env_steps_per_s=self._per_second("steps"),
                updates_per_s=self._per_second("updates"),
                # A trained episode has ended, although its actor's report may arrive later, or has gone to the session
                # before this one.
                episodes=max(self._episodes, self._extent.episodes),
                return_mean=self.session.return_mean,
                last_evaluation=self._last,
                best_evaluation=self.best_evaluation,
                lag_mean=training.fresh_lag_mean if training else 0.0,
                staleness_mean=training.staleness_mean if training else 0.0,
                replay_stored=counts.stored if counts else 0,
                replay_capacity=counts.capacity if counts else 0,
                actors=self.connected_actors(),
                remaining_s=self._remaining_s,
                waiting_for=f"{awaited}: {slowest}" if slowest and for_actors else str(awaited),
                samples_per_insert=self._samples_per_insert,
                variants=self._variants.statuses(),
                coordinator=session,
                notices=tuple(self._notices),
                actor_states=states,
                env_steps_taken=max(self._env_steps_taken, self._extent.steps),
                limit=self._limits.nearest(self._now),
                wanted_actors=self._wanted_actors,
                missing_actors=self._expected.missing(self._clock()),
                nodes=nodes,
                info_metrics=self._info.recent(),
            )
