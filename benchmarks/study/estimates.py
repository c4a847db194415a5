"""Ratios with t intervals, over the seeds of a task or over tasks.

A bootstrap over few seeds is too narrow: over five, its 95% interval contains the true mean in 83% of cases. So ratios
have t intervals of their logarithms, over the seeds of a task, or over the means of the tasks for all tasks together.
Fewer than `LEAST` values have none.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.comparing.statistics import t_quantile

LEAST = 5
"""Fewest values that have an interval."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A geometric mean with its 95% t interval, which is None for fewer than `LEAST` values."""

    mean: float
    interval: tuple[float, float] | None


def paired_ratio(pairs: Sequence[tuple[float, float]]) -> Ratio:
    """Estimates the geometric mean of first over second over the seeds of a task.

    Raises `ValueError` if a number is not positive.
    """
    values = np.array(pairs, np.float64)
    if not (values > 0.0).all():
        raise ValueError("a ratio needs positive numbers")
    return _geometric(np.log(values[:, 0] / values[:, 1]))


def over_tasks(ratios: Sequence[Ratio]) -> Ratio:
    """Estimates the geometric mean of the means of tasks. Differences between tasks widen the interval."""
    return _geometric(np.log([each.mean for each in ratios]))


def _geometric(logarithms: NDArray[np.float64]) -> Ratio:
    mean, count = float(logarithms.mean()), logarithms.size
    if count < LEAST:
        return Ratio(math.exp(mean), None)
    half = t_quantile(0.975, count - 1) * float(logarithms.std(ddof=1)) / math.sqrt(count)
    return Ratio(math.exp(mean), (math.exp(mean - half), math.exp(mean + half)))
