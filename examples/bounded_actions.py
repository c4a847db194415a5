"""Bounded actions: `penstock train Pendulum-v1 --policy.module examples/bounded_actions.py:Bounded`.

The distribution has no probability outside the range of actions, so none is clipped (Chou, Maturana & Scherer 2017,
"Improving Stochastic Policy Gradients in Continuous Control with Deep Reinforcement Learning using the Beta
Distribution"). It is the distribution of Kumaraswamy (1980). Unlike the Beta distribution, a formula samples it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from penstock.policies import Joint, Noise, NoiseKind, PolicyModule, PolicySpaces


@dataclass(frozen=True, slots=True)
class Kumaraswamy:
    """Distribution over (-1, 1) with parameters a and b, <float32>[..., A]."""

    a: Tensor
    b: Tensor

    @property
    def noise(self) -> Noise:
        """Random numbers from which one action is sampled."""
        return Noise(NoiseKind.UNIFORM, self.a.shape[-1])

    def log_prob(self, action: Tensor) -> Tensor:
        """Returns the log probabilities, <float32>[...], of actions, <float32>[..., A]."""
        share = (0.5 * action + 0.5).clamp(1e-6, 1.0 - 1e-6)
        rest = (self.a - 1.0) * share.log() + (self.b - 1.0) * (-(share**self.a)).log1p()
        return ((0.5 * self.a * self.b).log() + rest).sum(-1)

    def entropy(self) -> Tensor:
        """Returns the entropy in nats, <float32>[...]."""
        harmonic = torch.digamma(self.b + 1.0) + 0.5772156649
        terms = 1.0 - 1.0 / self.b + (1.0 - 1.0 / self.a) * harmonic
        return (terms - (0.5 * self.a * self.b).log()).sum(-1)

    def mode(self) -> Tensor:
        """Returns the median."""
        return self.sample(torch.full_like(self.a, 0.5))

    def tempered(self, temperature: float) -> "Kumaraswamy":
        """Returns a distribution that is nearer to the uniform one above temperature 1."""
        return Kumaraswamy(self.a ** (1.0 / temperature), self.b ** (1.0 / temperature))

    def sample(self, noise: Tensor) -> Tensor:
        """Returns the actions at these quantiles, <float32>[..., A]."""
        share = (1.0 - (1.0 - noise) ** (1.0 / self.b)) ** (1.0 / self.a)
        return 2.0 * share.clamp(1e-6, 1.0 - 1e-6) - 1.0


def layers(inputs: int, outputs: int) -> nn.Module:
    """Returns two hidden layers of 64, and a linear one."""
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs))


class Bounded(PolicyModule):
    """Policy and value with two hidden layers each, for flat observations and one box of actions."""

    def __init__(self, spaces: PolicySpaces) -> None:
        super().__init__()
        ((size,),) = spaces.observation
        self.actor, self.critic = layers(size, 2 * spaces.outputs), layers(size, 1)

    def encode(self, observation: tuple[Tensor, ...], state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Returns the observation for both networks."""
        return observation[0], state

    def outputs(self, features: Tensor) -> Tensor:
        """Returns the logarithms of all a, and then of all b."""
        logarithms: Tensor = self.actor(features)
        return logarithms

    def value(self, features: Tensor) -> Tensor:
        """Returns the values."""
        values: Tensor = self.critic(features).squeeze(-1)
        return values

    def distribution(self, outputs: Tensor, legal: Tensor | None) -> Joint:
        """Returns the distribution of the action, which has one leaf."""
        a, b = outputs.clamp(-3.0, 5.0).exp().chunk(2, -1)
        return Joint((Kumaraswamy(a, b),))
