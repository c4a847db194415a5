"""Interquartile means, ratios of pairs, and bootstrap intervals (Agarwal et al. 2021, arXiv 2108.13264).

And rank correlations.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_RESAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95% bootstrap interval."""

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


def paired_ratio(pairs: Sequence[Sequence[tuple[float, float]]]) -> Estimate:
    """Estimates the geometric mean of first over second over all pairs, resampled within each group.

    Raises `ValueError` if a number is not positive.
    """
    groups = [np.array(group, np.float64) for group in pairs]
    if not all((group > 0.0).all() for group in groups):
        raise ValueError("a ratio needs positive numbers")
    differences = [np.log(group[:, 0] / group[:, 1]) for group in groups]
    generator = np.random.default_rng(0)
    # The mean of the groups' means, because each group is a task, and all tasks count alike.
    drawn = [each[generator.integers(each.size, size=(_RESAMPLES, each.size))].mean(1) for each in differences]
    low, high = np.quantile(np.mean(drawn, axis=0), [0.025, 0.975])
    middle = float(np.mean([each.mean() for each in differences]))
    return Estimate(float(np.exp(middle)), float(np.exp(low)), float(np.exp(high)))


def rank_correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Returns Spearman's rank correlation of two columns <float64>[N] without ties."""
    ours, theirs = (np.argsort(np.argsort(each)) for each in (one, other))
    return float(np.corrcoef(ours, theirs)[0, 1])
