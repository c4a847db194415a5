"""Running mean and variance, as part of the policy: learnt by the learner, shipped with the weights, frozen in the
actors.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from penstock.algo.ratios import LARGEST_SPREAD

_EPSILON = 1e-8

_LARGEST = 1e15
"""No measurement is larger. Its square is finite in float32, and a moment made of such values too."""


@dataclass(frozen=True, slots=True)
class MomentsUpdate:
    """What an update did to the moments.

    Attributes:
        left_out: Numbers that did not enter, because they were not finite or far beyond all others.
        scale_change: Largest factor, at least 1, by which the scale of an element changed; 1 in the first update, and
            for elements that had been constant.
    """

    left_out: int = 0
    scale_change: float = 1.0


class RunningMoments(nn.Module):
    """Mean and variance of everything seen so far, element by element, in double precision.

    Updated with the parallel formula of Chan, Golub & LeVeque (1979). Before the first update it is the identity. A
    running moment forgets nothing, so one absurd number would decide the scale of all that follow: such numbers are
    left out (`_typical`).
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
        """Takes in values, <float>[N, *shape]; waits for the device."""
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
        """The values, <float64>[N, *shape], with those that must not enter replaced by the median of their element.

        A value enters if it is finite, at most 1e15 in size, and not farther from the mean than a million times the
        largest of 1, the deviation, and the median distance of these values. The last lets a change that most values
        show enter at once, and the first lets the first reward of a sparse task enter.
        """
        distance = (values - self.mean).abs()
        known = torch.sqrt(self.variance).clamp(min=1.0)
        # Not `>`, which is false for NaN.
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
        """How many times larger or smaller the scale becomes, at most over the elements that have varied before."""
        varied = (self.variance > _EPSILON) & (self.count > 0)
        logarithm = 0.5 * torch.log((variance + _EPSILON) / (self.variance + _EPSILON)).abs()
        return float(torch.where(varied, logarithm, 0.0).amax().exp()) if logarithm.numel() else 1.0

    def standardise(self, values: Tensor) -> Tensor:
        """<float32> values less the mean, over the deviation, cut at 10 deviations; NaN where a value is NaN."""
        return ((values - self.mean.float()) * self.scale()).clamp(-10.0, 10.0)

    def scale(self) -> Tensor:
        """<float32>[*shape] one over the standard deviation; 1 before the first update."""
        # In double precision, where no variance of float32 numbers overflows.
        return torch.rsqrt(self.variance + _EPSILON).float()
