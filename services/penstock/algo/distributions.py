"""Action distributions as small frozen values, and the heads that build them from a network's outputs.

A distribution defines log probability, entropy, mode, and samples from given noise. Noise is an argument and is never
drawn here, so an actor's actions depend only on its seed and its steps. `action_head` selects the head of each kind of
action space.
"""

import enum
import functools
import math
from dataclasses import dataclass
from typing import Any, ClassVar, assert_never

import numpy as np
import torch
from torch import Tensor, nn

from penstock.algo.spaces import bounded
from penstock.types.spaces import BoxSpace, DiscreteSpace, Space

_LOG_STD_RANGE = (-5.0, 2.0)
_SQUASHED_LOG_STD_RANGE = (-5.0, 0.7)
"""Narrower than `_LOG_STD_RANGE`, because a larger deviation before a tanh only moves actions to their bounds, and
because `SquashedGaussian.entropy` is accurate only up to this deviation."""
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


class NoiseKind(enum.Enum):
    """Distribution of the random numbers from which actions are sampled."""

    UNIFORM = enum.auto()
    """Uniform in [0, 1)."""
    NORMAL = enum.auto()
    """Standard normal."""


@dataclass(frozen=True, slots=True)
class Noise:
    """Random numbers from which one action is sampled: their distribution, and their number per action."""

    kind: NoiseKind
    size: int


@dataclass(frozen=True, slots=True)
class Categorical:
    """Categorical distribution over 0, ..., n - 1.

    Attributes:
        log_probs: <float32>[..., n] normalised log probabilities.
    """

    NOISE: ClassVar = NoiseKind.UNIFORM

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

    NOISE: ClassVar = NoiseKind.NORMAL

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
class SquashedGaussian(DiagonalGaussian):
    """Gaussian over real vectors of A independent elements, some of which pass through a tanh.

    Actions and their probabilities are those before the tanh. The tanh's Jacobian is the same for every policy, so it
    does not change ratios, divergences or gradients of log probabilities. It does change the entropy, which is
    therefore that of the actions after the tanh. The tanh of the mode is the median of the squashed action.

    Attributes:
        squashed: <bool>[A] elements that pass through the tanh.
    """

    squashed: Tensor

    def entropy(self) -> Tensor:
        """Returns the entropy after the tanh in nats, <float32>[...].

        It is H(u) + E[log(1 - tanh(u)^2)], by Gauss-Hermite quadrature.
        """
        mean, deviation = self.mean.unsqueeze(-1), torch.exp(self.log_std).unsqueeze(-1)
        nodes, weights = _quadrature(mean.dtype, mean.device)
        before = mean + deviation * nodes
        # log(1 - tanh(u)^2), without cancellation at large u.
        slope = 2.0 * (math.log(2.0) - before - torch.nn.functional.softplus(-2.0 * before))
        expected = (slope * weights).sum(-1)
        return DiagonalGaussian.entropy(self) + torch.where(self.squashed, expected, 0.0).sum(-1)

    def tempered(self, temperature: float) -> "SquashedGaussian":
        """Multiplies the standard deviation before the tanh by `temperature`."""
        gaussian = DiagonalGaussian.tempered(self, temperature)
        return SquashedGaussian(gaussian.mean, gaussian.log_std, self.squashed)


Distribution = Categorical | DiagonalGaussian


class CategoricalHead(nn.Module):
    """Head of discrete actions. The network's outputs are one logit per action."""

    def __init__(self, space: DiscreteSpace) -> None:
        super().__init__()
        self.outputs, self.noise = space.n, Noise(Categorical.NOISE, 1)

    def log_std(self) -> None:
        """Returns None: all parameters belong to the network."""

    def initialise(self, bias: Tensor) -> None:
        """Leaves the biases of the network's outputs at 0."""

    def distribution(self, outputs: Tensor, log_std: Tensor | None) -> Categorical:
        """Builds the distribution from <float32>[..., outputs]."""
        return Categorical.of_logits(outputs)


class GaussianHead(nn.Module):
    """Head of continuous actions with A elements.

    The network's outputs are the A means, followed by the A log standard deviations if these depend on the state.
    """

    _bounded: Tensor

    def __init__(self, space: BoxSpace, *, initial_log_std: float, state_dependent_std: bool, squash: bool) -> None:
        super().__init__()
        self.outputs = 2 * space.size if state_dependent_std else space.size
        self.noise = Noise(DiagonalGaussian.NOISE, space.size)
        self._initial_log_std, self._state_dependent_std, self._squash = initial_log_std, state_dependent_std, squash
        self.register_buffer("_bounded", torch.from_numpy(bounded(space)), persistent=False)

    def log_std(self) -> nn.Parameter | None:
        """Returns new log standard deviations, <float32>[A], or None if they are outputs of the network.

        The policy owns them, because its checkpoints name them `log_std`.
        """
        return (
            None if self._state_dependent_std else nn.Parameter(torch.full((self.noise.size,), self._initial_log_std))
        )

    @torch.no_grad()
    def initialise(self, bias: Tensor) -> None:
        """Initialises the biases of the network's outputs, <float32>[outputs], which are 0."""
        bias[self.noise.size :] = self._initial_log_std

    def distribution(self, outputs: Tensor, log_std: Tensor | None) -> DiagonalGaussian:
        """Builds the distribution from <float32>[..., outputs] and the policy's `log_std`."""
        mean, log_std = outputs.chunk(2, -1) if log_std is None else (outputs, log_std)
        if self._squash:
            return SquashedGaussian(mean, bound(log_std, *_SQUASHED_LOG_STD_RANGE), self._bounded)
        return DiagonalGaussian(mean, bound(log_std, *_LOG_STD_RANGE))


ActionHead = CategoricalHead | GaussianHead


def action_head(space: Space, *, initial_log_std: float, state_dependent_std: bool, squash_actions: bool) -> ActionHead:
    """Returns the head for this space of actions. The other arguments are those of `Network`."""
    match space:
        case DiscreteSpace():
            return CategoricalHead(space)
        case BoxSpace():
            return GaussianHead(
                space, initial_log_std=initial_log_std, state_dependent_std=state_dependent_std, squash=squash_actions
            )
        case _:
            assert_never(space)


def bound(values: Tensor, low: float, high: float) -> Tensor:
    """Clamps values of any shape with a gradient that lets values outside the bounds return.

    A plain clamp passes no gradient outside its bounds, so a parameter that momentum carries past a bound stays there.
    Here only gradients that would move a value farther out are dropped.
    """
    if not torch.is_grad_enabled():
        return values.clamp(low, high)
    bounded: Tensor = _Bound.apply(values, low, high)  # type: ignore[no-untyped-call]
    return bounded


class _Bound(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, low: float, high: float) -> Tensor:
        ctx.save_for_backward(values)
        ctx.low, ctx.high = low, high
        return values.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (values,), (gradient,) = ctx.saved_tensors, gradients
        # Descent moves against the gradient.
        outwards = ((values > ctx.high) & (gradient < 0.0)) | ((values < ctx.low) & (gradient > 0.0))
        return torch.where(outwards, 0.0, gradient), None, None
