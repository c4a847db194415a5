"""Interquartile means and their bootstrap intervals (Agarwal et al. 2021, "Deep RL at the edge of the precipice")."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_RESAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95% interval."""

    mean: float
    low: float
    high: float


def interquartile_mean(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the mean of the middle half of the last axis, <float64>[...]."""
    ordered = np.sort(scores, axis=-1)
    count = ordered.shape[-1]
    # A score on the boundary of a quartile counts partially.
    edges = np.clip(np.arange(count + 1), count / 4, 3 * count / 4)
    result: NDArray[np.float64] = (ordered * np.diff(edges)).sum(-1) / (count / 2)
    return result


def estimate(scores: Sequence[Sequence[float]]) -> Estimate:
    """Estimates the mean over all scores, resampled within each group, because tasks are fixed and seeds are random."""
    groups = [np.array(group, np.float64) for group in scores]
    generator = np.random.default_rng(0)
    drawn = [group[generator.integers(group.size, size=(_RESAMPLES, group.size))] for group in groups]
    low, high = np.quantile(interquartile_mean(np.concatenate(drawn, axis=-1)), [0.025, 0.975])
    return Estimate(float(interquartile_mean(np.concatenate(groups))), float(low), float(high))
