"""Ages and priorities of replayed segments over the last batches. Callers hold the lock of `SessionTotals`."""

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from penstock.types.records import total
from penstock.types.replay import Batch
from penstock.types.statistics import Replayed


@dataclass(frozen=True, slots=True)
class _Sums:
    """Sums over the replayed segments of a batch.

    Attributes:
        segments: Number of segments.
        ages: Ages in versions.
        ages_90: 90th percentile of the ages in versions, once per segment.
        drawn: Estimate of A E[priority] for draws by priority and age, with an A that only ages determine.
        by_age: Estimate of A E[priority] for draws by age alone.
    """

    segments: int
    ages: float
    ages_90: float
    drawn: float
    by_age: float


class RecentlyReplayed:
    """Means over the replayed segments of the last batches."""

    def __init__(self, batches: int) -> None:
        """Begins without segments; keeps the segments of the last `batches` batches that have some."""
        self._recent: deque[_Sums] = deque(maxlen=batches)

    def add(self, batch: Batch, half_life: float) -> None:
        """Adds the replayed segments of a batch, which were drawn with this `sampling.half_life`."""
        ages = batch.ages[batch.fresh_segments :]
        if not ages.size:
            return
        drawn, by_age = _priorities(batch, half_life)
        self._recent.append(
            _Sums(
                segments=ages.size,
                ages=float(ages.sum()),
                ages_90=float(np.quantile(ages, 0.9)) * ages.size,
                drawn=drawn,
                by_age=by_age,
            )
        )

    def means(self) -> Replayed | None:
        """Returns the means; None without segments."""
        if not self._recent:
            return None
        sums = total(self._recent)
        return Replayed(
            age_mean=sums.ages / sums.segments,
            age_90=sums.ages_90 / sums.segments,
            drawn_priority=sums.drawn / sums.by_age if sums.by_age > 0.0 else None,
        )


def _priorities(batch: Batch, half_life: float) -> tuple[float, float]:
    """Returns `drawn` and `by_age` of a batch; 0 and 0 if it has fewer than two replayed segments, or absurd values.

    With the total mass M, a segment is drawn with the probability q = s a / M, where s comes from its priority p and
    a = 2^(-age / half_life). Hence E[a / q] = A, the sum of all a, and E[p a / q] = A times the mean p of draws by age
    alone. The draws are independent, so the mean of p_i a_j / q_j over i != j estimates A E[p] without bias. Sums of
    both over batches are comparable, although priorities shrink during training: A does not depend on them.
    """
    replayed = slice(batch.fresh_segments, None)
    priorities, count = batch.priorities[replayed], batch.priorities[replayed].size
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        weights = 2.0 ** (-batch.ages[replayed] / half_life) / batch.head.probabilities[replayed]
        by_age = float((priorities * weights).mean())
        pairs = float(priorities.sum() * weights.sum() - (priorities * weights).sum())
    if count < 2 or not (math.isfinite(by_age) and math.isfinite(pairs)):
        return 0.0, 0.0
    return pairs / (count * (count - 1)), by_age
