"""Whether segments are drawn as often as their reported probabilities say."""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

BINS = 16


@dataclass
class Proportions:
    """Checks each stratified batch, and gathers one uniformly chosen draw of each for a chi-square.

    A chosen draw came with probability P. Keeping it with probability P_min / P makes every segment equally likely, so
    that what is kept falls evenly on keys modulo `BINS`, which priorities follow, and only if P is the truth.
    """

    random: np.random.Generator
    kept: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, np.int64))
    batches: int = 0
    redrawn: int = 0
    largest_deviation: float = 0.0

    def add(
        self,
        keys: NDArray[np.uint64],
        probabilities: NDArray[np.float64],
        expected: NDArray[np.float64],
        smallest: float,
    ) -> None:
        """Takes the replayed part of a batch.

        Args:
            keys: <uint64>[B].
            probabilities: <float64>[B] as reported.
            expected: <float64>[B] as they follow from the reported priorities.
            smallest: No segment's probability is smaller.

        Raises:
            AssertionError: They contradict one another, or the draws.
        """
        self.batches += 1
        # What was overwritten before it was read is drawn again, when the sum of the masses has become another.
        original = np.isclose(probabilities, expected, rtol=1e-9, atol=0.0)
        self.redrawn += int(not original.all())
        if not np.isclose(probabilities, expected, rtol=0.5, atol=0.0).all():
            raise AssertionError(f"probabilities {probabilities} where {expected} follow from the priorities")
        unique, first, counts = np.unique(keys, return_index=True, return_counts=True)
        deviations = np.abs(counts - keys.size * probabilities[first])
        self.largest_deviation = max(self.largest_deviation, float(deviations.max()))
        allowed = 2.0 if original.all() else 4.0
        if (deviations >= allowed).any():
            worst = int(deviations.argmax())
            raise AssertionError(
                f"key {unique[worst]} was drawn {counts[worst]} times where {keys.size * probabilities[first][worst]}"
                f" were expected"
            )
        chosen = int(self.random.integers(keys.size))
        if self.random.random() * probabilities[chosen] < smallest:
            self.kept[int(keys[chosen]) % BINS] += 1

    @property
    def p_value(self) -> float:
        """How likely a chi-square at least this large is, by Wilson and Hilferty's approximation."""
        expected = self.kept.sum() / BINS
        if expected == 0.0:
            return 0.5
        chi_square, freedom = float(((self.kept - expected) ** 2 / expected).sum()), BINS - 1
        spread = 2.0 / (9.0 * freedom)
        normal = ((chi_square / freedom) ** (1.0 / 3.0) - (1.0 - spread)) / math.sqrt(spread)
        return 0.5 * math.erfc(normal / math.sqrt(2.0))
