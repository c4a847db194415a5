"""Action distributions as small frozen values: one class per kind of leaf, and `Joint` over the leaves of an action.

A distribution defines log probability, entropy, mode, and samples from given noise. Noise is an argument and is never
drawn here, so an actor's actions depend only on its seed and its steps. The `noise` of a distribution is the only
definition of the random numbers that it takes.

Action masks are exact: an illegal action has probability 0 and gradient 0, and no rounding lets it be drawn. Each
choice needs at least one legal action; without one, its log probabilities are NaN.
"""

import functools
import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from penstock.algo.network import Noise, NoiseKind

_LOG_TWO_PI = math.log(2.0 * math.pi)

_HERMITE_NODES, _HERMITE_WEIGHTS = np.polynomial.hermite_e.hermegauss(24)
_NODES: list[float] = _HERMITE_NODES.tolist()
_WEIGHTS: list[float] = (_HERMITE_WEIGHTS / math.sqrt(2.0 * math.pi)).tolist()
"""Nodes and weights of a Gauss-Hermite quadrature over the standard normal. With 24 nodes, entropies are accurate to
1e-3 nats for standard deviations up to exp(0.7), the largest that a policy gives to squashed actions."""


def unpack_mask(packed: Tensor, bits: int) -> Tensor:
    """Returns the bits, <bool>[..., bits], of packed masks, <uint8>[..., ceil(bits / 8)].

    Bit i is bit i % 8 of byte i // 8, as in `numpy.packbits(masks, axis=-1, bitorder="little")`.
    """
    places = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return (packed.unsqueeze(-1) >> places & 1).flatten(-2)[..., :bits].bool()


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
        log_probs: <float32>[..., n] normalised log probabilities; -inf for illegal actions.
        legal: <bool>[..., n] actions that are legal, or a shape that broadcasts to it. None: all are.
    """

    log_probs: Tensor
    legal: Tensor | None = None

    @classmethod
    def of_logits(cls, logits: Tensor, legal: Tensor | None = None) -> "Categorical":
        """Builds the distribution from unnormalised logits, <float32>[..., n]."""
        if legal is not None:
            logits = torch.where(legal, logits, -math.inf)
        return cls(torch.log_softmax(logits, dim=-1), legal)

    @property
    def noise(self) -> Noise:
        """Random numbers from which one action is sampled."""
        return Noise(NoiseKind.UNIFORM, 1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Returns the log probabilities, <float32>[...], of actions, <int64>[...]."""
        return self.log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """Returns the entropy in nats, <float32>[...]."""
        # The term exp(-inf) * -inf of an illegal action is NaN, and so is its gradient. With 0 in place of -inf, the
        # term is 0, and no gradient passes.
        finite = self.log_probs if self.legal is None else torch.where(self.legal, self.log_probs, 0.0)
        return -(finite.exp() * finite).sum(-1)

    def mode(self) -> Tensor:
        """Returns the most likely action, <int64>[...]."""
        return self.log_probs.argmax(-1)

    def tempered(self, temperature: float) -> "Categorical":
        """Divides the logits by `temperature`. At 1 the distribution is unchanged, bit for bit."""
        return self if temperature == 1.0 else Categorical.of_logits(self.log_probs / temperature, self.legal)

    def sample(self, noise: Tensor) -> Tensor:
        """Samples actions, <int64>[...], by inversion of the cumulative distribution.

        Each is the first legal action whose cumulative probability exceeds its uniform `noise`, <float32>[..., 1], or
        the last legal action if the rounded probabilities sum to less than the noise.
        """
        cumulative = self.log_probs.exp().cumsum(-1)
        if self.legal is None:
            return (cumulative[..., :-1] <= noise).sum(-1)
        # Legality is tested here too, because a parallel cumulative sum may grow by rounding at an illegal action.
        # In int32, because with thousands of actions this is half the time of an actor's step.
        number = torch.arange(cumulative.shape[-1], dtype=torch.int32, device=cumulative.device)
        last = torch.where(self.legal, number, 0).amax(-1, keepdim=True)
        return torch.where((cumulative > noise) & self.legal, number, last).amin(-1).long()


