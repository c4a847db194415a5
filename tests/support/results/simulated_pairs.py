"""Simulated steps to a threshold of paired runs, by which tests and benchmarks measure the error rates of verdicts."""

from collections.abc import Iterator

import numpy as np

from penstock.comparing.statistics import Estimate, Values, look, sequential_interval, t_interval, t_quantile

MEDIAN_STEPS, INTERVAL_STEPS = 40_000, 2_000
"""Median of a run's steps to the threshold with settings A, and the steps between evaluations."""

DEVIATION = 0.3
"""Standard deviation of the logarithm of a run's steps. Over the seeds of six presets it was 0.11 to 0.70, median 0.34
(results/presets.json)."""


def pairs(rng: np.random.Generator, comparisons: int, size: int, *, ratio: float, deviation: float) -> Iterator[Values]:
    """Yields the log ratios <float64>[size] of each comparison.

    Steps are log-normal and end at the next evaluation; `ratio` is the one of the medians, B over A.
    """
    for _ in range(comparisons):
        logs = rng.normal(np.log(MEDIAN_STEPS), deviation, (2, size)) + np.array([[0.0], [np.log(ratio)]])
        steps = INTERVAL_STEPS * np.ceil(np.exp(logs) / INTERVAL_STEPS)
        yield np.log(steps[1] / steps[0])


def fixed(values: Values) -> Estimate:
    """Returns the estimate of a comparison whose pairs were fixed in advance."""
    return t_interval(values)


def sequential(values: Values) -> tuple[Estimate, int]:
    """Returns the estimate of a sequential comparison with at most these pairs, and the number of pairs it took."""
    most = len(values)
    return sequential_interval(values, most), look(values, most)


def fixed_power(rng: np.random.Generator, size: int, *, ratio: float, deviation: float, comparisons: int) -> float:
    """Returns the share of comparisons of a fixed number of pairs that find the true direction."""
    values = np.array([*pairs(rng, comparisons, size, ratio=ratio, deviation=deviation)])
    t = values.mean(1) / values.std(1, ddof=1) * np.sqrt(size)
    return float((t * np.sign(np.log(ratio)) > t_quantile(0.975, size - 1)).mean())
