"""Running estimate of the gain of draws by priority, from the replayed segments of some batches.

The estimate is the ratio of `algo.second_moments`. It costs one backward pass for each replayed segment of a batch that
is measured: the 8th and the 16th with replay, and then every 8th to 32nd, so that measurements take a small share of
the time for training.
"""

import numpy as np
from numpy.typing import NDArray

from penstock.algo.second_moments import moments

_UPDATES = 640
"""Gradient steps from one measurement to the next, within `_INTERVALS`. A measurement takes the time of about 20, hence
3% of the time."""

_INTERVALS = (8, 32)
"""Fewest and most batches from one measurement to the next."""

_EARLY = (8, 16)
"""Batches that are always measured, so that short runs have an estimate too."""

_LEAST_SEGMENTS = 4
"""Replayed segments below which a batch is not measured."""

_MEMORY = 0.95
"""Weight of the earlier measurements in the running means: the last 20 measurements count most."""


class PriorityGain:
    """Ratio of second moments, averaged over the measurements. Used by one thread."""

    def __init__(self, alpha: float, epsilon: float, updates: int) -> None:
        """Begins without measurements, for draws with these settings and batches with this number of gradient steps."""
        self._alpha, self._epsilon, self._batches = alpha, epsilon, 0
        fewest, most = _INTERVALS
        self._interval = min(max(_UPDATES // updates, fewest), most)
        self._scores, self._gradients, self._weight = 0.0, 0.0, 0.0

    @property
    def gain(self) -> float | None:
        """Share by which priorities lower the second moment, below 0 if they raise it; None: not measured yet."""
        return 1.0 - self._scores * self._gradients / self._weight**2 if self._weight else None

    def is_due(self, replayed: int) -> bool:
        """Counts a batch with this number of replayed segments, and returns whether they are to be measured."""
        if replayed < _LEAST_SEGMENTS:
            return False
        self._batches += 1
        return self._batches % self._interval == 0 or self._batches in _EARLY

    def observe(
        self, squared: NDArray[np.float64], priorities: NDArray[np.float64], drawn: NDArray[np.float64]
    ) -> None:
        """Adds a measurement of N replayed segments. Without gradients, or with absurd ones, it counts for nothing.

        Args:
            squared: <float64>[N, parts] squared norms of the parts of their gradients.
            priorities: <float64>[N] their raw priorities.
            drawn: <float64>[N] factors of priority in the probabilities with which they were drawn.
        """
        scores = (priorities + self._epsilon) ** self._alpha
        found = moments(squared, scores, drawn)
        if found is None:
            return
        self._scores = _MEMORY * self._scores + found.scores
        self._gradients = _MEMORY * self._gradients + float(np.mean(found.gradients))
        self._weight = _MEMORY * self._weight + 1.0
