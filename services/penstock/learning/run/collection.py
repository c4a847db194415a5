"""Weights of the environment variants in collection (`sampling.collection`), from running statistics of each variant.

Priority pays where data is collected: Jiang et al. 2021 (Prioritized Level Replay) choose levels by their mean absolute
advantage, and Rutherford et al. 2024 ("No Regrets") by their learnability. Here a variant is a level, and its weight is
the weight of the slots whose actors collect in it. Actors of one variant share its statistics. The gate keeps a least
share for every slot, so that each statistic stays current.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.config import SamplingConfig
from penstock.learning.run.own_curriculum import OwnCurriculum

Returns = Sequence[Sequence[float]]
"""Returns of the newest training episodes of each variant, oldest first; empty for a variant without any."""

_REVIEW_BATCHES = 4
"""Batches between reviews. Weights change slowly, and every change costs a message."""

_RECENT_SEGMENTS = 32
"""Fresh segments of a variant in its mean error: enough to average over an episode or two."""

_RECENT_EPISODES = 20
"""Training episodes of a variant in its mean return and in its success rate."""


class CollectionWeights:
    """Weights of V variants by running statistics. Used by one thread."""

    def __init__(
        self, sampling: SamplingConfig, variants: Sequence[Mapping[str, object]], threshold: float | None
    ) -> None:
        """Begins without statistics, for variants with these arguments.

        `threshold` is the return that counts as solved, if there is one. Raises `ConfigurationError` if a rule of the
        user's own can't be used.
        """
        self._kind, self._threshold, self._batches = sampling.collection, threshold, 0
        self._variants = variants
        self._own = None if sampling.curriculum is None else OwnCurriculum(sampling.curriculum, variants)
        self._errors: list[deque[float]] = [deque(maxlen=_RECENT_SEGMENTS) for _ in variants]

    def observe(self, slots: NDArray[np.uint32], errors: NDArray[np.float64]) -> None:
        """Adds the fresh segments of a batch: <uint32>[F] their slots and <float64>[F] their mean absolute errors.

        Without slots, as from an older replay service, nothing is known of their variants.
        """
        for slot, error in zip(slots.tolist(), errors.tolist(), strict=False):
            self._errors[slot % len(self._errors)].append(error)

    def review(self, recent_returns: Callable[[], Returns], progress: float) -> tuple[float, ...] | None:
        """Counts a batch. Returns new weights with mean 1 by variant every `_REVIEW_BATCHES` batches, else None.

        A rule of the user's own learns the `progress` of the run, 0 to 1. Raises `TrainingFailed` if it fails.
        """
        if self._kind == "equal":
            return None
        self._batches += 1
        if self._batches % _REVIEW_BATCHES:
            return None
        if self._own is not None:
            return normalised([*self._own.choose(self._variants, recent_returns(), self._errors, progress).weights])
        if self._kind == "error":
            return normalised(by_error(self._errors))
        return normalised(by_rule(self._kind, recent_returns(), self._threshold))


Weights = list[float | None]
"""Weights by variant; None for a variant of which nothing is known."""


def by_error(errors: Sequence[Sequence[float]]) -> Weights:
    """Returns the squares of the mean errors of each variant's newest segments.

    The errors of a hopeless and of a solved variant differ by a factor of 2 to 4 only, because values are learnt in all
    of them; squares tell them apart. (Jiang et al. use a power of the rank, which depends on the number of levels.)

    The error of a segment is its mean |D_t| over valid steps (`algo.advantages`), with D_t the sum of temporal
    differences along the trace. On-policy it is the mean absolute GAE, the "L1 value loss" of Jiang et al. 2021, eq. 2.
    """
    means = [_mean(each) for each in errors]
    return [None if mean is None else mean**2 for mean in means]


def by_rule(kind: str, returns: Returns, threshold: float | None) -> Weights:
    """Returns the weights by the rule return or learnability."""
    return (by_return if kind == "return" else by_learnability)(returns, threshold)


def by_return(returns: Returns, threshold: float | None) -> Weights:
    """Returns how far each variant's mean return is below the threshold or, without one, below the best variant's.

    A variant at the goal or above has the weight 0, hence the least share.
    """
    means = [_mean(each[-_RECENT_EPISODES:]) for each in returns]
    known = [mean for mean in means if mean is not None]
    goal = threshold if threshold is not None else max(known, default=0.0)
    return [None if mean is None else max(0.0, goal - mean) for mean in means]


def by_learnability(returns: Returns, threshold: float | None) -> Weights:
    """Returns p (1 - p) for each variant, with p the share of its recent episodes that reached the goal.

    This is the learnability of Rutherford et al. 2024, section 4: 0 for variants that always or never succeed. The goal
    is the threshold or, without one, the median over the recent episodes of all variants, which an episode must exceed.
    """
    recent = [each[-_RECENT_EPISODES:] for each in returns]
    if threshold is None:
        everything = [value for each in recent for value in each]
        goal = float(np.median(everything)) if everything else 0.0
        rates = [_mean([float(value > goal) for value in each]) for each in recent]
    else:
        rates = [_mean([float(value >= threshold) for value in each]) for each in recent]
    return [None if rate is None else rate * (1.0 - rate) for rate in rates]


def normalised(weights: Weights) -> tuple[float, ...]:
    """Returns the weights over their mean. Unknown ones are 1, and all are 1 if the known ones are all 0."""
    known = [weight for weight in weights if weight is not None]
    mean = math.fsum(known) / len(known) if known else 0.0
    if mean <= 0.0:
        return (1.0,) * len(weights)
    return tuple(1.0 if weight is None else weight / mean for weight in weights)


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
