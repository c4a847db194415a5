"""The policy: networks for action and value, with the normalisers, built from an environment's spaces alone."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from penstock.algo.distributions import Categorical, DiagonalGaussian, Distribution
from penstock.algo.normalisation import RunningMoments
from penstock.algo.spaces import check_spaces
from penstock.types import BoxSpace, DiscreteSpace, EnvironmentSpec

_LOG_STD_RANGE = (-5.0, 2.0)
_MAX_SCALED_REWARD = 10.0


@dataclass(frozen=True, slots=True)
class Network:
    """The architecture: everything that, with the spaces, makes a policy.

    Attributes:
        hidden_sizes: Widths of the hidden layers, of policy and of value.
        activation: After each hidden layer.
        initial_log_std: Log standard deviation of continuous actions at the start.
        normalise_observations: Whether observations are standardised.
        normalise_returns: Whether rewards are scaled by the deviation of discounted returns.
    """

    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"
    initial_log_std: float = 0.0
    normalise_observations: bool = True
    normalise_returns: bool = True


class Policy(nn.Module):
    """Separate trunks for action and value over flat observations.

    Discrete actions are counted from 0. Continuous ones are in units of half the action range around its centre where
    the space is bounded, and as they are where it is not; `acting.spaces` turns both into what the environment takes.
    """

    def __init__(self, spec: EnvironmentSpec, network: Network) -> None:
        """Builds the networks with orthogonal initialisation (Saxe et al. 2014), the field's standard for PPO.

        Raises:
            ConfigurationError: As `check_spaces`.
        """
        super().__init__()
        check_spaces(spec)
        assert isinstance(spec.observation, BoxSpace)
        self.spec, self.network = spec, network
        size = spec.observation.shape[0]
        outputs = spec.action.n if isinstance(spec.action, DiscreteSpace) else math.prod(spec.action.shape)
        self.actor = _mlp(size, network, outputs, output_gain=0.01)
        self.critic = _mlp(size, network, 1, output_gain=1.0)
        if isinstance(spec.action, BoxSpace):
            self.log_std = nn.Parameter(torch.full((outputs,), network.initial_log_std))
        self.observation_moments = RunningMoments((size,))
        self.return_moments = RunningMoments(())

    @property
    def noise_size(self) -> int:
        """Numbers of noise that one action takes."""
        return 1 if isinstance(self.spec.action, DiscreteSpace) else math.prod(self.spec.action.shape)

    def distribution(self, observation: Tensor) -> Distribution:
        """The distribution over actions at raw observations, <float32>[..., D]."""
        hidden = self.actor(self._prepare(observation))
        if isinstance(self.spec.action, DiscreteSpace):
            return Categorical.of_logits(hidden)
        return DiagonalGaussian(hidden, self.log_std.clamp(*_LOG_STD_RANGE))

    def value(self, observation: Tensor) -> Tensor:
        """<float32>[...] the value of raw observations, in units of scaled rewards."""
        value: Tensor = self.critic(self._prepare(observation)).squeeze(-1)
        return value

    def scale_rewards(self, reward: Tensor) -> Tensor:
        """Rewards in the units in which values are learnt."""
        if not self.network.normalise_returns:
            return reward
        # The bound is for sparse rewards: the first one meets a deviation that is still almost nothing.
        return (reward * self.return_moments.scale()).clamp(-_MAX_SCALED_REWARD, _MAX_SCALED_REWARD)

    @torch.no_grad()
    def learn_moments(self, observation: Tensor, discounted_return: Tensor) -> None:
        """Takes fresh raw observations, <float32>[N, D], and discounted returns, <float32>[N], into the normalisers."""
        if self.network.normalise_observations:
            self.observation_moments.update(observation)
        if self.network.normalise_returns:
            self.return_moments.update(discounted_return)

    def _prepare(self, observation: Tensor) -> Tensor:
        observation = observation.float()
        return self.observation_moments.standardise(observation) if self.network.normalise_observations else observation


def _mlp(inputs: int, network: Network, outputs: int, *, output_gain: float) -> nn.Sequential:
    activation = nn.Tanh if network.activation == "tanh" else nn.ReLU
    layers: list[nn.Module] = []
    for width in network.hidden_sizes:
        layers += [_linear(inputs, width, math.sqrt(2.0)), activation()]
        inputs = width
    return nn.Sequential(*layers, _linear(inputs, outputs, output_gain))


def _linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer
