"""The second moment of a gradient estimate when segments are drawn by priority, relative to draws without it.

A batch estimates the mean gradient over the segments that a_i, the factor of age, would draw. Drawn in proportion to
s_i a_i with s_i = (priority_i + epsilon)^alpha, segment i has the weight 1 / s_i, and the second moment changes by

    r = E_a[s] E_a[|g|^2 / s] / E_a[|g|^2]

Below 1, priorities help: 0.5 is worth a batch of twice the size. The smallest r, at s = |g|, is E_a[|g|]^2 / E_a[|g|^2]
(Katharopoulos & Fleuret 2018, section 3.2).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Moments:
    """Factors of r for each part of the gradient, whose product is r.

    Attributes:
        scores: E_a[s], in units of a typical score.
        gradients: E_a[|g|^2 / s] / E_a[|g|^2], in units of its reciprocal, for each part of the gradient.
    """

    scores: float
    gradients: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Mean of r over the parts of the gradient."""
        return self.scores * float(np.mean(self.gradients))


def moments(
    squared: NDArray[np.float64],
    scores: NDArray[np.float64],
    drawn: NDArray[np.float64] | None = None,
    repeats: NDArray[np.int64] | None = None,
) -> Moments | None:
    """Estimates the factors of r from N segments.

    Args:
        squared: <float64>[N, parts] squared norms of the parts of each segment's gradient.
        scores: <float64>[N] positive s_i.
        drawn: <float64>[N] the s_i with which these segments were drawn; None: they were drawn without.
        repeats: <int64>[N] how often each was drawn; None: once.

    Returns:
        The factors; None if no gradient has a part that is not 0, or a number is not finite.
    """
    if not scores.size or not np.isfinite(squared).all() or not np.isfinite(scores).all():
        return None
    weight = (1.0 if repeats is None else repeats) / (np.ones(scores.size) if drawn is None else drawn)
    weight = weight / weight.sum()
    # Only the ratios of scores matter. In these units scores of different times can be averaged.
    relative = scores / np.exp(weight @ np.log(scores))
    second = weight @ squared
    present = second > 0.0
    if not present.any():
        return None
    gradients = (weight / relative) @ squared[:, present] / second[present]
    return Moments(float(weight @ relative), tuple(gradients.tolist()))
