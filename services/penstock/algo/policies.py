"""The policy: action and value networks with their normalisers, built from an environment's spaces alone."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from penstock.algo.distributions import Distribution, Noise, action_head
from penstock.algo.normalisation import MomentsUpdate, RunningMoments
from penstock.algo.spaces import check_spaces
from penstock.types.spaces import BoxSpace, EnvironmentSpec, is_image

_MAX_SCALED_REWARD = 10.0
_MAX_OBSERVATION = 1e15
"""Bound on the magnitude of observations that are not standardised. Within it no layer overflows for any weights."""
_CONVOLUTIONS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Channels, kernel and stride of each layer (Mnih et al. 2015)."""


@dataclass(frozen=True, slots=True)
class Network:
    """Architecture of a policy: everything besides the spaces that is needed to build it.

    Attributes:
        hidden_sizes: Widths of the hidden layers of policy and value.
        trunk: Whether policy and value have separate hidden layers or share them.
        activation: Activation function after each hidden layer.
        initial_log_std: Initial log standard deviation of continuous actions.
        state_dependent_std: Whether the standard deviation is an output of the network instead of a separate parameter.
        squash_actions: Whether a tanh, instead of clipping, keeps continuous actions within their bounds.
        normalise_observations: Whether flat observations are standardised. Images are always scaled to [0, 1].
        normalise_returns: Whether rewards are divided by the standard deviation of discounted returns.
    """

    hidden_sizes: tuple[int, ...] = (64, 64)
    trunk: Literal["separate", "shared"] = "separate"
    activation: Literal["tanh", "relu"] = "tanh"
    initial_log_std: float = 0.0
    state_dependent_std: bool = False
    squash_actions: bool = False
    normalise_observations: bool = True
    normalise_returns: bool = True


@dataclass(frozen=True, slots=True)
class MomentsUpdates:
    """Effect of one batch on each of a policy's normalisers."""

    observations: MomentsUpdate
    returns: MomentsUpdate


class Policy(nn.Module):
    """Action and value networks over flat observations, or over images through convolutional layers.

    Discrete actions are numbered from 0. Continuous actions are measured from the centre of the action range in units
    of half the range where the space is bounded, and are unscaled where it is not. `acting.spaces` converts both to the
    environment's actions, through a tanh if actions are squashed.
    """

    def __init__(self, spec: EnvironmentSpec, network: Network) -> None:
        """Builds the networks with orthogonal initialisation (Saxe et al. 2014), the standard for PPO.

        Raises `ConfigurationError` if the spaces are not supported (`check_spaces`).
        """
        super().__init__()
        check_spaces(spec)
        observation = spec.observation
        assert isinstance(observation, BoxSpace)
        self.spec, self.network = spec, network
        self._image = is_image(observation)
        self._head = action_head(
            spec.action,
            initial_log_std=network.initial_log_std,
            state_dependent_std=network.state_dependent_std,
            squash_actions=network.squash_actions,
        )
        shared = network.trunk == "shared"
        trunk, features = _body(observation, network) if shared else ([], 0)
        self.trunk = nn.Sequential(*trunk)

        def head(outputs: int, gain: float) -> nn.Sequential:
            body, width = ([], features) if shared else _body(observation, network)
            return nn.Sequential(*body, _initialised(_Output(width, outputs), gain))

        self.actor, self.critic = head(self._head.outputs, 0.01), head(1, 1.0)
        self._head.initialise(list(self.actor.parameters())[-1])
        self.log_std = self._head.log_std()
        self.observation_moments = RunningMoments(() if self._image else observation.shape)
        self.return_moments = RunningMoments(())

    @property
    def noise(self) -> Noise:
        """Random numbers from which one action is sampled."""
        return self._head.noise

    def distribution(self, observation: Tensor) -> Distribution:
        """Returns the action distribution at raw observations, [..., D] or [..., C, H, W]."""
        return self._distribution(self._features(observation))

    def value(self, observation: Tensor) -> Tensor:
        """Returns the values of raw observations, <float32>[...], in units of scaled rewards."""
        return self._value(self._features(observation))

    def evaluate(self, observation: Tensor) -> tuple[Distribution, Tensor]:
        """Returns `distribution` and `value` together, at half the cost where they share a trunk."""
        features = self._features(observation)
        return self._distribution(features), self._value(features)

    def estimate(self, observation: Tensor) -> tuple[Distribution, Tensor]:
        """Returns `distribution` at the first T rows of observations, [B, T + 1, ...], and `value` at all rows."""
        features = self._features(observation)
        return self._distribution(features[:, :-1]), self._value(features)

    def scale_rewards(self, reward: Tensor) -> Tensor:
        """Converts rewards to the units of the values."""
        if not self.network.normalise_returns:
            return reward
        # Bounded for sparse rewards: the first one is divided by a deviation that is still almost 0.
        return (reward * self.return_moments.scale()).clamp(-_MAX_SCALED_REWARD, _MAX_SCALED_REWARD)

    @torch.no_grad()
    def learn_moments(self, observation: Tensor, discounted_return: Tensor) -> MomentsUpdates:
        """Updates the normalisers with fresh raw observations, [N, ...], and discounted returns, <float32>[N]."""
        standardised = self.network.normalise_observations and not self._image
        return MomentsUpdates(
            observations=self.observation_moments.update(observation) if standardised else MomentsUpdate(),
            returns=self.return_moments.update(discounted_return)
            if self.network.normalise_returns
            else MomentsUpdate(),
        )

    def _features(self, observation: Tensor) -> Tensor:
        if self._image:
            observation = observation * (1.0 / 255.0)
        elif self.network.normalise_observations:
            observation = self.observation_moments.standardise(observation.float())
        else:
            observation = observation.float().clamp(-_MAX_OBSERVATION, _MAX_OBSERVATION)
        features: Tensor = self.trunk(observation)
        return features

    def _distribution(self, features: Tensor) -> Distribution:
        return self._head.distribution(self.actor(features), self.log_std)

    def _value(self, features: Tensor) -> Tensor:
        value: Tensor = self.critic(features).squeeze(-1)
        return value


