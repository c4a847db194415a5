"""Distributions over actions, as small frozen values: log probability, entropy, mode, and samples from given noise.

Noise is an argument, never drawn here, so that an actor's actions are a function of its seed and its steps.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_LOG_TWO_PI = math.log(2.0 * math.pi)


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

    def sample(self, noise: Tensor) -> Tensor:
        """<float32>[..., A] the mean moved by standard normal `noise`, <float32>[..., A]."""
        return self.mean + torch.exp(self.log_std) * noise


Distribution = Categorical | DiagonalGaussian
