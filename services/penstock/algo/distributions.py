"""Action distributions as small frozen values: log probability, entropy, mode, and samples from given noise.

Noise is an argument and is never drawn here, so an actor's actions depend only on its seed and its steps.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_LOG_TWO_PI = math.log(2.0 * math.pi)

_HERMITE_NODES, _HERMITE_WEIGHTS = np.polynomial.hermite_e.hermegauss(24)
_NODES: list[float] = _HERMITE_NODES.tolist()
_WEIGHTS: list[float] = (_HERMITE_WEIGHTS / math.sqrt(2.0 * math.pi)).tolist()
"""Nodes and weights of a Gauss-Hermite quadrature over the standard normal. With 24 nodes, entropies are accurate to
1e-3 nats for standard deviations up to exp(0.7), the largest that a policy gives to squashed actions."""


@functools.cache
def _quadrature(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns the nodes and weights, cached because a CUDA graph can't capture a copy from host memory."""
    # The cached tensors may be used under autograd later.
    with torch.inference_mode(False):
        return torch.tensor(_NODES, dtype=dtype, device=device), torch.tensor(_WEIGHTS, dtype=dtype, device=device)


@dataclass(frozen=True, slots=True)
class Categorical:
    """Categorical distribution over 0, ..., n - 1.

    Attributes:
        log_probs: <float32>[..., n] normalised log probabilities.
    """

    log_probs: Tensor

    @classmethod
    def of_logits(cls, logits: Tensor) -> "Categorical":
        """Builds the distribution from unnormalised logits, <float32>[..., n]."""
        return cls(torch.log_softmax(logits, dim=-1))

    def log_prob(self, action: Tensor) -> Tensor:
        """Returns the log probabilities, <float32>[...], of actions, <int64>[...]."""
        return self.log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """Returns the entropy in nats, <float32>[...]."""
        return -(self.log_probs.exp() * self.log_probs).sum(-1)

    def mode(self) -> Tensor:
        """Returns the most likely action, <int64>[...]."""
        return self.log_probs.argmax(-1)

    def tempered(self, temperature: float) -> "Categorical":
        """Divides the logits by `temperature`. At 1 the distribution is unchanged, bit for bit."""
        return self if temperature == 1.0 else Categorical.of_logits(self.log_probs / temperature)

    def sample(self, noise: Tensor) -> Tensor:
        """Samples actions, <int64>[...], by inversion of the cumulative distribution.

        Each is the first action whose cumulative probability exceeds its uniform `noise`, <float32>[..., 1].
        """
        below = self.log_probs.exp().cumsum(-1)[..., :-1] <= noise
        return below.sum(-1)


@dataclass(frozen=True, slots=True)
class DiagonalGaussian:
    """Gaussian over real vectors of A independent elements.

    Attributes:
        mean: <float32>[..., A] means.
        log_std: <float32>[..., A] log standard deviations, or a shape that broadcasts to it.
    """

    mean: Tensor
    log_std: Tensor

    def log_prob(self, action: Tensor) -> Tensor:
        """Returns the log probabilities, <float32>[...], of actions, <float32>[..., A]."""
        scaled = (action - self.mean) * torch.exp(-self.log_std)
        return (-0.5 * (scaled * scaled + _LOG_TWO_PI) - self.log_std).sum(-1)

    def entropy(self) -> Tensor:
        """Returns the entropy in nats, <float32>[...]."""
        return (self.log_std + 0.5 * (1.0 + _LOG_TWO_PI)).expand_as(self.mean).sum(-1)

    def mode(self) -> Tensor:
        """Returns the mean, <float32>[..., A]."""
        return self.mean

    def tempered(self, temperature: float) -> "DiagonalGaussian":
        """Multiplies the standard deviation by `temperature`. At 1 the distribution is unchanged, bit for bit."""
        return self if temperature == 1.0 else DiagonalGaussian(self.mean, self.log_std + math.log(temperature))

    def sample(self, noise: Tensor) -> Tensor:
        """Samples actions, <float32>[..., A], from standard normal `noise`, <float32>[..., A]."""
        return self.mean + torch.exp(self.log_std) * noise


@dataclass(frozen=True, slots=True)
class SquashedGaussian:
    """Gaussian over real vectors of A independent elements, some of which pass through a tanh.

    Actions and their probabilities are those before the tanh. The tanh's Jacobian is the same for every policy, so it
    does not change ratios, divergences or gradients of log probabilities. It does change the entropy, which is
    therefore that of the actions after the tanh.

    Attributes:
        gaussian: Distribution before the tanh.
        squashed: <bool>[A] elements that pass through the tanh.
    """

    gaussian: DiagonalGaussian
    squashed: Tensor

    def log_prob(self, action: Tensor) -> Tensor:
        """Returns the log probabilities, <float32>[...], of actions before the tanh, <float32>[..., A]."""
        return self.gaussian.log_prob(action)

    def entropy(self) -> Tensor:
        """Returns the entropy after the tanh in nats, <float32>[...].

        It is H(u) + E[log(1 - tanh(u)^2)], by Gauss-Hermite quadrature.
        """
        mean, deviation = self.gaussian.mean.unsqueeze(-1), torch.exp(self.gaussian.log_std).unsqueeze(-1)
        nodes, weights = _quadrature(mean.dtype, mean.device)
        before = mean + deviation * nodes
        # log(1 - tanh(u)^2), without cancellation at large u.
        slope = 2.0 * (math.log(2.0) - before - torch.nn.functional.softplus(-2.0 * before))
        expected = (slope * weights).sum(-1)
        return self.gaussian.entropy() + torch.where(self.squashed, expected, 0.0).sum(-1)

    def mode(self) -> Tensor:
        """Returns the mean before the tanh, <float32>[..., A]. Its tanh is the median of the squashed action."""
        return self.gaussian.mode()

    def tempered(self, temperature: float) -> "SquashedGaussian":
        """Multiplies the standard deviation before the tanh by `temperature`. At 1 the distribution is unchanged."""
        return SquashedGaussian(self.gaussian.tempered(temperature), self.squashed)

    def sample(self, noise: Tensor) -> Tensor:
        """Samples actions before the tanh, <float32>[..., A], from standard normal `noise`, <float32>[..., A]."""
        return self.gaussian.sample(noise)


Distribution = Categorical | DiagonalGaussian | SquashedGaussian