@dataclass(frozen=True, slots=True)
class MultiCategorical:
    """Independent categorical distributions, one per choice of an action that is a vector of k integers.

    Attributes:
        choices: The distribution of each choice, with log probabilities <float32>[..., k, n], where n is the largest
            number of alternatives. The missing alternatives of the other choices are illegal.
    """

    choices: Categorical

    @property
    def noise(self) -> Noise:
        """Random numbers from which one action is sampled."""
        return Noise(NoiseKind.UNIFORM, self.choices.log_probs.shape[-2])

    def log_prob(self, action: Tensor) -> Tensor:
        """Returns the log probabilities, <float32>[...], of actions, <int64>[..., k]."""
        return self.choices.log_prob(action).sum(-1)

    def entropy(self) -> Tensor:
        """Returns the entropy in nats, <float32>[...]."""
        return self.choices.entropy().sum(-1)

    def mode(self) -> Tensor:
        """Returns the most likely action, <int64>[..., k]."""
        return self.choices.mode()

    def tempered(self, temperature: float) -> "MultiCategorical":
        """Divides the logits by `temperature`. At 1 the distribution is unchanged, bit for bit."""
        return self if temperature == 1.0 else MultiCategorical(self.choices.tempered(temperature))

    def sample(self, noise: Tensor) -> Tensor:
        """Samples actions, <int64>[..., k], from uniform `noise`, <float32>[..., k]."""
        return self.choices.sample(noise.unsqueeze(-1))


@dataclass(frozen=True, slots=True)
class DiagonalGaussian:
    """Gaussian over real vectors of A independent elements.

    Attributes:
        mean: <float32>[..., A] means.
        log_std: <float32>[..., A] log standard deviations, or a shape that broadcasts to it.
    """

    mean: Tensor
    log_std: Tensor

    @property
    def noise(self) -> Noise:
        """Random numbers from which one action is sampled."""
        return Noise(NoiseKind.NORMAL, self.mean.shape[-1])

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

    Actions and their probabilities are taken before the tanh. The tanh's Jacobian is the same for every policy, so it
    does not change ratios, divergences or gradients of log probabilities. It does change the entropy, which is
    therefore computed for the actions after the tanh. The tanh of the mode is the median of the squashed action.

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


class Part(Protocol):
    """Distribution of one leaf of an action: one of the classes above, or one of the user's (`policies`)."""

    @property
    def noise(self) -> Noise:
        """Random numbers from which one action is sampled."""

    def log_prob(self, action: Tensor, /) -> Tensor:
        """Returns the log probabilities, <float32>[...], of actions.

        Actions are <int64>[...], <int64>[..., k] or <float32>[..., A], as the space of the leaf has them.
        """

    def entropy(self) -> Tensor:
        """Returns the entropy in nats, <float32>[...]."""

    def mode(self) -> Tensor:
        """Returns the action of evaluations, such as the most likely one."""

    def tempered(self, temperature: float, /) -> "Part":
        """Returns the distribution at a temperature, with which actors explore (`actor.highest_temperature`)."""

    def sample(self, noise: Tensor, /) -> Tensor:
        """Returns the actions that `noise`, <float32>[..., noise.size], determines. Draws no other numbers."""


@dataclass(frozen=True, slots=True)
class Joint:
    """Distribution of a whole action: the product of the distributions of its leaves.

    With one part, all results equal the results of the part, bit for bit.
    """

    parts: tuple[Part, ...]

    @property
    def noise(self) -> tuple[Noise, ...]:
        """Random numbers from which each leaf of one action is sampled."""
        return tuple(part.noise for part in self.parts)

    def log_prob(self, actions: tuple[Tensor, ...]) -> Tensor:
        """Returns the log probabilities, <float32>[...], of actions, one tensor per leaf."""
        return _total([part.log_prob(action) for part, action in zip(self.parts, actions, strict=True)])

    def entropy(self) -> Tensor:
        """Returns the entropy in nats, <float32>[...]."""
        return _total([part.entropy() for part in self.parts])

    def mode(self) -> tuple[Tensor, ...]:
        """Returns the mode of each leaf."""
        return tuple(part.mode() for part in self.parts)

    def tempered(self, temperature: float) -> "Joint":
        """Tempers each part. At 1 the distribution is unchanged, bit for bit."""
        return self if temperature == 1.0 else Joint(tuple(part.tempered(temperature) for part in self.parts))

    def sample(self, noise: Tensor) -> tuple[Tensor, ...]:
        """Samples each leaf from its part of `noise`, <float32>[..., sum of sizes], in the order of the leaves."""
        if len(self.parts) == 1:
            return (self.parts[0].sample(noise),)
        noises = torch.split(noise, [part.noise.size for part in self.parts], -1)
        return tuple(part.sample(numbers) for part, numbers in zip(self.parts, noises, strict=True))


def _total(terms: list[Tensor]) -> Tensor:
    # `sum` would begin with 0, which changes the bits of -0.
    return functools.reduce(torch.add, terms)
