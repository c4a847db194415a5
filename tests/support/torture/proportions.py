"""A test that segments are drawn with their reported probabilities."""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

BINS = 16


@dataclass
class Proportions:
    """Checks each stratified batch, and keeps one uniformly chosen draw of each for a chi-square test.

    A chosen draw has probability P. Keeping it with probability P_min / P makes every segment equally likely. The kept
    draws are therefore uniform over keys modulo `BINS`, on which priorities depend, only if P is correct.
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
        """Adds the replayed part of a batch.

        Args:
            keys: <uint64>[B] keys.
            probabilities: <float64>[B] reported probabilities.
            expected: <float64>[B] probabilities computed from the reported priorities.
            smallest: Lower bound of all segments' probabilities.

        Raises:
            AssertionError: They contradict each other, or the draws.
        """
        self.batches += 1
        # A segment that was overwritten before it was read is drawn again, at a changed sum of the masses.
        original = np.isclose(probabilities, expected, rtol=1e-9, atol=0.0)
        self.redrawn += int(not original.all())
        if not np.isclose(probabilities, expected, rtol=0.5, atol=0.0).all():
            raise AssertionError(f"probabilities {probabilities}, but {expected} follow from the priorities")
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
        """Probability of a chi-square at least this large, by Wilson and Hilferty's approximation."""
        expected = self.kept.sum() / BINS
        if expected == 0.0:
            return 0.5
        chi_square, freedom = float(((self.kept - expected) ** 2 / expected).sum()), BINS - 1
        spread = 2.0 / (9.0 * freedom)
        normal = ((chi_square / freedom) ** (1.0 / 3.0) - (1.0 - spread)) / math.sqrt(spread)
        return 0.5 * math.erfc(normal / math.sqrt(2.0))
