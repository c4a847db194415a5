"""Counts and times of collection and training in one session, which explain why a run does not learn.

Reports arrive on the server's thread, answers to commits on the source's, and results of training on the main thread.
"""

import dataclasses
import math
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.learning.members.wanted_actors import Work
from penstock.learning.report.replayed import RecentlyReplayed
from penstock.learning.report.return_curve import ReturnCurve
from penstock.learning.step.training_statistics import TrainingStatistics
from penstock.telemetry import metrics
from penstock.types.evaluation import EvaluationSummary
from penstock.types.replay import Batch, CommitOutcome, SamplingPlan, StoreCounts
from penstock.types.run import ActorReport
from penstock.types.statistics import (
    Ages,
    CoordinatorStatistics,
    Drops,
    Features,
    LearningNumbers,
    MeanTimes,
    Timing,
    Wait,
    declared,
)
from penstock.types.waits import WaitReason

RECENT_BATCHES = 100
"""Batches in the recent means: enough to hide one odd batch, and few enough to exclude the beginning of a run."""


@dataclass(slots=True)
class Totals:
    """Counts and times of a session."""

    batches: int = 0
    segments: int = 0
    fresh_segments: int = 0
    fresh_steps: int = 0
    lag: float = 0.0
    """Staleness in versions, summed over the fresh segments."""
    staleness: float = 0.0
    """Staleness in versions, summed over all segments."""
    train_s: float = 0.0
    wait_s: float = 0.0
    callbacks_s: float = 0.0
    evaluations: int = 0
    evaluation_s: float = 0.0
    actor_steps: int = 0
    collection: Timing = field(default_factory=Timing)
    """Seconds of all actors together."""

    def since(self, earlier: "Totals") -> "Totals":
        """Returns the differences from `earlier` totals."""
        counts = (name for name in self.__slots__ if name != "collection")
        return Totals(
            **{name: getattr(self, name) - getattr(earlier, name) for name in counts},
            collection=self.collection.combined(earlier.collection, -1.0),
        )

    @property
    def times(self) -> MeanTimes:
        """Mean seconds per batch and per evaluation."""
        # Actors run ahead of the learner, so their time is measured per step.
        steps = self.fresh_steps / self.batches if self.batches else math.nan
        seconds = self.collection.by_activity()
        return MeanTimes(
            **{
                name: _mean(seconds[each.activity] * steps, self.actor_steps)
                for name, each in declared(MeanTimes).items()
                if each.activity
            },
            batch_wait_s=_mean(self.wait_s, self.batches),
            batch_train_s=_mean(self.train_s, self.batches),
            batch_callbacks_s=_mean(self.callbacks_s, self.batches) if self.callbacks_s else None,
            evaluation_s=_mean(self.evaluation_s, self.evaluations),
        )


