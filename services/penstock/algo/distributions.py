"""Distributions over actions, as small frozen values: log probability, entropy, mode, and samples from given noise.

Noise is an argument, never drawn here, so that an actor's actions are a function of its seed and its steps.
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
"""Of a quadrature over the standard normal; 24 are exact to 1e-3 nats for deviations up to exp(0.7), the largest that a
policy gives to squashed actions."""


@functools.cache
def _quadrature(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Nodes and weights. Made once for a device: a CUDA graph can't hold a copy from Python's memory."""
    # Whoever asks first, autograd may be the next.
    with torch.inference_mode(False):
        return torch.tensor(_NODES, dtype=dtype, device=device), torch.tensor(_WEIGHTS, dtype=dtype, device=device)


@dataclass(frozen=True, slots=True)
class Categorical:
    """Over 0, ..., n - 1.

    Attributes:
        log_probs: <float32>[..., n] normalised.
    """

    log_probs: Tensor

    @classmethod
    def of_logits(cls, logits: Tensor) -> "Categorical":
        """The distribution of unnormalised logits, <float32>[..., n]."""
        return cls(torch.log_softmax(logits, dim=-1))

    def log_prob(self, action: Tensor) -> Tensor:
        """<float32>[...] of <int64>[...] actions."""
        return self.log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """<float32>[...] in nats."""
        return -(self.log_probs.exp() * self.log_probs).sum(-1)

    def mode(self) -> Tensor:
        """<int64>[...] the most likely action."""
        return self.log_probs.argmax(-1)

    def tempered(self, temperature: float) -> "Categorical":
        """The distribution of its logits over `temperature`; itself at 1, bit for bit."""
        return self if temperature == 1.0 else Categorical.of_logits(self.log_probs / temperature)

    def sample(self, noise: Tensor) -> Tensor:
        """<int64>[...] by inversion: the first action whose cumulative probability exceeds `noise`, uniform
        <float32>[..., 1].
        """
        below = self.log_probs.exp().cumsum(-1)[..., :-1] <= noise
        return below.sum(-1)


@dataclass(frozen=True, slots=True)
class DiagonalGaussian:
    """Over real vectors of A independent elements.

    Attributes:
        mean: <float32>[..., A].
        log_std: <float32>[..., A] or broadcastable to it.
    """

    mean: Tensor
    log_std: Tensor

    def log_prob(self, action: Tensor) -> Tensor:
        """<float32>[...] of <float32>[..., A] actions."""
        scaled = (action - self.mean) * torch.exp(-self.log_std)
        return (-0.5 * (scaled * scaled + _LOG_TWO_PI) - self.log_std).sum(-1)

    def entropy(self) -> Tensor:
        """<float32>[...] in nats."""
        return (self.log_std + 0.5 * (1.0 + _LOG_TWO_PI)).expand_as(self.mean).sum(-1)

    def mode(self) -> Tensor:
        """<float32>[..., A] the mean."""
        return self.mean

    def tempered(self, temperature: float) -> "DiagonalGaussian":
        """The distribution with `temperature` times its standard deviation; itself at 1, bit for bit."""
        return self if temperature == 1.0 else DiagonalGaussian(self.mean, self.log_std + math.log(temperature))

    def sample(self, noise: Tensor) -> Tensor:
        """<float32>[..., A] the mean moved by standard normal `noise`, <float32>[..., A]."""
        return self.mean + torch.exp(self.log_std) * noise


@dataclass(frozen=True, slots=True)
class SquashedGaussian:
    """Over real vectors of A independent elements, some of which pass through a tanh on their way to the environment.

    Actions are those before the tanh, and so are their probabilities: its Jacobian is the same whichever policy is
    asked, so that it leaves ratios, divergences and gradients of log probabilities as they are. Not so the entropy,
    which is that of what comes out.

    Attributes:
        gaussian: Before the tanh.
        squashed: <bool>[A] which elements pass through it.
    """

    gaussian: DiagonalGaussian
    squashed: Tensor

    def log_prob(self, action: Tensor) -> Tensor:
        """<float32>[...] of <float32>[..., A] actions before the tanh."""
        return self.gaussian.log_prob(action)

    def entropy(self) -> Tensor:
        """<float32>[...] in nats, of what comes out: H(u) + E[log(1 - tanh(u)^2)], by Gauss-Hermite quadrature."""
        mean, deviation = self.gaussian.mean.unsqueeze(-1), torch.exp(self.gaussian.log_std).unsqueeze(-1)
        nodes, weights = _quadrature(mean.dtype, mean.device)
        before = mean + deviation * nodes
        # log(1 - tanh(u)^2) without the difference that vanishes.
        slope = 2.0 * (math.log(2.0) - before - torch.nn.functional.softplus(-2.0 * before))
        expected = (slope * weights).sum(-1)
        return self.gaussian.entropy() + torch.where(self.squashed, expected, 0.0).sum(-1)

    def mode(self) -> Tensor:
        """<float32>[..., A] the mean before the tanh, which is the median of what comes out."""
        return self.gaussian.mode()

    def tempered(self, temperature: float) -> "SquashedGaussian":
        """The distribution with `temperature` times the standard deviation before the tanh; itself at 1."""
        return SquashedGaussian(self.gaussian.tempered(temperature), self.squashed)

    def sample(self, noise: Tensor) -> Tensor:
        """<float32>[..., A] before the tanh, from standard normal `noise`, <float32>[..., A]."""
        return self.gaussian.sample(noise)


Distribution = Categorical | DiagonalGaussian | SquashedGaussian
