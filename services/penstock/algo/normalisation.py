"""Running mean and variance for normalisation.

They are part of the policy: the learner updates them and publishes them with the weights, and actors keep them fixed.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from penstock.algo.limits import MAX_STANDARDISED, VARIANCE_EPSILON
from penstock.algo.ratios import LARGEST_SPREAD

_LARGEST = 1e15
"""Largest plausible magnitude. The square of such a value, and moments of such values, are finite in float32."""


@dataclass(frozen=True, slots=True)
class MomentsUpdate:
    """Effect of one update on the moments.

    `left_out` values were left out because they were not finite or far beyond all others. `scale_change` is the largest
    factor, at least 1, by which the scale of an element that had varied changed.
    """

    left_out: int = 0
    scale_change: float = 1.0


class RunningMoments(nn.Module):
    """Elementwise mean and variance of all values seen so far, in double precision.

    Updates use the parallel formula of Chan, Golub & LeVeque (1979). Before the first update, standardising changes
    nothing. Running moments never forget, so a single absurd value would determine the scale of all later ones. Such
    values are left out (`_typical`).
    """

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def update(self, values: Tensor) -> MomentsUpdate:
        """Updates the moments with values, <float>[N, *shape]. Synchronises with the device."""
        if values.shape[0] == 0:
            return MomentsUpdate()
        values, left_out = self._typical(values.double())
        count = float(values.shape[0])
        mean, variance = values.mean(0), values.var(0, unbiased=False)
        total = self.count + count
        delta = mean - self.mean
        weighted = self.variance * self.count + variance * count + delta.square() * (self.count * count / total)
        change = self._change_to(weighted / total)
        self.variance.copy_(weighted / total)
        self.mean.add_(delta * count / total)
        self.count.copy_(total)
        return MomentsUpdate(left_out, change)

    def _typical(self, values: Tensor) -> tuple[Tensor, int]:
        """Replaces outliers among values, <float64>[N, *shape], by the median of their element, and counts them.

        A value is kept if it is finite, at most 1e15 in magnitude, and no farther from the mean than a million times
        the largest of 1, the standard deviation, and the median distance of these values from the mean. The median
        distance admits a change that most values show. The 1 admits the first reward of a sparse task.
        """
        distance = (values - self.mean).abs()
        known = torch.sqrt(self.variance).clamp(min=1.0)
        # Negated, because every comparison with NaN is false.
        suspicious = ~(distance <= LARGEST_SPREAD * known) | (values.abs() > _LARGEST)
        if not bool(suspicious.any()):
            return values, 0
        possible = torch.where(values.abs() <= _LARGEST, values, torch.nan)
        spread = torch.maximum(known, (possible - self.mean).abs().nanmedian(0).values.nan_to_num(nan=0.0))
        enters = (possible - self.mean).abs() <= LARGEST_SPREAD * spread
        median = torch.where(enters, values, torch.nan).nanmedian(0).values
        replacement = torch.where(median.isnan(), self.mean, median)
        return torch.where(enters, values, replacement), int((~enters).sum())

    def _change_to(self, variance: Tensor) -> float:
        """Returns the largest factor by which the scale grows or shrinks, over elements that have varied before."""
        varied = (self.variance > VARIANCE_EPSILON) & (self.count > 0)
        logarithm = 0.5 * torch.log((variance + VARIANCE_EPSILON) / (self.variance + VARIANCE_EPSILON)).abs()
        return float(torch.where(varied, logarithm, 0.0).amax().exp()) if logarithm.numel() else 1.0

    def standardise(self, values: Tensor) -> Tensor:
        """Standardises values to <float32>, clipped at `MAX_STANDARDISED`; NaN where a value is NaN."""
        return ((values - self.mean.float()) * self.scale()).clamp(-MAX_STANDARDISED, MAX_STANDARDISED)

    def scale(self) -> Tensor:
        """Returns the reciprocal of the standard deviation, <float32>[*shape]; 1 before the first update."""
        # In double precision, because the variance of float32 numbers may overflow float32.
        return torch.rsqrt(self.variance + VARIANCE_EPSILON).float()