class SessionTotals:
    """Counters from which `CoordinatorStatistics` are computed. Any thread may call."""

    def __init__(self, clock: Callable[[], float], curve: ReturnCurve | None = None) -> None:
        """Begins a session. `clock` returns monotonic seconds. `curve` collects the returns; None: one of a new run."""
        self._lock = threading.Lock()
        self._clock = clock
        self._totals = Totals()
        self._plan: SamplingPlan | None = None
        self._began = self._until = math.nan
        self._waits: defaultdict[WaitReason, float] = defaultdict(float)
        self._counts: StoreCounts | None = None
        self._collected = self._late = self._overwritten = 0
        self._refused_steps = self._unsound_rows = self._left_out_values = 0
        self._recent: deque[LearningNumbers] = deque(maxlen=RECENT_BATCHES)
        self._replayed = RecentlyReplayed(RECENT_BATCHES)
        self._last: TrainingStatistics | None = None
        self._first_entropy: float | None = None
        self._curve = curve or ReturnCurve()
        self._features: Features | None = None
        self._oldest_fresh = self._oldest = 0

    def set_plan(self, plan: SamplingPlan) -> None:
        """Sets the plan by which batches are requested."""
        metrics.LEARNER_OFF_POLICY_DEGREE.set(plan.off_policy_degree)
        metrics.LEARNER_ALPHA.set(plan.alpha)
        metrics.LEARNER_STALENESS_BOUND.set(max(plan.max_staleness, plan.off_policy_degree + plan.publish_interval - 1))
        with self._lock:
            if self._plan is None:
                self._began = self._until = self._clock()
            self._plan = plan

    def report(self, report: ActorReport) -> None:
        """Adds an actor's times, and the episodes that ended."""
        with self._lock:
            self._curve.ended(report.episodes)
            self._totals.actor_steps += report.env_steps
            self._totals.collection = self._totals.collection.combined(report.timing)

    def called_back(self, seconds: float) -> None:
        """Adds the seconds of a call of a user's callback."""
        metrics.LEARNER_CALLBACK_SECONDS.inc(seconds)
        with self._lock:
            self._totals.callbacks_s += seconds

    def waited(self, reason: WaitReason, seconds: float) -> None:
        """Adds the seconds of a wait of the learner for a batch to the total for its reason."""
        metrics.LEARNER_WAIT_SECONDS.labels(str(reason)).inc(seconds)
        with self._lock:
            self._waits[reason] += seconds
            self._totals.wait_s += seconds
            self._until = self._clock()

    def trained(self, batch: Batch, training: TrainingStatistics, *, fresh_steps: int, train_s: float) -> None:
        """Records a trained batch, the number of its fresh steps, and the seconds that training it took."""
        metrics.LEARNER_STEP_SECONDS.observe(train_s)
        metrics.LEARNER_FRESH_LAG.set(training.fresh_lag_mean)
        metrics.LEARNER_OLDEST.set(batch.ages.max())
        for age in batch.ages.tolist():
            metrics.LEARNER_STALENESS.observe(age)
        for name, value in training.scalars.items():
            metrics.LEARNER_STATISTIC.labels(name).set(math.nan if value is None else value)
        with self._lock:
            self._add(batch, training, fresh_steps, train_s)

    def _add(self, batch: Batch, training: TrainingStatistics, fresh_steps: int, train_s: float) -> None:
        totals = self._totals
        totals.batches += 1
        totals.segments += batch.keys.size
        totals.fresh_segments += batch.fresh_segments
        totals.fresh_steps += fresh_steps
        totals.staleness += training.staleness_mean * batch.keys.size
        self._oldest = max(self._oldest, training.staleness_max)
        if batch.fresh_segments:
            totals.lag += training.fresh_lag_mean * batch.fresh_segments
            self._oldest_fresh = max(self._oldest_fresh, training.fresh_lag_max)
        totals.train_s += train_s
        if self._last is None:
            self._first_entropy = training.learning.entropy
        self._last = training
        self._recent.append(training.learning)
        self._count_store(batch.counts)
        if self._plan is not None:
            self._replayed.add(batch, self._plan.half_life)
            self._show_replayed()
        self._until = self._clock()

    def _show_replayed(self) -> None:
        if replayed := self._replayed.means():
            metrics.LEARNER_REPLAYED_AGE.set(replayed.age_mean)
            metrics.LEARNER_REPLAYED_AGE_90.set(replayed.age_90)
            metrics.LEARNER_DRAWN_PRIORITY.set(replayed.drawn_priority or math.nan)

    def _count_store(self, counts: StoreCounts) -> None:
        before = self._counts
        if before is None:
            # Untrained segments that were already in the store count as collected in this session, which trains them.
            self._collected = counts.unseen + counts.leased
        else:
            # A store that was lost counts from 0 again. Its insertions up to this batch are unknown.
            self._collected += max(0, counts.inserted - before.inserted)
            self._late += max(0, counts.late - before.late)
        self._counts = counts

    def left_out(self, *, steps: int, rows: int, values: Mapping[str, int]) -> None:
        """Adds a batch's refused gradient steps, unsound rows, and values left out of each normaliser."""
        metrics.LEARNER_REFUSED_STEPS.inc(steps)
        metrics.LEARNER_UNSOUND_ROWS.inc(rows)
        for kind, count in values.items():
            metrics.LEARNER_LEFT_OUT_VALUES.labels(kind).inc(count)
        with self._lock:
            self._refused_steps += steps
            self._unsound_rows += rows
            self._left_out_values += sum(values.values())

    def committed(self, outcome: CommitOutcome) -> None:
        """Records the answer to a commit."""
        with self._lock:
            self._overwritten += outcome.overwritten

    def set_features(self, features: Features | None) -> None:
        """Sets the properties of the observations' numbers; None: not known yet."""
        with self._lock:
            self._features = features

    def evaluated(self, evaluation: EvaluationSummary, seconds: float) -> None:
        """Records an evaluation and the seconds that its evaluator took."""
        with self._lock:
            self._curve.evaluated(evaluation)
            self._totals.evaluations += 1
            self._totals.evaluation_s += seconds

    @property
    def return_mean(self) -> float | None:
        """Mean return of the last 100 training episodes; None if there are none."""
        with self._lock:
            return self._curve.recent_mean

    @property
    def longest_episode(self) -> int:
        """Steps of the longest of the last 100 training episodes; 0 if there are none."""
        with self._lock:
            return self._curve.longest_steps

    def totals(self) -> Totals:
        """Returns a copy of the totals."""
        with self._lock:
            return dataclasses.replace(self._totals)

    def work(self) -> Work:
        """Returns the work of learner and actors so far, for the judgement of the number of actors."""
        with self._lock:
            totals = self._totals
            starved_s = sum(seconds for reason, seconds in self._waits.items() if reason.for_actors)
            return Work(
                elapsed_s=0.0 if math.isnan(self._began) else self._clock() - self._began,
                excluded_s=totals.wait_s - starved_s,
                starved_s=starved_s,
                collecting_s=sum(totals.collection.by_activity().values()) - totals.collection.waiting_s,
                gated_s=totals.collection.waiting_s,
                batches=totals.batches,
                env_steps=totals.fresh_steps,
            )

    @property
    def last(self) -> TrainingStatistics | None:
        """Statistics of the last batch; None before the first."""
        with self._lock:
            return self._last

    def statistics(self) -> CoordinatorStatistics | None:
        """Returns the statistics of the session so far; None before there is a plan."""
        with self._lock:
            return self._statistics(self._plan) if self._plan is not None else None

    def _statistics(self, plan: SamplingPlan) -> CoordinatorStatistics:
        totals, counts, last = self._totals, self._counts or StoreCounts(), self._last
        return CoordinatorStatistics(
            mode="asynchronous" if plan.off_policy_degree else "synchronous",
            off_policy_degree=plan.off_policy_degree,
            alpha=plan.alpha,
            segments_collected=self._collected,
            batches_collected=self._collected / plan.fresh_segments if plan.fresh_segments else 0.0,
            segments_trained=totals.segments,
            batches_trained=totals.batches,
            evaluations=totals.evaluations,
            lag=Ages(last.fresh_lag_mean, totals.lag / totals.fresh_segments, self._oldest_fresh)
            if last and totals.fresh_segments
            else None,
            staleness=Ages(last.staleness_mean, totals.staleness / totals.segments, self._oldest) if last else None,
            times=totals.times,
            waits=self._shared_waits(),
            drops=Drops(
                late_segments=self._late,
                refused_segments=counts.refused,
                refunded_segments=counts.refunded,
                overwritten_priorities=self._overwritten,
                refused_steps=self._refused_steps,
                unsound_rows=self._unsound_rows,
                left_out_values=self._left_out_values,
            ),
            last=last.learning if last else None,
            recent=_means(self._recent) if last else None,
            recent_batches=len(self._recent),
            first_entropy=self._first_entropy,
            replayed=self._replayed.means(),
            curve=self._curve.curve(),
            features=self._features,
        )

    def _shared_waits(self) -> tuple[Wait, ...]:
        elapsed_s = self._until - self._began
        waits = [
            Wait(reason, seconds, seconds / elapsed_s if elapsed_s > 0.0 else 0.0)
            for reason, seconds in self._waits.items()
        ]
        return tuple(sorted(waits, key=lambda wait: -wait.seconds))


def _means(batches: Sequence[LearningNumbers]) -> LearningNumbers:
    def mean(name: str) -> float | None:
        # A batch from which nothing was learnt has no number.
        values = [value for batch in batches if (value := getattr(batch, name)) is not None]
        return _mean(sum(values), len(values))

    return LearningNumbers(**{name: mean(name) for name in declared(LearningNumbers)})


def _mean(total: float, count: int) -> float | None:
    mean = total / count if count else math.nan
    return mean if math.isfinite(mean) else None
