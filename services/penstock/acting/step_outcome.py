"""What one step of several environments did."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What one step of N environments did.

    Attributes:
        reward: <float32>[N] raw.
        terminated, truncated: <bool>[N].
        valid: <bool>[N] False where the row only reset and is not to be learnt from.
    """

    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
