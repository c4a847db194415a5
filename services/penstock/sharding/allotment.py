"""Who brings how many of a batch's fresh segments, and who is waited for. Bookkeeping; clocks are passed in.

The shards' parts F_i of a batch add up to F, and so do the limits (d + 1) F_i of their gates to the whole gate's. A
shard that others wait for gets less, one that others would wait for gets more. A shard that did not fill its part in
time is *slow*: the others bring all of F, and it keeps a part that its actors' windows fit, so that they can come back;
what it has by the time that the others are ready is taken, and it is waited for again once enough comes. So while a
slow shard comes back, up to (d + 1) of its smallest parts are outstanding beyond (d + 1) F, for some batches.

Called by `rpc.sharded_source` alone, under its lock.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.types import SamplingPlan

_SMOOTHING = 0.1
"""Weight of the newest batch in a shard's speed."""

_RECOVERY = 0.2
"""Weight of the newest batch in how full a slow shard's parts are: four full ones in a row make it one of all again."""

_FULL_ENOUGH = 0.5
_REVIEW_BATCHES = 16
"""Speeds change parts no more often: who loses some has collected for them already, and that comes too late."""

_LONGEST_LEAD = 4.0
"""How much faster than the slowest a shard is taken to be at most, on the word of one batch."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A shard's part of a batch, as it came.

    Attributes:
        waited_s: How long the learner waited before it was there.
        inserted: What its store says that it has taken in altogether, in segments.
        largest_part: The most fresh segments that its store has room for in each batch.
    """

    waited_s: float
    inserted: int
    largest_part: int


@dataclass(slots=True)
class _Shard:
    fresh_segments: int
    speed: float
    filling: float = 1.0
    slow: bool = False
    inserted: int | None = None
    largest_part: int | None = None


class Allotment:
    """The parts of one run's gate."""

    def __init__(self, plan: SamplingPlan, shards: int, largest_window: int) -> None:
        """Equal parts, or as near as can be; `plan` is the whole run's, and `largest_window` as for `review`."""
        self._plan, self._since_review = plan, 0
        self._shards = [_Shard(0, 1.0 / shards) for _ in range(shards)]
        self._apportion(self._shards, largest_window)

    @property
    def fresh_segments(self) -> list[int]:
        """Each shard's part F_i."""
        return [shard.fresh_segments for shard in self._shards]

    def is_slow(self, shard: int) -> bool:
        """Whether batches go without what this shard lacks."""
        return self._shards[shard].slow

    def fell_behind(self, shard: int) -> None:
        """The others have waited long enough for this shard."""
        if not self._shards[shard].slow:
            self._shards[shard].slow, self._shards[shard].filling = True, 0.0
            self._since_review = _REVIEW_BATCHES

    def adopt(self, plan: SamplingPlan) -> None:
        """Another plan for the whole run; the parts follow at the next review."""
        self._plan, self._since_review = plan, _REVIEW_BATCHES

    def observe(self, arrivals: Sequence[Arrival | None], interval_s: float) -> None:
        """Learns from one batch.

        Args:
            arrivals: Of each shard; None where the batch has no part of it.
            interval_s: Since the batch before.
        """
        self._since_review += 1
        for shard, arrival in zip(self._shards, arrivals, strict=True):
            came = 0
            if arrival is not None:
                # A store that was lost counts from 0 again.
                came = max(0, arrival.inserted - (arrival.inserted if shard.inserted is None else shard.inserted))
                shard.inserted, shard.largest_part = arrival.inserted, arrival.largest_part
            # What came too late to be fresh counts too: it shows that there are actors, who keep step once waited for.
            shard.filling += _RECOVERY * (min(1.0, came / shard.fresh_segments) - shard.filling)
            if shard.slow and shard.filling >= _FULL_ENOUGH:
                shard.slow, self._since_review = False, _REVIEW_BATCHES
        self._learn_speeds(arrivals, interval_s)

    def _learn_speeds(self, arrivals: Sequence[Arrival | None], interval_s: float) -> None:
        """A shard that was there by so much before the last would have filled a larger part in the whole interval."""
        here = [
            (shard, arrival.waited_s)
            for shard, arrival in zip(self._shards, arrivals, strict=True)
            if arrival is not None and not shard.slow
        ]
        if len(here) < 2 or interval_s <= 0.0:
            return
        last = max(waited_s for _, waited_s in here)
        taken_s = [max(interval_s - (last - waited_s), interval_s / _LONGEST_LEAD) for _, waited_s in here]
        rates = [shard.fresh_segments / seconds for (shard, _), seconds in zip(here, taken_s, strict=True)]
        known = sum(shard.speed for shard, _ in here)
        for (shard, _), rate in zip(here, rates, strict=True):
            shard.speed += _SMOOTHING * (known * rate / sum(rates) - shard.speed)

    def review(self, largest_window: int) -> bool:
        """Allots the parts anew when it is time; whether any has changed.

        With degree 0 the first parts stay: each must be a multiple of its actors' windows.

        Args:
            largest_window: Segments in the largest window of any actor; every part must have room for it.
        """
        fast = [shard for shard in self._shards if not shard.slow]
        if self._plan.off_policy_degree == 0 or not fast or self._since_review < _REVIEW_BATCHES:
            return False
        self._since_review = 0
        former = self.fresh_segments
        for shard in self._shards:
            shard.fresh_segments = self._smallest(largest_window)
        self._apportion(fast, largest_window)
        return self.fresh_segments != former

    def _apportion(self, shards: Sequence[_Shard], largest_window: int) -> None:
        whole, smallest = self._plan.fresh_segments, self._smallest(largest_window)
        speeds = np.array([shard.speed for shard in shards])
        largest = np.array([whole if shard.largest_part is None else shard.largest_part for shard in shards])
        for shard, part in zip(shards, apportion(whole, speeds, smallest, largest).tolist(), strict=True):
            shard.fresh_segments = part

    def _smallest(self, largest_window: int) -> int:
        degree = self._plan.off_policy_degree
        return max(1, -(-largest_window // degree)) if degree else 1


def apportion(total: int, weights: NDArray[np.float64], smallest: int, largest: NDArray[np.int64]) -> NDArray[np.int64]:
    """<int64>[n] of sum `total` by weight, between the bounds; another sum where the bounds leave no choice."""
    parts, free = np.zeros(weights.size), np.ones(weights.size, np.bool_)
    largest = np.maximum(largest, smallest)
    while free.any():
        rest = total - parts[~free].sum()
        parts[free] = rest * weights[free] / weights[free].sum()
        bounded = np.clip(parts, smallest, largest)
        if (bounded == parts).all():
            break
        # The kind that misses by more stays at its bound, whatever becomes of the others (as CSS divides a line).
        excess = (bounded - parts)[free].sum()
        fixed = free & ((parts <= smallest) if excess > 0.0 else (parts >= largest) if excess < 0.0 else free)
        parts[fixed] = bounded[fixed]
        free &= ~fixed
    whole = np.floor(parts + 1e-9).astype(np.int64)
    missing = min(total, round(parts.sum())) - int(whole.sum())
    for index in np.argsort(whole - parts, kind="stable")[: max(0, missing)].tolist():
        whole[index] += 1
    return whole
