"""Allotment of a batch's fresh segments to shards.

The parts F_i of the shards sum to F, so their gates' limits (d + 1) F_i sum to the limit of a single gate. A shard that
delays batches gets a smaller part, and a shard that is early gets a larger one. A shard that did not fill its part in
time is *slow*. The other shards then provide all of F. The slow shard keeps a part that fits its actors' windows, so
that it can recover: a batch takes the segments it has when the other shards are ready. Batches wait for it again once
its parts are full enough. While a slow shard recovers, up to (d + 1) of its smallest parts are outstanding in excess of
(d + 1) F for some batches.

If the plan weights slots, a shard's part also follows the shares of its slots.

The module does no I/O and takes times as arguments. Callers hold the sharded source's condition.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.gate_law import least_part
from penstock.types.replay import SamplingPlan

_SMOOTHING = 0.1
"""Weight of the newest batch in the average of a shard's speed."""

_RECOVERY = 0.2
"""Weight of the newest batch in a slow shard's average fill. Four full parts in a row end its slow state."""

_FULL_ENOUGH = 0.5
_REVIEW_BATCHES = 16
"""Batches between reviews due to speed. Segments that were collected for a part that shrinks become late."""

_LONGEST_LEAD = 4.0
"""Largest speed, relative to the slowest shard, that a single batch can suggest."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """Timing and counts of a shard's part of a batch.

    Attributes:
        waited_s: Seconds that the learner waited for the part.
        inserted: Segments that the shard's store has inserted in total, as reported with the part.
        largest_part: Maximum number of fresh segments per batch for which the store has room.
    """

    waited_s: float
    inserted: int
    largest_part: int


@dataclass(slots=True)
class _Shard:
    fresh_segments: int
    speed: float
    """Its relative speed: part over time and demand, so that it does not depend on the plan's weights."""
    demand: float = 1.0
    """Mean share of its slots, relative to an equal share."""
    filling: float = 1.0
    slow: bool = False
    inserted: int | None = None
    largest_part: int | None = None


