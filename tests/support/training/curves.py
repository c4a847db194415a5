"""Figures of learning curves: environment steps and mean evaluation returns, one pair per evaluation."""

from collections.abc import Sequence

import numpy as np

LAST_SHARE = 0.2


def final_return(curve: Sequence[tuple[int, float]], total_steps: int) -> float:
    """Returns the mean of the evaluations in the last fifth of a run; that of the last one if there are none."""
    last = [value for steps, value in curve if steps > (1.0 - LAST_SHARE) * total_steps] or [curve[-1][1]]
    return float(np.mean(last))
