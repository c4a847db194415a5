"""From priority and age to the mass that the sum tree holds.

    mass_i = [(priority_i + epsilon) 2^(-age_i / half_life)]^alpha          age in policy versions

All masses age together, so the factor they share is left out: what is stored is
(priority + epsilon)^alpha * 2^(alpha * (version - reference) / half_life), and the reference moves up long before a
double overflows. Versions are those of the store's clock (`replay.ages`), which leaves out what was skipped. Called by
`replay.priority_index` alone.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_LARGEST_MASS = 1e290
"""What exceeds it has it: the sum of a store's masses must be finite too, whatever priorities a learner commits."""

_REBASE_EXPONENT = 256.0
"""Binary exponent at which the reference moves; doubles overflow at 1024, and priorities need room too."""


@dataclass(frozen=True, slots=True)
class MassFunction:
    """Computes stored masses.

    Attributes:
        alpha: Exponent of priority and age.
        epsilon: Added to every priority.
        half_life: In versions.
        reference: The version at which the stored age factor is 1.
    """

    alpha: float
    epsilon: float
    half_life: float
    reference: int

    def masses(self, priorities: NDArray[np.float64], versions: NDArray[np.int64]) -> NDArray[np.float64]:
        """<float64>[B] stored masses of <float64>[B] raw priorities and the <int64>[B] versions that acted."""
        exponent = self.alpha * (versions - self.reference) / self.half_life
        # Past -1000 the factor is as good as zero, and past 1000 as good as the largest mass: 0 times infinity is none.
        factor = np.exp2(np.clip(exponent, -1000.0, 1000.0))
        with np.errstate(over="ignore"):
            masses = (priorities + self.epsilon) ** self.alpha * factor
        result: NDArray[np.float64] = np.minimum(masses, _LARGEST_MASS)
        return result

    def rebased(self, version: int) -> tuple["MassFunction", float]:
        """The function with its reference at `version`, if it is time, and the factor for all stored masses (1:
        none).
        """
        exponent = self.alpha * (version - self.reference) / self.half_life
        if exponent < _REBASE_EXPONENT:
            return self, 1.0
        return MassFunction(self.alpha, self.epsilon, self.half_life, version), float(np.exp2(-min(exponent, 1000.0)))
