"""Statistics of few runs: means, intervals, and tests that may look at each further pair of runs. Pure functions.

Differences of paired runs are assumed to be normal and independent. So differences of steps are of their logarithms.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
"""Differences of paired runs in the order of their seeds, <float64>[N]."""

ERROR = 0.05
"""Probability of a verdict between equal settings, and 1 - the level of all intervals."""

FIRST_LOOK = 4
"""Pairs before the first look of a sequential test. With fewer, equal differences are too frequent, because steps to
the threshold are those of evaluations."""

_PATHS = 200_000
"""Simulated sequences of differences. The standard error of the probability of all looks together is 0.0005."""

_RESAMPLES = 2_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its interval; the ends are infinite where the values are too few for one."""

    mean: float
    low: float
    high: float

    @property
    def sign(self) -> int:
        """1 or -1 if the interval has only numbers of this sign, else 0."""
        return int(self.low > 0.0) - int(self.high < 0.0)

    def exponential(self) -> "Estimate":
        """Returns the geometric mean and its interval, from those of logarithms."""
        return Estimate(*(_exponential(each) for each in (self.mean, self.low, self.high)))


def interquartile_mean(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the mean of the middle half of the last axis, <float64>[...] (Agarwal et al. 2021, arXiv 2108.13264)."""
    ordered = np.sort(scores, axis=-1)
    count = ordered.shape[-1]
    # A score on the boundary of a quartile counts partially.
    edges = np.clip(np.arange(count + 1), count / 4, 3 * count / 4)
    result: NDArray[np.float64] = (ordered * np.diff(edges)).sum(-1) / (count / 2)
    return result


def stratified_bootstrap(
    strata: Sequence[NDArray[np.float64]],
    statistic: Callable[..., NDArray[np.float64]],
    *,
    rng: np.random.Generator,
) -> Estimate:
    """Returns a statistic with its percentile interval: each stratum is resampled by itself (Agarwal et al. 2021).

    Args:
        strata: Scores <float64>[N] of each stratum.
        statistic: Function of as many arrays <float64>[..., N], which reduces their last axis.
        rng: Source of the resamples.
    """
    drawn = [scores[rng.integers(len(scores), size=(_RESAMPLES, len(scores)))] for scores in strata]
    low, high = np.quantile(statistic(*drawn), [ERROR / 2, 1 - ERROR / 2])
    return Estimate(float(statistic(*strata)), float(low), float(high))


def t_quantile(probability: float, degrees: int) -> float:
    """Returns a quantile of Student's t distribution, for a probability from 0.5 on and at least one degree of freedom.

    The distribution function is the finite series of Abramowitz and Stegun (1964), 26.7.3 and 26.7.4.
    """
    low, high = 0.0, 1.0
    while _t_distribution(high, degrees) < probability:
        low, high = high, 2.0 * high
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_distribution(middle, degrees) < probability else (low, middle)
    return high


def _t_distribution(t: float, degrees: int) -> float:
    """Returns the probability of a value up to t, which is not negative."""
    angle = math.atan(t / math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    if degrees % 2:
        # cos + 2/3 cos^3 + (2 * 4)/(3 * 5) cos^5 + ... up to cos^(degrees - 2)
        term, total = cosine, 0.0
        for power in range(1, degrees - 1, 2):
            total += term
            term *= cosine**2 * (power + 1) / (power + 2)
        within = 2.0 / math.pi * (angle + sine * total)
    else:
        # 1 + 1/2 cos^2 + (1 * 3)/(2 * 4) cos^4 + ... up to cos^(degrees - 2)
        term, total = 1.0, 0.0
        for power in range(0, degrees - 1, 2):
            total += term
            term *= cosine**2 * (power + 1) / (power + 2)
        within = sine * total
    return (1.0 + within) / 2.0


def t_interval(values: Values) -> Estimate:
    """Returns the mean of values with Student's t interval. One value has none."""
    return _interval(values, t_quantile(1 - ERROR / 2, len(values) - 1) if len(values) > 1 else math.inf)


@functools.lru_cache
def sequential_bounds(most: int) -> tuple[float, ...]:
    """Returns the bounds of |t| by the number of pairs so far, from 0 to `most`; infinite before `FIRST_LOOK`.

    Between equal settings, the probability that t reaches its bound at any look is `ERROR`. Each look adds an equal
    part of it, as by the error spending function of Kim and DeMets (Biometrika 74, 1987) with exponent 1. The law of
    the successive t, which is free of the variance, is simulated, as Shao and Feng (Contemporary Clinical Trials 28,
    2007) do, because the recursive integration of Lan and DeMets (Biometrika 70, 1983) assumes a known variance.

    Raises `ValueError` if `most` is below `FIRST_LOOK`.
    """
    if most < FIRST_LOOK:
        raise ValueError(f"a sequential test needs at least {FIRST_LOOK} pairs; got {most}")
    rng = np.random.default_rng(0)
    sums, squares = np.zeros(_PATHS), np.zeros(_PATHS)
    bounds, spent = [math.inf], 0
    for count in range(1, most + 1):
        drawn = rng.standard_normal(len(sums))
        sums, squares = sums + drawn, squares + drawn**2
        if count < FIRST_LOOK:
            bounds.append(math.inf)
            continue
        part = (count - FIRST_LOOK + 1) / (most - FIRST_LOOK + 1)
        spend, spent = round(ERROR * part * _PATHS) - spent, round(ERROR * part * _PATHS)
        t = np.abs(sums) / np.sqrt((squares - sums**2 / count) / (count - 1) * count)
        bound = float(np.partition(t, -spend)[-spend])
        bounds.append(bound)
        sums, squares = sums[t < bound], squares[t < bound]
    return tuple(bounds)


def sequential_interval(values: Values, most: int) -> Estimate:
    """Returns the mean of values at the first look that decides, or at the last one so far, with its interval there.

    It is a repeated confidence interval (Jennison and Turnbull, JRSS B 51, 1989): with probability 1 - `ERROR`, the
    intervals of all looks contain the true mean. A look decides if its interval does not contain 0.

    Args:
        values: Differences of the pairs so far, at most `most`, in the order in which the pairs were planned. The order
            in which they ended depends on their values.
        most: Pairs after which the test ends in any case, chosen before the first one.
    """
    return _interval(values[: look(values, most)], sequential_bounds(most)[look(values, most)])


def look(values: Values, most: int) -> int:
    """Returns the number of pairs at the first look that decides, or at the last one so far."""
    bounds = sequential_bounds(most)
    looks = range(min(FIRST_LOOK, len(values)), len(values))
    return next((count for count in looks if _interval(values[:count], bounds[count]).sign), len(values))


def _interval(values: Values, bound: float) -> Estimate:
    """Returns the mean of values, and the numbers whose t statistic is within the bound."""
    mean = float(values.mean())
    deviation = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    # Equal values say nothing about their deviation.
    half = bound * deviation / math.sqrt(len(values)) if deviation > 0.0 else math.inf
    return Estimate(mean, mean - half, mean + half)


def log_ratios(
    first: Sequence[int | None], second: Sequence[int | None], *, trained: Sequence[tuple[int, int]]
) -> Values:
    """Returns ln(second / first) of steps to a threshold by pair, <float64>[N].

    A run that did not reach it counts with the steps that it trained (`trained`, of both runs). The other run of the
    pair then counts with at most as many, so that equal settings remain equal in distribution.
    """
    pairs = []
    for one, other, steps in zip(first, second, trained, strict=True):
        limit = min(
            (each for each, reached in zip(steps, (one, other), strict=True) if reached is None), default=math.inf
        )
        pairs.append([min(math.inf if each is None else each, limit) for each in (one, other)])
    pair = np.array(pairs, np.float64).reshape(-1, 2)
    ratios: Values = np.log(pair[:, 1] / pair[:, 0])
    return ratios


def mean_return(steps: NDArray[np.float64], returns: NDArray[np.float64], begin: float, end: float) -> float:
    """Returns the area under an evaluation curve between two environment steps, over their distance.

    The curve <float64>[N] is linear between evaluations, and constant before the first and after the last one.
    """
    if begin >= end:
        return float(np.interp(end, steps, returns))
    inner = steps[(steps > begin) & (steps < end)]
    points = np.concatenate([[begin], inner, [end]])
    heights = np.interp(points, steps, returns)
    return float(((heights[1:] + heights[:-1]) / 2 * np.diff(points)).sum() / (end - begin))


def _exponential(value: float) -> float:
    return math.exp(value) if value < math.log(np.finfo(np.float64).max) else math.inf
