"""How far collection runs ahead of training if `sampling.off_policy_degree` is auto.

Data that was collected further ahead is older, and needs more steps. It pays only while the learner would wait for it
otherwise. So the degree begins low, and rises while the learner waits for fresh segments.
"""

import math
from collections.abc import Callable

from penstock.learning.members.wanted_actors import Work
from penstock.types.statistics import LEAST_EFFECTIVE_SHARE

_FIRST_BATCHES, _REVIEW_BATCHES = 3, 8
"""Batches before the first review, which no change precedes, and between reviews: enough for the windows that were
granted before a change to arrive."""

_STARVING, _BUSY = 0.05, 0.01
"""Shares of the time waiting for fresh segments: above the first, the learner waits; below the second, it does not."""

_HOLD_REVIEWS = 16
"""Reviews until a degree is tried again with which the learner waited, or data was too old."""


class AutomaticDegree:
    """The degree of a session. Used by one thread."""

    def __init__(self, least: int) -> None:
        """Begins with the least degree."""
        self.degree, self._least = least, least
        self._before: Work | None = None
        self._batches, self._effective_shares, self._reviews = 0, 0.0, 0
        self._lowered = False
        # Reviews before which the degree neither falls nor rises again.
        self._floor_until = self._ceiling_until = 0

    def observe(self, effective_share: float, work: Callable[[], Work], most: Callable[[], int]) -> bool:
        """Observes a batch, and returns whether the degree has changed.

        The first batch of a session says nothing: the learner waits for it because actors start.

        Args:
            effective_share: Effective sample share of the fresh segments' behaviour weights, 0 to 1.
            work: Returns the work of the session until now.
            most: Returns the largest degree for the present actors and the store.
        """
        if self._before is None:
            self._before = work()
            return False
        self._batches += 1
        self._effective_shares += effective_share
        if self._batches < (_REVIEW_BATCHES if self._reviews else _FIRST_BATCHES):
            return False
        before, self._before, former = self._before, work(), self.degree
        elapsed_s = self._before.elapsed_s - before.elapsed_s
        waiting = (self._before.starved_s - before.starved_s) / max(elapsed_s, 1e-9)
        self._review(waiting, self._effective_shares / self._batches, max(self._least, most()))
        self._batches, self._effective_shares = 0, 0.0
        return self.degree != former

    def _review(self, waiting: float, effective_share: float, most: int) -> None:
        self._reviews += 1
        lowered, self._lowered = self._lowered, False
        if effective_share < LEAST_EFFECTIVE_SHARE:
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
