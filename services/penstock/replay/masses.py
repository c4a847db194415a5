"""Conversion of priority and age to the mass in the sum tree.

    mass_i = (priority_i + epsilon)^alpha * 2^(-age_i / half_life)          age in policy versions

All masses age together, so their common factor is omitted. The tree stores

    (priority_i + epsilon)^alpha * 2^((version_i - reference) / half_life)

and the reference is raised long before a double overflows. Versions are counted by the store's age clock
(`replay.store.ages`), which leaves out skipped numbers.
"""

from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

_LARGEST_MASS = 1e290
"""Upper bound on a mass. It keeps the sum of a store's masses finite for any committed priorities."""

_REBASE_EXPONENT = 256.0
"""Binary exponent at which the reference is raised. Doubles overflow at 1024, and priorities need headroom too."""


@numba.njit("void(float64[::1], int64[::1], float64, float64, float64, int64, float64[::1])", nogil=True, cache=True)
def _masses(priorities, versions, alpha, epsilon, half_life, reference, masses):  # type: ignore[no-untyped-def]
    for index in range(priorities.size):
        exponent = (versions[index] - reference) / half_life
        # Below -1000 the factor is practically 0, and above 1000 the largest mass applies. Unclipped, a mass could be
        # zero times infinity.
        factor = np.exp2(min(max(exponent, -1000.0), 1000.0))
        masses[index] = min((priorities[index] + epsilon) ** alpha * factor, _LARGEST_MASS)


@dataclass(frozen=True, slots=True)
class MassFunction:
    """Computes stored masses.

    Attributes:
        alpha: Exponent of the priority.
        epsilon: Constant added to every priority.
        half_life: Age in versions that halves the mass; infinite if age does not matter.
        reference: Version at which the stored age factor is 1.
    """

    alpha: float
    epsilon: float
    half_life: float
    reference: int

    def masses(self, priorities: NDArray[np.float64], versions: NDArray[np.int64]) -> NDArray[np.float64]:
        """Returns the stored masses <float64>[B] for raw priorities <float64>[B] and acting versions <int64>[B]."""
        priorities, versions = np.ascontiguousarray(priorities, np.float64), np.ascontiguousarray(versions, np.int64)
        masses = np.empty(priorities.size)
        _masses(priorities, versions, self.alpha, self.epsilon, self.half_life, self.reference, masses)
        return masses

    def rebased(self, version: int) -> tuple["MassFunction", float]:
        """Returns a rebased function if one is due, and the factor for all stored masses (1 if not).

        The clock of the store's version becomes the reference.
        """
        exponent = (version - self.reference) / self.half_life
        if exponent < _REBASE_EXPONENT:
            return self, 1.0
        return MassFunction(self.alpha, self.epsilon, self.half_life, version), float(np.exp2(-min(exponent, 1000.0)))
