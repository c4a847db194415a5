"""Counts and times of collection and training in one session, which explain why a run does not learn.

`RunStatistics` updates and reads them under its lock. A batch costs a few additions. Means are computed on request.
"""

import dataclasses
import math
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.learning.training_statistics import TrainingStatistics
from penstock.types import (
    ActorReport,
    Ages,
    Batch,
    CommitOutcome,
    CoordinatorStatistics,
    Drops,
    LearningNumbers,
    MeanTimes,
    SamplingPlan,
    StoreCounts,
    Wait,
)

RECENT_BATCHES = 100
"""Batches in the recent means: enough to hide one odd batch, and few enough to exclude the beginning of a run."""


@dataclass(slots=True)
class Totals:
    """Counts and times of a session. The seconds of actors are summed over all actors."""

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
    evaluations: int = 0
    evaluation_s: float = 0.0
    actor_steps: int = 0
    environment_s: float = 0.0
    policy_s: float = 0.0
    building_s: float = 0.0
    actor_wait_s: float = 0.0

    def since(self, earlier: "Totals") -> "Totals":
        """Returns the differences from `earlier` totals."""
        return Totals(*(getattr(self, name) - getattr(earlier, name) for name in self.__slots__))

    @property
    def times(self) -> MeanTimes:
        """Mean seconds per batch and per evaluation."""
        # Actors run ahead of the learner, so their time is measured per step.
        steps = self.fresh_steps / self.batches if self.batches else math.nan
        return MeanTimes(
            collect_environment_s=_mean(self.environment_s * steps, self.actor_steps),
            collect_policy_s=_mean(self.policy_s * steps, self.actor_steps),
            collect_build_s=_mean(self.building_s * steps, self.actor_steps),
            collect_wait_s=_mean(self.actor_wait_s * steps, self.actor_steps),
            batch_wait_s=_mean(self.wait_s, self.batches),
            batch_train_s=_mean(self.train_s, self.batches),
            evaluation_s=_mean(self.evaluation_s, self.evaluations),
        )


class Coordinator:
    """Counters from which `CoordinatorStatistics` are computed. Used under the owner's lock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Begins a session. `clock` returns monotonic seconds."""
        self._clock = clock
        self._totals = Totals()
        self._plan: SamplingPlan | None = None
        self._chosen = False
        self._began = self._until = math.nan
        self._waits: defaultdict[str, float] = defaultdict(float)
        self._counts: StoreCounts | None = None
        self._collected = self._late = self._overwritten = 0
        self._refused_steps = self._unsound_rows = self._left_out_values = 0
        self._recent: deque[TrainingStatistics] = deque(maxlen=RECENT_BATCHES)
        self._first_entropy: float | None = None
        self._oldest_fresh = self._oldest = 0

    def works_by(self, plan: SamplingPlan, *, chosen: bool) -> None:
        """Sets the plan by which batches are requested. `chosen`: the learner chooses its off-policy degree."""
        if self._plan is None:
            self._began = self._until = self._clock()
        self._plan, self._chosen = plan, chosen

    def report(self, report: ActorReport) -> None:
        """Adds an actor's times."""
        totals = self._totals
        totals.actor_steps += report.env_steps
        totals.environment_s += report.environment_s
        totals.policy_s += report.policy_s
        totals.building_s += report.building_s
        totals.actor_wait_s += report.waiting_s

    def waited(self, reason: str, seconds: float) -> None:
        """Adds the seconds of a wait of the learner to the total for its reason."""
        self._waits[reason] += seconds
        self._totals.wait_s += seconds
        self._until = self._clock()

    def trained(self, batch: Batch, training: TrainingStatistics, *, fresh_steps: int, train_s: float) -> None:
        """Records a trained batch, the number of its fresh steps, and the seconds that training it took."""
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
        if not self._recent:
            self._first_entropy = _finite(training.entropy)
        self._recent.append(training)
        self._count_store(batch.counts)
        self._until = self._clock()

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

    def left_out(self, *, steps: int, rows: int, values: int) -> None:
        """Adds a batch's refused gradient steps, unsound rows, and values left out of the normalisers."""
        self._refused_steps += steps
        self._unsound_rows += rows
        self._left_out_values += values

    def committed(self, outcome: CommitOutcome) -> None:
        """Records the answer to a commit."""
        self._overwritten += outcome.overwritten

    def evaluated(self, seconds: float) -> None:
        """Records an evaluation and the seconds that its evaluator took."""
        self._totals.evaluations += 1
        self._totals.evaluation_s += seconds

    def totals(self) -> Totals:
        """Returns a copy of the totals."""
        return dataclasses.replace(self._totals)

    def statistics(self) -> CoordinatorStatistics | None:
        """Returns the statistics of the session so far; None before there is a plan."""
        plan, totals, counts = self._plan, self._totals, self._counts or StoreCounts()
        if plan is None:
            return None
        last = self._recent[-1] if self._recent else None
        return CoordinatorStatistics(
            mode=self._mode(plan),
            off_policy_degree=plan.off_policy_degree,
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
            last=_means([last]) if last else None,
            recent=_means(self._recent) if last else None,
            recent_batches=len(self._recent),
            first_entropy=self._first_entropy,
        )

    def _mode(self, plan: SamplingPlan) -> str:
        if self._chosen:
            return "chosen"
        return "asynchronous" if plan.off_policy_degree else "synchronous"

    def _shared_waits(self) -> tuple[Wait, ...]:
        elapsed_s = self._until - self._began
        waits = [
            Wait(reason, seconds, seconds / elapsed_s if elapsed_s > 0.0 else 0.0)
            for reason, seconds in self._waits.items()
        ]
        return tuple(sorted(waits, key=lambda wait: -wait.seconds))


def _means(batches: Sequence[TrainingStatistics]) -> LearningNumbers:
    def mean(name: str) -> float | None:
        # A batch from which nothing was learnt has NaN, which must not spread to the mean.
        values = [value for batch in batches if math.isfinite(value := getattr(batch, name))]
        return _mean(sum(values), len(values))

    return LearningNumbers(*(mean(field.name) for field in dataclasses.fields(LearningNumbers)))


def _mean(total: float, count: int) -> float | None:
    return _finite(total / count) if count else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