class Allotment:
    """Parts F_i of the fresh segments, one for each shard of a run."""

    def __init__(self, plan: SamplingPlan, shards: int, largest_window: int) -> None:
        """Divides the plan's fresh segments as equally as possible; parts have room for the largest window."""
        self._plan, self._since_review = plan, 0
        self._shards = [_Shard(0, 1.0 / shards) for _ in range(shards)]
        self._weigh()
        self._apportion(self._shards, largest_window)

    @property
    def fresh_segments(self) -> list[int]:
        """Fresh segments per batch of each shard (F_i)."""
        return [shard.fresh_segments for shard in self._shards]

    def is_slow(self, shard: int) -> bool:
        """Returns whether batches are completed without the segments that this shard lacks."""
        return self._shards[shard].slow

    def fell_behind(self, shard: int) -> None:
        """Marks a shard as slow because it kept the others waiting too long."""
        if not self._shards[shard].slow:
            self._shards[shard].slow, self._shards[shard].filling = True, 0.0
            self._since_review = _REVIEW_BATCHES

    def adopt(self, plan: SamplingPlan) -> None:
        """Replaces the plan of the whole run. The parts follow at the next review."""
        self._plan, self._since_review = plan, _REVIEW_BATCHES
        self._weigh()

    def observe(self, arrivals: Sequence[Arrival | None], interval_s: float) -> None:
        """Updates speeds and fill from one batch, `interval_s` seconds after the previous one.

        `arrivals` has the arrival from each shard; None if the shard contributed nothing.
        """
        self._since_review += 1
        for shard, arrival in zip(self._shards, arrivals, strict=True):
            came = 0
            if arrival is not None:
                # A store that was lost counts from 0 again.
                came = max(0, arrival.inserted - (arrival.inserted if shard.inserted is None else shard.inserted))
                shard.inserted, shard.largest_part = arrival.inserted, arrival.largest_part
            # Late segments count too: they show that the shard has actors, which will keep pace once batches wait for
            # them.
            shard.filling += _RECOVERY * (min(1.0, came / shard.fresh_segments) - shard.filling)
            if shard.slow and shard.filling >= _FULL_ENOUGH:
                shard.slow, self._since_review = False, _REVIEW_BATCHES
        self._learn_speeds(arrivals, interval_s)

    def _learn_speeds(self, arrivals: Sequence[Arrival | None], interval_s: float) -> None:
        """Updates the speeds: a shard whose part arrived early could have filled a larger one in the interval."""
        here = [
            (shard, arrival.waited_s)
            for shard, arrival in zip(self._shards, arrivals, strict=True)
            if arrival is not None and not shard.slow
        ]
        if len(here) < 2 or interval_s <= 0.0:
            return
        last = max(waited_s for _, waited_s in here)
        taken_s = [max(interval_s - (last - waited_s), interval_s / _LONGEST_LEAD) for _, waited_s in here]
        rates = [
            shard.fresh_segments / (shard.demand * seconds) for (shard, _), seconds in zip(here, taken_s, strict=True)
        ]
        known = sum(shard.speed for shard, _ in here)
        for (shard, _), rate in zip(here, rates, strict=True):
            shard.speed += _SMOOTHING * (known * rate / sum(rates) - shard.speed)

    def review(self, largest_window: int) -> bool:
        """Divides the fresh segments again if a review is due, and returns whether any part changed.

        Every part has room for a window of `largest_window` segments. With degree 0 the initial parts stay, because
        each must be a multiple of the windows of its actors.
        """
        fast = [shard for shard in self._shards if not shard.slow]
        if self._plan.off_policy_degree == 0 or not fast or self._since_review < _REVIEW_BATCHES:
            return False
        self._since_review = 0
        former = self.fresh_segments
        for shard in self._shards:
            shard.fresh_segments = least_part(self._plan.off_policy_degree, largest_window)
        self._apportion(fast, largest_window)
        return self.fresh_segments != former

    def _weigh(self) -> None:
        """Sets the demands: the weights of slots and the shards repeat after their least common multiple of slots."""
        count = len(self._shards)
        shares = self._plan.relative_shares(range(math.lcm(count, len(self._plan.slot_weights) or 1)))
        for index, shard in enumerate(self._shards):
            shard.demand = float(np.mean(shares[index::count]))

    def _apportion(self, shards: Sequence[_Shard], largest_window: int) -> None:
        whole, smallest = self._plan.fresh_segments, least_part(self._plan.off_policy_degree, largest_window)
        wanted = np.array([shard.speed * shard.demand for shard in shards])
        largest = np.array([whole if shard.largest_part is None else shard.largest_part for shard in shards])
        for shard, part in zip(shards, apportion(whole, wanted, smallest, largest).tolist(), strict=True):
            shard.fresh_segments = part


def apportion(total: int, weights: NDArray[np.float64], smallest: int, largest: NDArray[np.int64]) -> NDArray[np.int64]:
    """Divides `total` in proportion to `weights` into <int64>[n] parts, whose sum differs if the bounds require it."""
    parts, free = np.zeros(weights.size), np.ones(weights.size, np.bool_)
    largest = np.maximum(largest, smallest)
    while free.any():
        rest = total - parts[~free].sum()
        parts[free] = rest * weights[free] / weights[free].sum()
        bounded = np.clip(parts, smallest, largest)
        if (bounded == parts).all():
            break
        # As in CSS flexbox, the bound with the larger total violation is final for the parts that violate it.
        excess = (bounded - parts)[free].sum()
        fixed = free & ((parts <= smallest) if excess > 0.0 else (parts >= largest) if excess < 0.0 else free)
        parts[fixed] = bounded[fixed]
        free &= ~fixed
    whole = np.floor(parts + 1e-9).astype(np.int64)
    missing = min(total, round(parts.sum())) - int(whole.sum())
    for index in np.argsort(whole - parts, kind="stable")[: max(0, missing)].tolist():
        whole[index] += 1
    return whole
