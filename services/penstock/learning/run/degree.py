"""How far collection runs ahead of training if `sampling.off_policy_degree` is auto.

Data that was collected further ahead is older, and needs more steps. It pays only while the learner would wait for it
otherwise. So the degree begins low, and rises while the learner waits for fresh segments.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

_REVIEW_BATCHES = 8
"""Batches between reviews: enough for the windows that were granted before a change to arrive."""

_STARVING, _BUSY = 0.05, 0.01
"""Shares of the time waiting for fresh segments: above the first, the learner waits; below the second, it does not."""

_EFFECTIVE = 0.3
"""Effective share of fresh data below which it is too old, as in the hint of `penstock status`."""

_HOLD_REVIEWS = 16
"""Reviews until a degree is tried again with which the learner waited, or data was too old."""


@dataclass(slots=True)
class _Seen:
    """Sums since the last review."""

    batches: int = 0
    waited_s: float = 0.0
    elapsed_s: float = 0.0
    effective_share: float = 0.0


class AutomaticDegree:
    """The degree of a session. Used by one thread."""

    def __init__(self, least: int) -> None:
        """Begins with the least degree."""
        self.degree, self._least = least, least
        self._seen, self._reviews = _Seen(), 0
        self._lowered = False
        # Reviews before which the degree neither falls nor rises again.
        self._floor_until = self._ceiling_until = 0

    def observe(self, *, waited_s: float, elapsed_s: float, effective_share: float, most: Callable[[], int]) -> bool:
        """Observes a batch, and returns whether the degree has changed.

        Args:
            waited_s: Seconds that the learner waited for fresh segments.
            elapsed_s: Seconds since the batch before.
            effective_share: Effective sample share of the fresh segments' behaviour weights, 0 to 1.
            most: Returns the largest degree for the present actors and the store.
        """
        seen, former = self._seen, self.degree
        seen.batches += 1
        seen.waited_s += waited_s
        seen.elapsed_s += elapsed_s
        seen.effective_share += effective_share
        if seen.batches == _REVIEW_BATCHES:
            self._seen = _Seen()
            waiting = seen.waited_s / max(seen.elapsed_s, 1e-9)
            self._review(waiting, seen.effective_share / seen.batches, max(self._least, most()))
        return self.degree != former

    def _review(self, waiting: float, effective_share: float, most: int) -> None:
        self._reviews += 1
        lowered, self._lowered = self._lowered, False
        if effective_share < _EFFECTIVE:
            self._ceiling_until = self._reviews + _HOLD_REVIEWS
            self._lower()
        elif waiting > _STARVING and self._reviews >= self._ceiling_until:
            if lowered:
                self._floor_until = self._reviews + _HOLD_REVIEWS
            # With the windows of degree + 1 batches in collection, segments arrived in this share of the time.
            busy = max(1.0 - waiting, 1.0 / (most + 1))
            self.degree = max(self.degree + 1, math.ceil((self.degree + 1) / busy) - 1)
        elif waiting < _BUSY and self._reviews >= self._floor_until:
            self._lower()
        self.degree = min(self.degree, most)

    def _lower(self) -> None:
        if self.degree > self._least:
            self.degree -= 1
            self._lowered = True