class Convolutions(nn.Sequential):
    """Convolutional layers from images, <float32>[..., C, H, W], to features, <float32>[..., F]."""

    def __init__(self, space: BoxSpace, activation: Callable[[], nn.Module]) -> None:
        channels, *size = space.shape
        layers: list[nn.Module] = []
        for width, kernel, stride in _CONVOLUTIONS:
            layers += [_initialised(nn.Conv2d(channels, width, kernel, stride), math.sqrt(2.0)), activation()]
            channels, size = width, [(side - kernel) // stride + 1 for side in size]
        super().__init__(*layers, nn.Flatten())
        self.features = channels * math.prod(size)

    def forward(self, images: Tensor) -> Tensor:
        """Convolves images with any number of leading dimensions."""
        # In channels-last order a CPU convolves a third more images per second.
        rows = images.flatten(0, -4).contiguous(memory_format=torch.channels_last)
        features: Tensor = super().forward(rows)  # type: ignore[no-untyped-call]
        return features.view(*images.shape[:-3], self.features)


def _body(space: BoxSpace, network: Network) -> tuple[list[nn.Module], int]:
    """Returns the layers from observations to features, and the number of features."""
    # In place, because small networks are bound by memory, not by arithmetic.
    activation = nn.Tanh if network.activation == "tanh" else functools.partial(nn.ReLU, inplace=True)
    layers: list[nn.Module] = []
    features = space.shape[0]
    if is_image(space):
        layers.append(convolutions := Convolutions(space, activation))
        features = convolutions.features
    for width in network.hidden_sizes:
        layers += [_initialised(nn.Linear(features, width), math.sqrt(2.0)), activation()]
        features = width
    return layers, features


class _Output(nn.Linear):
    """Linear layer that computes in float32 even under autocast.

    The 8 significant bits of bfloat16 are too few for values and for ratios of probabilities.
    """

    def forward(self, hidden: Tensor) -> Tensor:
        if not torch.is_autocast_enabled(hidden.device.type):
            return super().forward(hidden)
        with torch.autocast(hidden.device.type, enabled=False):
            return super().forward(hidden.float())


Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


def _initialised(layer: Layer, gain: float) -> Layer:
    assert layer.bias is not None
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer
