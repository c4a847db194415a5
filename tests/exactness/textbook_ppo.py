"""Textbook PPO: one synchronous loop in one process, without code of Penstock's package.

It has what `examples/penstock_in_one_file.py` lacks: other spaces, masks and memory, and estimates without V-trace.

It follows Schulman et al. (2017) with generalized advantage estimation (2016), on vectorised environments in NEXT_STEP
autoreset mode. The gradients of the value's network and of the rest are clipped apart. Illegal actions are masked as by
Huang & Ontañón (2022). A policy with memory has a GRU (Cho et al. 2014) or an LSTM (Hochreiter & Schmidhuber 1997); it
is trained on whole segments from their stored states, as in R2D2 (Kapturowski et al. 2019). The caller provides the
noise (uniform for discrete actions, standard normal for continuous ones), the seeds of resets and the memory layout of
the parameters. Random streams are not part of the algorithm, and
the rounding of a vectorised sum depends on its start address.

Shapes have N environments, T steps of a rollout, b steps of burn-in (0 without memory), F features of an observation,
A actions, and H units of memory.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray
from torch import Tensor, nn

from examples.penstock_in_one_file import Moments

Noise = Callable[[int], NDArray[np.float32]]
"""Function from the steps taken to the noise of the next actions, <float32>[N, T, size]."""

Layout = Callable[[nn.Module], nn.Parameter]
"""Function that moves the parameters of a module into one tensor."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Hyperparameters with their names in the papers."""

    env_id: str
    env_kwargs: dict[str, Any]
    environments: int
    steps: int
    seed: int
    hidden_sizes: tuple[int, ...]
    activation: str
    memory: str | None
    memory_size: int
    burn_in: int
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


class Features:
    """Flattens observations: the leaves of a Dict in its order, numbers as they are, and integers as one-hot codes.

    `numbers`, <bool>[F], are the features that are numbers, which alone are standardised.
    """

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        self.leaves = list(space.values()) if isinstance(space, Dict) else [space]
        self.numbers = torch.tensor(
            [isinstance(leaf, Box) for leaf in self.leaves for _ in range(gymnasium.spaces.flatdim(leaf))]
        )

    def __call__(self, observation: Any) -> Tensor:
        """Returns <float32>[N, F] of a batch of N observations."""
        batches = list(observation.values()) if isinstance(observation, dict) else [observation]
        return torch.from_numpy(
            np.concatenate([self.flat(*each) for each in zip(self.leaves, batches, strict=True)], 1)
        )

    @staticmethod
    def flat(leaf: gymnasium.Space[Any], values: NDArray[Any]) -> NDArray[np.float32]:
        if isinstance(leaf, Discrete):
            codes: NDArray[np.float32] = np.eye(leaf.n, dtype=np.float32)[values - leaf.start]
            return codes
        return values.reshape(len(values), -1).astype(np.float32)


