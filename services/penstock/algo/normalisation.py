"""Running mean and variance for normalisation.

They are part of the policy: the learner updates them and publishes them with the weights, and actors keep them fixed.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from penstock.algo.advantages import LARGEST_SPREAD
from penstock.algo.network import LEAST_RELATIVE_DEVIATION, LEAST_VARIANCE, MAX_STANDARDISED
from penstock.types.statistics import Features

_COARSE, _CONSTANT = 100.0, 1e-3
"""Standard deviations, in steps of float32 at the mean, below which a feature is coarse, and below which only rounding
of the mean has varied, so that it is constant."""

_ENOUGH_VALUES = 100
"""Fewest values from which features are judged."""

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


@dataclass(frozen=True, slots=True)
class BegunUpdate:
    """Update of moments that has not waited for the device.

    Attributes:
        findings: <float64>[3] whether the values need a closer look, in which case nothing has changed yet, the change
            of the scale, and the number of values left out.
    """

    moments: "RunningMoments"
    values: Tensor
    findings: Tensor

    def end(self, findings: Tensor) -> MomentsUpdate:
        """Completes the update with its findings on the host. Waits for the device if the values are suspicious."""
        suspicious, change, left_out = findings.tolist()
        return self.moments.update(self.values) if suspicious else MomentsUpdate(int(left_out), change)


class RunningMoments(nn.Module):
    """Elementwise mean and variance of all values seen so far, in double precision.

    Updates use the parallel formula of Chan, Golub & LeVeque (1979). Before the first update, standardising changes
    nothing. Running moments never forget, so a single absurd value would determine the scale of all later ones. Such
    values are left out (`_typical`).
    """

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, ...], epsilon: float = 0.0) -> None:
        """Begins without values. `epsilon` is `Network.variance_epsilon`."""
        super().__init__()
        self._epsilon = epsilon
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def update(self, values: Tensor) -> MomentsUpdate:
        """Updates the moments with values, <float>[N, *shape]. Synchronises with the device."""
        begun = self.begin(values, at_once=True)
        return begun.end(begun.findings)

    @torch.no_grad()
    def begin(self, values: Tensor, *, at_once: bool = False) -> BegunUpdate:
        """Updates the moments as `update` does, without waiting for the device, unless values may have to be left out.

        `BegunUpdate.end` completes the update. With `at_once` the moments are complete before, for medians of all
        values.
        """
        doubled = values.double()
        if not values.shape[0]:
            return BegunUpdate(self, values, torch.arange(3, dtype=torch.float64, device=values.device) % 2.0)
        suspicious = left_out = doubled.new_zeros(())
        if at_once:
            doubled, left_out = self._typical(doubled)
        else:
            suspicious = self._is_suspicious(doubled).any().double()
        updated, change = self._with(doubled)
        for held, new in zip(self._held, updated, strict=True):
            held.copy_(torch.where(suspicious > 0.0, held, new))
        return BegunUpdate(self, values, torch.stack([suspicious, change, left_out]))

    @property
    def _held(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.mean, self.variance, self.count

    def _with(self, values: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
        """Returns mean, variance and count with further values, <float64>[N, *shape], and the change of the scale."""
        count = float(values.shape[0])
        mean, variance = values.mean(0), values.var(0, unbiased=False)
        total = self.count + count
        delta = mean - self.mean
        weighted = self.variance * self.count + variance * count + delta.square() * (self.count * count / total)
        updated = self.mean + delta * count / total, weighted / total, total
        return updated, self._change_to(updated[0], updated[1])

    def _typical(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Replaces outliers among values, <float64>[N, *shape], by the median of their element, and counts them.

        A value is kept if it is finite, at most 1e15 in magnitude, and no farther from the mean than a million times
        the largest of 1, the standard deviation, and the median distance of these values from the mean. The median
        distance admits a change that most values show. The 1 admits the first reward of a sparse task.
        """
        known = self._known()
        possible = torch.where(values.abs() <= _LARGEST, values, torch.nan)
        spread = torch.maximum(known, (possible - self.mean).abs().nanmedian(0).values.nan_to_num(nan=0.0))
        enters = (possible - self.mean).abs() <= LARGEST_SPREAD * spread
        median = torch.where(enters, values, torch.nan).nanmedian(0).values
        replacement = torch.where(median.isnan(), self.mean, median)
        return torch.where(enters, values, replacement), (~enters).sum().double()

    def _known(self) -> Tensor:
        return torch.sqrt(self.variance).clamp(min=1.0)

    def _is_suspicious(self, values: Tensor) -> Tensor:
        """Returns which values, <float64>[N, *shape], need the median distance to enter the moments, if they do."""
        distance = (values - self.mean).abs()
        # Negated, because every comparison with NaN is false.
        return ~(distance <= LARGEST_SPREAD * self._known()) | (values.abs() > _LARGEST)

    def _change_to(self, mean: Tensor, variance: Tensor) -> Tensor:
        """Returns the largest factor by which the scale grows or shrinks, over elements that have varied before."""
        before, after = self._denominator(self.mean, self.variance), self._denominator(mean, variance)
        # More than half of the denominator is variance.
        varied = (2.0 * self.variance > before) & (before > LEAST_VARIANCE) & (self.count > 0)
        logarithm = 0.5 * torch.log(after.clamp(min=LEAST_VARIANCE) / before.clamp(min=LEAST_VARIANCE)).abs()
        if not logarithm.numel():
            return logarithm.new_ones(())
        return torch.where(varied, logarithm, 0.0).amax().exp()

    def features(self) -> Features | None:
        """Returns how many elements vary, and how finely; None before 100 values. Synchronises with the device."""
        if not self.mean.ndim or self.count < _ENOUGH_VALUES:
            return None
        step, deviation = torch.finfo(torch.float32).eps * self.mean.abs(), self.variance.sqrt()
        constant = deviation <= _CONSTANT * step
        coarse = ~constant & (deviation < _COARSE * step)
        return Features(self.mean.numel(), int(constant.sum()), int(coarse.sum()))

    def standardise(self, values: Tensor) -> Tensor:
        """Standardises values to <float32>, clipped at `MAX_STANDARDISED`; NaN where a value is NaN."""
        return ((values - self.mean.float()) * self.scale()).clamp(-MAX_STANDARDISED, MAX_STANDARDISED)

    def scale(self) -> Tensor:
        """Returns the reciprocal of the standard deviation, <float32>[*shape]; 1 for a number that was always 0."""
        # In double precision, because the variance of float32 numbers may overflow float32.
        squared = self._denominator(self.mean, self.variance)
        return torch.where(squared > LEAST_VARIANCE, torch.rsqrt(squared), 1.0).float()

    def _denominator(self, mean: Tensor, variance: Tensor) -> Tensor:
        return variance + (self._epsilon or (LEAST_RELATIVE_DEVIATION * mean).square())
