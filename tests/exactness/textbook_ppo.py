"""Textbook PPO: one synchronous loop in one process, without code of Penstock.

It follows Schulman et al. (2017) with generalized advantage estimation (2016), on vectorised environments in NEXT_STEP
autoreset mode. The caller provides the noise, the seeds of resets and the memory layout of the parameters. Random
streams are not part of the algorithm, and the rounding of a vectorised sum depends on its start address.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray
from torch import Tensor, nn

Noise = Callable[[int], NDArray[np.float32]]
"""Function from the number of steps taken to the noise of the next rollout, <float32>[N, T, size]: uniform for discrete
actions, standard normal for continuous ones."""

Layout = Callable[[nn.Module], nn.Parameter]
"""Function that moves the parameters of a module into one tensor."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Hyperparameters with their names in the papers."""

    env_id: str
    environments: int
    steps: int
    seed: int
    hidden_sizes: tuple[int, ...]
    activation: str
    normalise_observations: bool
    normalise_returns: bool
    learning_rate: float
    epochs: int
    minibatches: int
    gamma: float
    gae_lambda: float
    clip_range: float
    value_coefficient: float
    entropy_coefficient: float
    max_gradient_norm: float


class RunningMeanVariance:
    """Running mean and variance by the method of Chan, Golub & LeVeque (1979)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.mean = torch.zeros(shape, dtype=torch.float64)
        self.variance = torch.ones(shape, dtype=torch.float64)
        self.count = 0.0

    def update(self, values: Tensor) -> None:
        count = float(len(values))
        mean, variance = values.double().mean(0), values.double().var(0, unbiased=False)
        delta, total = mean - self.mean, self.count + count
        squares = self.variance * self.count + variance * count + delta.square() * (self.count * count / total)
        self.mean = self.mean + delta * count / total
        self.variance, self.count = squares / total, total

    def inverse_deviation(self) -> Tensor:
        return torch.rsqrt(self.variance + 1e-8).float()


class ActorCritic(nn.Module):
    """Two networks with orthogonal initialisation: sqrt(2) in hidden layers, 0.01 for the policy, 1 for the value."""

    def __init__(self, settings: Settings, observation_size: int, actions: int, *, discrete: bool) -> None:
        super().__init__()
        self.discrete = discrete
        self.actor = self._network(settings, observation_size, actions, 0.01)
        self.critic = self._network(settings, observation_size, 1, 1.0)
        if not discrete:
            self.log_std = nn.Parameter(torch.zeros(actions))

    @staticmethod
    def _network(settings: Settings, inputs: int, outputs: int, gain: float) -> nn.Sequential:
        layers: list[nn.Module] = []
        sizes = [inputs, *settings.hidden_sizes, outputs]
        for position, (before, after) in enumerate(itertools.pairwise(sizes)):
            linear = nn.Linear(before, after)
            last = position == len(sizes) - 2
            nn.init.orthogonal_(linear.weight, gain if last else math.sqrt(2.0))
            nn.init.zeros_(linear.bias)
            layers += [linear] if last else [linear, nn.Tanh() if settings.activation == "tanh" else nn.ReLU()]
        return nn.Sequential(*layers)

    def value(self, observation: Tensor) -> Tensor:
        values: Tensor = self.critic(observation)
        return values.squeeze(-1)

    def log_prob_and_entropy(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self.actor(observation)
        if self.discrete:
            log_probs = torch.log_softmax(outputs, -1)
            entropy = -(log_probs.exp() * log_probs).sum(-1)
            return log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1), entropy
        deviations = (action - outputs) * torch.exp(-self.log_std)
        log_prob = (-0.5 * (deviations * deviations + math.log(2.0 * math.pi)) - self.log_std).sum(-1)
        entropy = (self.log_std + 0.5 * (1.0 + math.log(2.0 * math.pi))).expand_as(outputs).sum(-1)
        return log_prob, entropy

    def sample(self, observation: Tensor, noise: Tensor) -> Tensor:
        outputs: Tensor = self.actor(observation)
        if self.discrete:
            return (torch.softmax(outputs, -1).cumsum(-1)[..., :-1] <= noise).sum(-1)
        return outputs + torch.exp(self.log_std) * noise


class TextbookPPO:
    """Trains `model` and the normalisers `observations` and `returns`."""

    def __init__(self, settings: Settings, reset_seeds: Sequence[int], noise: Noise, layout: Layout) -> None:
        self.settings, self.noise = settings, noise
        self.envs = SyncVectorEnv(
            [lambda: gymnasium.make(settings.env_id)] * settings.environments, autoreset_mode=AutoresetMode.NEXT_STEP
        )
        space, observed = self.envs.single_action_space, self.envs.single_observation_space
        assert isinstance(space, (Box, Discrete)) and isinstance(observed, Box)
        self.discrete = isinstance(space, Discrete)
        size = observed.shape[0]
        actions = int(space.n) if isinstance(space, Discrete) else space.shape[0]
        torch.manual_seed(settings.seed)
        self.model = ActorCritic(settings, size, actions, discrete=self.discrete)
        self.optimizer = torch.optim.Adam([layout(self.model)], lr=settings.learning_rate, eps=1e-5, fused=True)
        self.shuffling = torch.Generator().manual_seed(settings.seed)
        self.observations, self.returns = RunningMeanVariance((size,)), RunningMeanVariance(())
        self.observation, _ = self.envs.reset(seed=list(reset_seeds))
        self.ended = np.zeros(settings.environments, np.bool_)
        self.running_return: NDArray[np.float32] = np.zeros(settings.environments, np.float32)
        self.steps_taken = 0

    def train(self, iterations: int) -> None:
        for _ in range(iterations):
            self.iterate()

    def iterate(self) -> None:
        """Collects a rollout of T steps in N environments and optimises on it."""
        s, shape = self.settings, (self.settings.environments, self.settings.steps)
        noise = self.noise(self.steps_taken)
        raw, rewards, returns = [], torch.zeros(shape), torch.zeros(shape)
        actions, log_probs = [], torch.zeros(shape)
        terminated, truncated, valid = (torch.zeros(shape, dtype=torch.bool) for _ in range(3))
        with torch.no_grad():
            for t in range(s.steps):
                observation = torch.from_numpy(self.observation.copy())
                action = self.model.sample(self.normalised(observation), torch.from_numpy(noise[:, t]))
                log_probs[:, t], _ = self.model.log_prob_and_entropy(self.normalised(observation), action)
                raw.append(observation)
                actions.append(action)
                self.observation, earned, ends, cuts, _ = self.envs.step(self.to_environment(action.numpy()))
                reward = earned.astype(np.float32)
                # The step after the end of an episode only resets.
                valid[:, t] = torch.from_numpy(~self.ended)
                self.ended = ends | cuts
                self.running_return = self.running_return * np.float32(s.gamma) + reward
                rewards[:, t], returns[:, t] = torch.from_numpy(reward), torch.from_numpy(self.running_return)
                self.running_return[self.ended] = 0.0
                terminated[:, t], truncated[:, t] = torch.from_numpy(ends), torch.from_numpy(cuts)
            raw.append(torch.from_numpy(self.observation.copy()))
            observations = torch.stack(raw, 1)
            values = self.model.value(self.normalised(observations))
            advantages = self.generalized_advantages(values, rewards, terminated, truncated)
        self.steps_taken += s.steps
        self.optimise(
            self.normalised(observations[:, :-1][valid]),
            torch.stack(actions, 1)[valid],
            log_probs[valid],
            advantages[valid],
            (values[:, :-1] + advantages)[valid],
        )
        if s.normalise_observations:
            self.observations.update(observations[:, :-1][valid])
        if s.normalise_returns:
            self.returns.update(returns[valid])

    def generalized_advantages(self, values: Tensor, rewards: Tensor, terminated: Tensor, truncated: Tensor) -> Tensor:
        s = self.settings
        if s.normalise_returns:
            rewards = (rewards * self.returns.inverse_deviation()).clamp(-10.0, 10.0)
        advantages, following = torch.zeros_like(rewards), torch.zeros(s.environments)
        for t in reversed(range(s.steps)):
            bootstrap = s.gamma * (~terminated[:, t]).float() * values[:, t + 1]
            delta = rewards[:, t] + bootstrap - values[:, t]
            continues = (~(terminated[:, t] | truncated[:, t])).float()
            following = delta + s.gamma * s.gae_lambda * continues * following
            advantages[:, t] = following
        return advantages

    def optimise(
        self, observations: Tensor, actions: Tensor, old_log_probs: Tensor, advantages: Tensor, targets: Tensor
    ) -> None:
        s = self.settings
        for _ in range(s.epochs):
            order = torch.randperm(len(actions), generator=self.shuffling)
            for rows in torch.tensor_split(order, s.minibatches):
                log_probs, entropy = self.model.log_prob_and_entropy(observations[rows], actions[rows])
                ratio = (log_probs - old_log_probs[rows]).exp()
                advantage = advantages[rows]
                advantage = (advantage - advantage.mean()) / (advantage.std(unbiased=False) + 1e-8)
                clipped = ratio.clamp(1.0 - s.clip_range, 1.0 + s.clip_range)
                policy_loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
                value_loss = (0.5 * (self.model.value(observations[rows]) - targets[rows]).square()).mean()
                loss = policy_loss + s.value_coefficient * value_loss - s.entropy_coefficient * entropy.mean()
                self.optimizer.zero_grad(set_to_none=False)
                loss.backward()  # type: ignore[no-untyped-call]
                self.clip_gradient()
                self.optimizer.step()

    def clip_gradient(self) -> None:
        gradients = []
        for parameter in self.model.parameters():
            assert parameter.grad is not None
            gradients.append(parameter.grad)
        norm = torch.cat([gradient.flatten() for gradient in gradients]).double().norm().float()
        for gradient in gradients:
            gradient *= (self.settings.max_gradient_norm / (norm + 1e-6)).clamp(max=1.0)

    def normalised(self, observations: Tensor) -> Tensor:
        if not self.settings.normalise_observations:
            return observations
        centred = observations - self.observations.mean.float()
        return (centred * self.observations.inverse_deviation()).clamp(-10.0, 10.0)

    def to_environment(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Converts actions. Continuous ones are learnt in units of half their range, relative to its centre."""
        if self.discrete:
            return actions
        space = self.envs.single_action_space
        assert isinstance(space, Box)
        half, centre = (space.high - space.low) / 2.0, (space.high + space.low) / 2.0
        clipped: NDArray[Any] = np.clip(actions * half + centre, space.low, space.high)
        return clipped
