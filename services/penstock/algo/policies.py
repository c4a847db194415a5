"""The policy: networks for action and value, with the normalisers, built from an environment's spaces alone."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from penstock.algo.distributions import Categorical, DiagonalGaussian, Distribution, SquashedGaussian
from penstock.algo.normalisation import RunningMoments
from penstock.algo.spaces import bounded, check_spaces
from penstock.types import BoxSpace, DiscreteSpace, EnvironmentSpec

_LOG_STD_RANGE = (-5.0, 2.0)
_MAX_SCALED_REWARD = 10.0


@dataclass(frozen=True, slots=True)
class Network:
    """The architecture: everything that, with the spaces, makes a policy.

    Attributes:
        hidden_sizes: Widths of the hidden layers, of policy and of value.
        trunk: Whether policy and value have hidden layers of their own, or the same.
        activation: After each hidden layer.
        initial_log_std: Log standard deviation of continuous actions at the start.
        state_dependent_std: Whether that deviation is an output of the network, not a parameter by itself.
        squash_actions: Whether continuous actions are kept within their bounds by a tanh, not by clipping.
        normalise_observations: Whether observations are standardised.
        normalise_returns: Whether rewards are scaled by the deviation of discounted returns.
    """

    hidden_sizes: tuple[int, ...] = (64, 64)
    trunk: Literal["separate", "shared"] = "separate"
    activation: Literal["tanh", "relu"] = "tanh"
    initial_log_std: float = 0.0
    state_dependent_std: bool = False
    squash_actions: bool = False
    normalise_observations: bool = True
    normalise_returns: bool = True


class Policy(nn.Module):
    """Networks for action and value over flat observations.

    Discrete actions are counted from 0. Continuous ones are in units of half the action range around its centre where
    the space is bounded, and as they are where it is not; `acting.spaces` turns both into what the environment takes,
    by way of a tanh if actions are squashed.
    """

    _bounded: Tensor

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
        continuous = isinstance(spec.action, BoxSpace)
        heads = 2 * outputs if continuous and network.state_dependent_std else outputs
        shared = network.trunk == "shared"
        self.trunk = nn.Sequential(*_hidden_layers(size, network)) if shared else nn.Identity()
        self.actor = nn.Sequential(
            *([] if shared else _hidden_layers(size, network)), _output(size, network, heads, 0.01)
        )
        self.critic = nn.Sequential(*([] if shared else _hidden_layers(size, network)), _output(size, network, 1, 1.0))
        if isinstance(spec.action, BoxSpace):
            self.register_buffer("_bounded", torch.from_numpy(bounded(spec.action)), persistent=False)
            if network.state_dependent_std:
                with torch.no_grad():
                    list(self.actor.parameters())[-1][outputs:] = network.initial_log_std
            else:
                self.log_std = nn.Parameter(torch.full((outputs,), network.initial_log_std))
        self.observation_moments = RunningMoments((size,))
        self.return_moments = RunningMoments(())

    @property
    def noise_size(self) -> int:
        """Numbers of noise that one action takes."""
        return 1 if isinstance(self.spec.action, DiscreteSpace) else math.prod(self.spec.action.shape)

    def distribution(self, observation: Tensor) -> Distribution:
        """The distribution over actions at raw observations, <float32>[..., D]."""
        return self._distribution(self._features(observation))

    def value(self, observation: Tensor) -> Tensor:
        """<float32>[...] the value of raw observations, in units of scaled rewards."""
        return self._value(self._features(observation))

    def evaluate(self, observation: Tensor) -> tuple[Distribution, Tensor]:
        """`distribution` and `value` at once, which is half of the work where they share a trunk."""
        features = self._features(observation)
        return self._distribution(features), self._value(features)

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

    def _features(self, observation: Tensor) -> Tensor:
        observation = observation.float()
        if self.network.normalise_observations:
            observation = self.observation_moments.standardise(observation)
        features: Tensor = self.trunk(observation)
        return features

    def _distribution(self, features: Tensor) -> Distribution:
        outputs = self.actor(features)
        if isinstance(self.spec.action, DiscreteSpace):
            return Categorical.of_logits(outputs)
        mean, log_std = outputs.chunk(2, -1) if self.network.state_dependent_std else (outputs, self.log_std)
        gaussian = DiagonalGaussian(mean, log_std.clamp(*_LOG_STD_RANGE))
        return SquashedGaussian(gaussian, self._bounded) if self.network.squash_actions else gaussian

    def _value(self, features: Tensor) -> Tensor:
        value: Tensor = self.critic(features).squeeze(-1)
        return value


def _hidden_layers(inputs: int, network: Network) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for width in network.hidden_sizes:
        # In place: small networks are bound by memory, not by arithmetic.
        activation = nn.Tanh() if network.activation == "tanh" else nn.ReLU(inplace=True)
        layers += [_linear(inputs, width, math.sqrt(2.0)), activation]
        inputs = width
    return layers


def _output(inputs: int, network: Network, outputs: int, gain: float) -> nn.Linear:
    return _linear(network.hidden_sizes[-1] if network.hidden_sizes else inputs, outputs, gain)


def _linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer
