"""Running mean and variance, as part of the policy: learnt by the learner, shipped with the weights, frozen in the
actors.
"""

import torch
from torch import Tensor, nn

_EPSILON = 1e-8


class RunningMoments(nn.Module):
    """Mean and variance of everything seen so far, element by element, in double precision.

    Updated with the parallel formula of Chan, Golub & LeVeque (1979). Before the first update it is the identity.
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
    def update(self, values: Tensor) -> None:
        """Takes in values, <float>[N, *shape]."""
        if values.shape[0] == 0:
            return
        values = values.double()
        count = float(values.shape[0])
        mean, variance = values.mean(0), values.var(0, unbiased=False)
        total = self.count + count
        delta = mean - self.mean
        weighted = self.variance * self.count + variance * count + delta.square() * (self.count * count / total)
        self.variance.copy_(weighted / total)
        self.mean.add_(delta * count / total)
        self.count.copy_(total)

    def standardise(self, values: Tensor) -> Tensor:
        """<float32> values less the mean, over the deviation, cut at 10 deviations."""
        mean, scale = self.mean.float(), torch.rsqrt(self.variance.float() + _EPSILON)
        return ((values - mean) * scale).clamp(-10.0, 10.0)

    def scale(self) -> Tensor:
        """<float32>[*shape] one over the standard deviation; 1 before the first update."""
        return torch.rsqrt(self.variance.float() + _EPSILON)
