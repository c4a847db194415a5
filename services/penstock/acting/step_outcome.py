"""The outcome of one step of several environments."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The outcome of one step of N environments.

    Attributes:
        reward: <float32>[N] raw rewards.
        terminated, truncated: <bool>[N] whether the episode ended, and how.
        valid: <bool>[N] whether the row is trained on; False where it only reset.
    """

    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