def orthogonal(layer: nn.Linear, gain: float) -> nn.Linear:
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class Recurrent(nn.Module):
    """A GRU, whose state is its output, or an LSTM, whose state has two parts: its output and its cell.

    A state is <float32>[N, parts, H]. It is 0 before the first row of an episode.
    """

    def __init__(self, kind: str, features: int, size: int) -> None:
        super().__init__()
        self.kind = kind
        self.parts, gates = {"gru": (1, 3), "lstm": (2, 4)}[kind]
        self.inputs = orthogonal(nn.Linear(features, gates * size), 1.0)
        self.recurrence = orthogonal(nn.Linear(size, gates * size), 1.0)
        # Half of the units keep their state over up to 1000 steps at first (Tallec & Ollivier 2018). The second gate,
        # z or f, keeps the state; in an LSTM the first, i, admits a new one.
        times = torch.linspace(0.0, math.log(1000.0), size // 2 + 1)[1:]
        with torch.no_grad():
            self.inputs.bias.view(gates, size)[1, size - size // 2 :] = times
            if kind == "lstm":
                self.inputs.bias.view(gates, size)[0, size - size // 2 :] = -times

    def forward(self, rows: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the outputs after each of L rows, [N, L, H], and the state after the last one.

        `rows` are [N, L, F], `state` is the state before them, and `first`, <bool>[N, L], are first rows of episodes.
        """
        cell = self.gru if self.kind == "gru" else self.lstm
        outputs = []
        for x, begins in zip(self.inputs(rows).unbind(1), first.unbind(1), strict=True):
            state = torch.where(begins[:, None, None], 0.0, state)
            state = cell(x, self.recurrence(state[:, 0]), state)
            outputs.append(state[:, 0])
        return torch.stack(outputs, 1), state

    @staticmethod
    def gru(x: Tensor, h: Tensor, state: Tensor) -> Tensor:
        (x_r, x_z, x_n), (h_r, h_z, h_n) = x.chunk(3, -1), h.chunk(3, -1)
        r, z = torch.sigmoid(x_r + h_r), torch.sigmoid(x_z + h_z)
        n = torch.tanh(torch.addcmul(x_n, r, h_n))  # x_n + r h_n
        return torch.lerp(n, state[:, 0], z)[:, None]  # (1 - z) n + z state

    @staticmethod
    def lstm(x: Tensor, h: Tensor, state: Tensor) -> Tensor:
        i, f, g, o = (x + h).chunk(4, -1)
        c = torch.sigmoid(f) * state[:, 1] + torch.sigmoid(i) * torch.tanh(g)
        return torch.stack([torch.sigmoid(o) * torch.tanh(c), c], 1)


class ActorCritic(nn.Module):
    """Two networks with orthogonal initialisation: sqrt(2) in hidden layers, 0.01 for the policy, 1 for the value.

    With memory, a recurrent layer precedes both.
    """

    def __init__(self, settings: Settings, features: int, actions: int, *, discrete: bool) -> None:
        super().__init__()
        self.discrete = discrete
        self.memory: Recurrent | None = None
        if settings.memory is not None:
            self.memory = Recurrent(settings.memory, features, settings.memory_size)
            features = settings.memory_size
        self.actor = self._network(settings, features, actions, 0.01)
        self.critic = self._network(settings, features, 1, 1.0)
        if not discrete:
            self.log_std = nn.Parameter(torch.zeros(actions))

    @staticmethod
    def _network(settings: Settings, inputs: int, outputs: int, gain: float) -> nn.Sequential:
        layers: list[nn.Module] = []
        sizes = [inputs, *settings.hidden_sizes, outputs]
        for position, (before, after) in enumerate(itertools.pairwise(sizes)):
            last = position == len(sizes) - 2
            layers.append(orthogonal(nn.Linear(before, after), gain if last else math.sqrt(2.0)))
            if not last:
                layers.append({"tanh": nn.Tanh, "relu": nn.ReLU}[settings.activation]())
        return nn.Sequential(*layers)

    def remember(self, rows: Tensor, state: Tensor, first: Tensor, burn_in: int) -> tuple[Tensor, Tensor]:
        """Returns what actor and critic see after the rows of the burn-in, and the state after all rows.

        The arguments are those of `Recurrent`. Without memory, actor and critic see the rows themselves.
        """
        if self.memory is None:
            return rows, state
        if burn_in:
            with torch.no_grad():
                _, state = self.memory(rows[:, :burn_in], state, first[:, :burn_in])
        outputs, state = self.memory(rows[:, burn_in:], state, first[:, burn_in:])
        return outputs, state

    def value(self, seen: Tensor) -> Tensor:
        values: Tensor = self.critic(seen)
        return values.squeeze(-1)

    def log_prob_and_entropy(self, seen: Tensor, legal: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self.actor(seen)
        if self.discrete:
            log_probs = torch.log_softmax(torch.where(legal, outputs, -math.inf), -1)
            # An illegal action has no part in the entropy: p log p is 0 at p = 0.
            finite = torch.where(legal, log_probs, 0.0)
            entropy = -(finite.exp() * finite).sum(-1)
            return log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1), entropy
        deviations = (action - outputs) * torch.exp(-self.log_std)
        log_prob = (-0.5 * (deviations * deviations + math.log(2.0 * math.pi)) - self.log_std).sum(-1)
        entropy = (self.log_std + 0.5 * (1.0 + math.log(2.0 * math.pi))).expand_as(outputs).sum(-1)
        return log_prob, entropy

    def sample(self, seen: Tensor, legal: Tensor, noise: Tensor) -> Tensor:
        outputs: Tensor = self.actor(seen)
        if self.discrete:
            cumulative = torch.softmax(torch.where(legal, outputs, -math.inf), -1).cumsum(-1)
            # Rounded probabilities may sum to less than the noise.
            last_legal = torch.where(legal, torch.arange(legal.shape[-1]), 0).amax(-1)
            return torch.minimum((cumulative <= noise).sum(-1), last_legal)
        return outputs + torch.exp(self.log_std) * noise


@dataclass(frozen=True, slots=True)
class Rollout:
    """T steps in N environments, after the rows of the burn-in.

    Attributes:
        observations: <float32>[N, b + T + 1, F] features before each step and after the last one.
        first: <bool>[N, b + T + 1] first rows of episodes.
        state: <float32>[N, parts, H] states before the first row.
        legal: <bool>[N, T, A] legal actions.
        actions, log_probs: [N, T, ...] actions, and their log probabilities when they were taken.
        rewards, returns: <float32>[N, T] rewards, and their discounted sums since each episode began.
        terminated, truncated: <bool>[N, T] steps that end an episode.
        valid: <bool>[N, T] False for the step after an episode's last one, which only resets.
    """

    observations: Tensor
    first: Tensor
    state: Tensor
    legal: Tensor
    actions: Tensor
    log_probs: Tensor
    rewards: Tensor
    returns: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """What is optimised on: all valid steps or, with memory, N segments of T steps.

    `counts` are the valid steps of segments. `state` and `first` are as in `Rollout`, but without the last row, and
    matter only with memory.
    """

    observations: Tensor
    legal: Tensor
    actions: Tensor
    log_probs: Tensor
    advantages: Tensor
    targets: Tensor
    counts: Tensor
    state: Tensor
    first: Tensor

    def __getitem__(self, rows: Tensor) -> "Batch":
        return Batch(*(getattr(self, field.name)[rows] for field in dataclasses.fields(self)))


def mean(values: Tensor, counts: Tensor) -> Tensor:
    """Returns the mean of the values, <float32>[steps], or of those that count in segments, <float32>[N, T]."""
    if values.ndim == 1:
        return values.mean()
    return torch.where(counts, values, 0.0).sum() / counts.sum()


def standardised(values: Tensor, counts: Tensor) -> Tensor:
    """Returns values with the mean 0 and the standard deviation 1, over those that count."""
    centred = values - mean(values, counts)
    return centred / (mean(centred.square(), counts).sqrt() + 1e-8)


class TextbookPPO:
    """Trains `model` and the normalisers `observations` and `returns`."""

    def __init__(self, settings: Settings, reset_seeds: Sequence[int], noise: Noise, layout: Layout) -> None:
        self.settings, self.noise = settings, noise
        self.envs = SyncVectorEnv(
            [lambda: gymnasium.make(settings.env_id, **settings.env_kwargs)] * settings.environments,
            autoreset_mode=AutoresetMode.NEXT_STEP,
        )
        space, count = self.envs.single_action_space, settings.environments
        assert isinstance(space, (Box, Discrete))
        self.features, self.discrete = Features(self.envs.single_observation_space), isinstance(space, Discrete)
        size, self.actions = len(self.features.numbers), int(space.n) if isinstance(space, Discrete) else space.shape[0]
        torch.manual_seed(settings.seed)
        self.model = ActorCritic(settings, size, self.actions, discrete=self.discrete)
        self.optimizer = torch.optim.Adam([layout(self.model)], lr=settings.learning_rate, eps=1e-5, fused=True)
        self.shuffling = torch.Generator().manual_seed(settings.seed)
        self.observations = Moments((int(self.features.numbers.sum()),))
        self.returns = Moments(())
        self.ended = np.zeros(count, np.bool_)
        self.observe(*self.envs.reset(seed=list(reset_seeds)))
        self.begins = torch.ones(count, dtype=torch.bool)
        self.state = torch.zeros(count, self.model.memory.parts if self.model.memory else 0, settings.memory_size)
        # What comes before the first rollout does not matter, because an episode begins after it.
        self.before = [(self.observation, self.begins, self.state)] * settings.burn_in
        self.running_return: NDArray[np.float32] = np.zeros(count, np.float32)
        self.steps_taken = 0

    def train(self, iterations: int) -> None:
        for _ in range(iterations):
            self.iterate()

    def observe(self, observation: Any, infos: dict[str, Any]) -> None:
        """Keeps the features and the legal actions of the next row."""
        self.observation = self.features(observation)
        masks = infos.get("action_mask", np.ones((self.settings.environments, self.actions)))
        self.legal = torch.from_numpy(masks != 0)
        # The step after the end of an episode only resets, for every action.
        self.legal[torch.from_numpy(self.ended)] = True

    def iterate(self) -> None:
        """Collects a rollout, estimates advantages, optimises, and updates the normalisers."""
        s, rollout = self.settings, self.collect()
        observations, valid = self.normalised(rollout.observations), rollout.valid
        if s.normalise_returns:
            self.returns.update(rollout.returns[valid])
        with torch.no_grad():
            seen, _ = self.model.remember(observations, rollout.state, rollout.first, s.burn_in)
            values = self.model.value(seen)
        advantages = self.generalized_advantages(values, rollout)
        remembers = s.memory is not None
        batch = Batch(
            observations=observations[:, :-1],
            legal=rollout.legal,
            actions=rollout.actions,
            log_probs=rollout.log_probs,
            advantages=advantages,
            targets=values[:, :-1] + advantages,
            counts=valid,
            state=rollout.state if remembers else valid,
            first=rollout.first[:, :-1] if remembers else valid,
        )
        self.optimise(batch if remembers else batch[valid])
        if s.normalise_observations and self.features.numbers.any():
            self.observations.update(rollout.observations[:, s.burn_in : -1][valid][:, self.features.numbers])

    @torch.no_grad()
    def collect(self) -> Rollout:
        """Takes T steps in N environments."""
        s, shape = self.settings, (self.settings.environments, self.settings.steps)
        noise, past = self.noise(self.steps_taken), list(self.before)
        legal, actions, log_probs = [], [], torch.zeros(shape)
        rewards, returns = torch.zeros(shape), torch.zeros(shape)
        terminated, truncated, valid = (torch.zeros(shape, dtype=torch.bool) for _ in range(3))
        for t in range(s.steps):
            past.append((self.observation, self.begins, self.state))
            legal.append(self.legal)
            row = self.normalised(self.observation)
            seen, self.state = self.model.remember(row[:, None], self.state, self.begins[:, None], burn_in=0)
            action = self.model.sample(seen[:, 0], self.legal, torch.from_numpy(noise[:, t]))
            log_probs[:, t], _ = self.model.log_prob_and_entropy(seen[:, 0], self.legal, action)
            actions.append(action)
            observation, earned, ends, cuts, infos = self.envs.step(self.to_environment(action.numpy()))
            reward = earned.astype(np.float32)
            # The step after the end of an episode only resets, and the next row begins an episode.
            valid[:, t], self.begins = torch.from_numpy(~self.ended), torch.from_numpy(self.ended)
            self.ended = ends | cuts
            self.observe(observation, infos)
            self.running_return = self.running_return * np.float32(s.gamma) + reward
            rewards[:, t], returns[:, t] = torch.from_numpy(reward), torch.from_numpy(self.running_return)
            self.running_return[self.ended] = 0.0
            terminated[:, t], truncated[:, t] = torch.from_numpy(ends), torch.from_numpy(cuts)
        self.steps_taken, self.before = self.steps_taken + s.steps, past[s.steps :]
        rows, first, states = zip(*past, (self.observation, self.begins, self.state), strict=True)
        return Rollout(
            torch.stack(rows, 1),
            torch.stack(first, 1),
            states[0],
            torch.stack(legal, 1),
            torch.stack(actions, 1),
            log_probs,
            rewards,
            returns,
            terminated,
            truncated,
            valid,
        )

    def generalized_advantages(self, values: Tensor, rollout: Rollout) -> Tensor:
        s, rewards, terminated = self.settings, rollout.rewards, rollout.terminated
        if s.normalise_returns:
            # Without an offset, which no task of the comparison has.
            rewards = rewards * self.returns.scale()
        advantages, following = torch.zeros_like(rewards), torch.zeros(s.environments)
        for t in reversed(range(s.steps)):
            bootstrap = s.gamma * (~terminated[:, t]).float() * values[:, t + 1]
            delta = rewards[:, t] + bootstrap - values[:, t]
            continues = (~(terminated[:, t] | rollout.truncated[:, t])).float()
            following = delta + s.gamma * s.gae_lambda * continues * following
            advantages[:, t] = following
        return advantages

    def optimise(self, batch: Batch) -> None:
        s = self.settings
        for _ in range(s.epochs):
            order = torch.randperm(len(batch.actions), generator=self.shuffling)
            for rows in torch.tensor_split(order, s.minibatches):
                part = batch[rows]
                seen, _ = self.model.remember(part.observations, part.state, part.first, s.burn_in)
                log_probs, entropy = self.model.log_prob_and_entropy(seen, part.legal, part.actions)
                ratio = (log_probs - part.log_probs).exp()
                advantage = standardised(part.advantages, part.counts)
                clipped = ratio.clamp(1.0 - s.clip_range, 1.0 + s.clip_range)
                policy_loss = -mean(torch.minimum(ratio * advantage, clipped * advantage), part.counts)
                value_loss = mean(0.5 * (self.model.value(seen) - part.targets).square(), part.counts)
                loss = policy_loss + s.value_coefficient * value_loss
                loss = loss - s.entropy_coefficient * mean(entropy, part.counts)
                self.optimizer.zero_grad(set_to_none=False)
                loss.backward()  # type: ignore[no-untyped-call]
                self.clip_gradient()
                self.optimizer.step()

    def clip_gradient(self) -> None:
        value = list(self.model.critic.parameters())
        rest = [parameter for parameter in self.model.parameters() if all(parameter is not other for other in value)]
        for part in (rest, value):
            gradients = []
            for parameter in part:
                assert parameter.grad is not None
                gradients.append(parameter.grad)
            norm = torch.cat([gradient.flatten() for gradient in gradients]).double().norm().float()
            for gradient in gradients:
                gradient *= (self.settings.max_gradient_norm / (norm + 1e-6)).clamp(max=1.0)

    def normalised(self, rows: Tensor) -> Tensor:
        if not self.settings.normalise_observations:
            return rows
        numbers, result = self.features.numbers, rows.clone()
        centred = rows[..., numbers] - self.observations.mean.float()
        result[..., numbers] = (centred * self.observations.scale()).clamp(-10.0, 10.0)
        return result

    def to_environment(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Converts actions. Continuous ones are learnt in units of half their range, relative to its centre."""
        space = self.envs.single_action_space
        if isinstance(space, Discrete):
            return actions + int(space.start)
        assert isinstance(space, Box)
        half, centre = (space.high - space.low) / 2.0, (space.high + space.low) / 2.0
        clipped: NDArray[Any] = np.clip(actions * half + centre, space.low, space.high)
        return clipped
