"""The algorithm of Penstock in one file, from top to bottom: PPO from prioritized replay of data with a bounded age.

    python examples/penstock_in_one_file.py --env-id CartPole-v1 --degree 0

It imports nothing of Penstock. Given a run's random numbers, it trains the same parameters, bit for bit
(tests/exactness); the command draws its own. The services add concurrency, transport, recovery from failures, further
spaces and options, masks, memory, and care for absurd or shifted numbers.

Shapes have N environments, T steps of a segment, F features, B segments of a batch, and M steps of a minibatch.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings with the names of Penstock, and the values of its preset `cartpole`. Ages are in versions."""

    env_id: str = "CartPole-v1"
    seed: int = 1
    total_steps: int = 30_000
    environments: int = 16  # N, and the number of fresh segments in a batch
    unroll_length: int = 32  # T
    off_policy_degree: int = 0  # batches that collection may run ahead of training
    fresh_fraction: float = 0.25  # share of fresh segments in a batch
    capacity_segments: int = 4096  # of the store
    alpha: float = 0.6  # exponent of the priority in a draw
    beta: tuple[float, float] = (0.4, 1.0)  # exponent of its correction, at the start and at the end
    epsilon: float = 1e-3  # added to every priority
    half_life: float = 3.0  # age that halves the probability of a segment
    max_staleness: int = 64  # largest age of a replayed segment
    min_replay_segments: int = 64  # trained segments from which replay begins
    hidden_sizes: tuple[int, ...] = (64, 64)
    normalise_observations: bool = True
    normalise_returns: bool = True
    learning_rate: float = 1e-3  # at the start
    learning_rate_schedule: str = "linear"  # to 0 at the end; else constant
    epochs: int = 4
    target_kl: float = 0.02  # divergence in nats after which no further epoch begins
    discount: float = 0.99
    trace_decay: float = 0.98
    clip_range: float = 0.2
    value_coefficient: float = 0.5
    entropy_coefficient: float = 0.0
    max_gradient_norm: float = 0.5
    clip_anchor: float = 0.5  # centre of the clip: 0 the policy before the batch, 1 the policy that acted
    behaviour_weight_clip: float = 5.0


class Segments(NamedTuple):
    """B times T steps, each segment in one environment. It may have steps of several episodes."""

    observation: Tensor  # <float32>[B, T + 1, F] before each step, and after the last one
    action: Tensor  # <int64>[B, T]
    log_prob: Tensor  # <float32>[B, T] of the actions under the policy that acted
    reward: Tensor  # <float32>[B, T]
    discounted: Tensor  # <float32>[B, T] discounted sum of the rewards since the episode began
    terminated: Tensor  # <bool>[B, T] the episode ended: all later rewards are 0
    truncated: Tensor  # <bool>[B, T] the episode was cut
    valid: Tensor  # <bool>[B, T] False for the step after the last one of an episode, which only resets
    version: Tensor  # <int64>[B] of the policy that acted


class Run:
    """A run. `train` is the algorithm, and the other parts follow in the order in which it uses them.

    The environments are reset with `seeds`, and actions are sampled from `noise`, a function from the steps taken to
    uniform numbers, <float32>[N, T, 1]. Without these, the run's seed decides.
    """

    def __init__(
        self, settings: Settings, seeds: Sequence[int] = (), noise: Callable[[int], NDArray[np.float32]] | None = None
    ) -> None:
        s = self.settings = settings
        # They are reset by the step after the last one of an episode.
        makers, mode = [lambda: gymnasium.make(s.env_id)] * s.environments, AutoresetMode.NEXT_STEP
        self.envs: SyncVectorEnv[Any, Any] = SyncVectorEnv(makers, autoreset_mode=mode)
        self.observation, _ = self.envs.reset(seed=[*seeds] if seeds else s.seed)
        self.ended = np.zeros(s.environments, np.bool_)
        self.total, self.discounted = np.zeros((2, s.environments), np.float32)
        self.returns: list[float] = []  # of the episodes that have ended
        torch.manual_seed(s.seed)
        self.policy = Policy(s, self.envs)
        self.parameters = [flat(self.policy.actor), flat(self.policy.critic)]
        self.optimizer = torch.optim.Adam(self.parameters, eps=1e-5, fused=True)
        self.shuffling, generator = torch.Generator().manual_seed(s.seed), np.random.default_rng(s.seed)
        self.noise = noise or (lambda _: generator.random((s.environments, s.unroll_length, 1), np.float32))
        self.replay, self.version, self.env_steps, self.steps_taken = Replay(s), 0, 0, 0

    def train(self, trained: Callable[["Run"], None] = lambda run: None) -> None:
        """Trains until the end of the run, and calls `trained` after every batch."""
        s = self.settings
        while self.env_steps < s.total_steps:
            # The gate: batch k is trained at version k, and at most (d + 1) N segments may wait for training. So a
            # fresh segment is at most d versions old. Actors of the services collect during `learn`, by the same rule.
            while self.replay.fresh + s.environments <= (s.off_policy_degree + 1) * s.environments:
                self.replay.add(self.collect())
            rows, probability, segments = self.replay.draw(self.version)
            priorities = self.learn(segments, probability, self.env_steps / s.total_steps)
            self.version += 1
            self.replay.commit(rows, priorities, self.version)
            self.env_steps += int(segments.valid[: s.environments].sum())
            trained(self)

    @torch.no_grad()
    def collect(self) -> Segments:
        """Takes T steps in each environment with the newest policy."""
        s, policy, columns = self.settings, self.policy, []
        noise = torch.from_numpy(self.noise(self.steps_taken))
        for t in range(s.unroll_length):
            observation = torch.tensor(self.observation, dtype=torch.float32)
            (log_probs, _), valid = policy(observation), ~self.ended
            action = (log_probs.exp().cumsum(-1)[:, :-1] <= noise[:, t]).sum(-1)
            self.observation, earned, terminated, truncated, _ = self.envs.step(action.numpy() + policy.start)
            self.ended, reward = terminated | truncated, earned.astype(np.float32)
            self.total, self.discounted = self.total + reward, self.discounted * np.float32(s.discount) + reward
            outcomes = (reward, self.discounted, terminated, truncated, valid)
            columns.append(
                (observation, action, log_probs.gather(-1, action[:, None])[:, 0], *map(torch.tensor, outcomes))
            )
            self.returns += self.total[self.ended].tolist()
            self.total[self.ended] = self.discounted[self.ended] = 0.0
        self.steps_taken += s.unroll_length
        observations, *others = (torch.stack(column, 1) for column in zip(*columns, strict=True))
        after = torch.tensor(self.observation, dtype=torch.float32)[:, None]
        version = torch.full((s.environments,), self.version)
        return Segments._make((torch.cat((observations, after), 1), *others, version))

    def learn(self, segments: Segments, probability: NDArray[np.float64], progress: float) -> NDArray[np.float64]:
        """Trains on drawn segments, the fresh ones first, and returns their new priorities, <float64>[B]."""
        s, policy, valid, behaviour = self.settings, self.policy, segments.valid, segments.log_prob
        fresh = valid & (torch.arange(len(valid)) < s.environments)[:, None]  # Normalisers count each step once.
        if s.normalise_returns:
            policy.returns.update(segments.discounted[fresh])
        with torch.no_grad():  # Of the proximal policy, which is the policy before the batch.
            log_probs, value = policy(segments.observation)
        log_prob = log_probs[:, :-1].gather(-1, segments.action[..., None])[..., 0]
        reward = segments.reward * policy.returns.scale()
        log_ratio = torch.where(valid, log_prob - behaviour, 0.0)
        advantage, correction = v_trace(s, segments, value, reward, log_ratio)
        anchor = torch.lerp(log_prob, behaviour, s.clip_anchor)
        # Logarithms of ratios are bounded, so that products of ratios are finite.
        weight = (anchor - behaviour).clamp(-20.0, 20.0).exp().clamp(max=s.behaviour_weight_clip)
        age, beta = self.version - segments.version, s.beta[0] + (s.beta[1] - s.beta[0]) * progress
        omega = importance_weights(s, probability, age, beta)[:, None].expand_as(valid)
        observation, target = segments.observation[:, :-1], value[:, :-1] + correction
        every = (observation, segments.action, anchor, advantage, target, omega, omega * weight, log_prob)
        *steps, proximal = (column[valid] for column in every)
        linear = s.learning_rate_schedule == "linear"
        self.optimizer.param_groups[0]["lr"] = s.learning_rate * (1.0 - progress if linear else 1.0)
        # Minibatches of about 256 steps, and of at least 8, over which advantages are standardised.
        minibatches = max(1, round(s.environments / s.fresh_fraction * s.unroll_length / 256))
        for _ in range(s.epochs):
            order, moved = torch.randperm(len(proximal), generator=self.shuffling), []
            for rows in torch.tensor_split(order, min(minibatches, math.ceil(len(proximal) / 8))):
                log_prob, loss = ppo_loss(s, policy, [column[rows] for column in steps])
                self.optimizer.zero_grad(set_to_none=False)
                loss.backward()  # type: ignore[no-untyped-call]
                for part in self.parameters:
                    assert part.grad is not None
                    nn.utils.clip_grads_with_norm_(part, s.max_gradient_norm, part.grad.double().norm().float())
                self.optimizer.step()
                moved.append(log_prob.detach() - proximal[rows])
            change = torch.cat(moved)
            if float((change.clamp(-20.0, 20.0).exp() - 1.0 - change).mean()) > s.target_kl:
                break
        if s.normalise_observations:  # After the epochs, in which the inputs of the networks stay the same.
            policy.observations.update(observation[fresh])
        return torch.where(valid, advantage.abs(), 0.0).mean(1).double().numpy()


class Replay:
    """The newest segments. They are fresh until they are trained, and then drawn by their masses.

    Their sums over 1, 2, 4, ... rows are the levels of a binary tree, in which a draw takes few steps.
    """

    def __init__(self, s: Settings) -> None:
        self.s, self.columns, self.fresh, self.added = s, Segments(*[torch.empty(0)] * 9), 0, 0
        self.masses, self.reference = np.zeros(2 ** (s.capacity_segments - 1).bit_length()), 0

    def add(self, window: Segments) -> None:
        """Stores fresh segments in place of the oldest."""
        if self.added == 0:
            self.columns = Segments(*(each.new_zeros(self.s.capacity_segments, *each.shape[1:]) for each in window))
        rows = np.arange(self.added, self.added + len(window.version)) % self.s.capacity_segments
        for column, values in zip(self.columns, window, strict=True):
            column[rows] = values
        self.masses[rows] = 0.0
        self.fresh, self.added = self.fresh + len(rows), self.added + len(rows)

    def draw(self, version: int) -> tuple[NDArray[np.int64], NDArray[np.float64], Segments]:
        """Returns the N oldest fresh segments, then drawn ones: their rows, their probabilities, and their columns."""
        s, trained, levels = self.s, self.added - self.fresh, [self.masses]
        while len(levels[-1]) > 1:
            levels.append(levels[-1][::2] + levels[-1][1::2])
        count, total = round(s.environments * (1.0 / s.fresh_fraction - 1.0)), levels[-1][0]
        rows = np.arange(trained, trained + s.environments) % s.capacity_segments
        probability = np.ones(len(rows))
        if count and trained >= s.min_replay_segments and total > 0.0:
            generator = np.random.Generator(np.random.Philox(key=s.seed, counter=[version, 0, 0, 0]))
            # One draw from each of `count` equal parts of the sum.
            target, drawn = (np.arange(count) + generator.random(count)) * (total / count), np.zeros(count, np.int64)
            for sums in levels[-2::-1]:
                left = sums[2 * drawn]
                right = (target >= left) & (sums[2 * drawn + 1] > 0.0)
                target, drawn = np.where(right, target - left, target), 2 * drawn + right
            rows, probability = np.append(rows, drawn), np.append(probability, self.masses[drawn] / total)
        return rows, probability, Segments(*(column[rows] for column in self.columns))

    def commit(self, rows: NDArray[np.int64], priorities: NDArray[np.float64], version: int) -> None:
        """Stores the masses of trained segments: (priority + epsilon)^alpha 2^(-age / half_life).

        All masses shrink together, so they are stored as at the version `reference`, and age without an update.
        """
        s, versions = self.s, self.columns.version.numpy()
        self.fresh -= s.environments
        if version - self.reference >= 256 * s.half_life:  # Long before a power of 2 overflows.
            self.masses *= 2.0 ** ((self.reference - version) / s.half_life)
            self.reference = version
        exponent = (versions[rows] - self.reference) / s.half_life
        self.masses[rows] = (priorities + s.epsilon) ** s.alpha * np.exp2(exponent)
        self.masses[: len(versions)][versions < version - s.max_staleness] = 0.0


def importance_weights(s: Settings, probability: NDArray[np.float64], age: Tensor, beta: float) -> Tensor:
    """Returns weights, <float32>[B], of mean 1 that correct draws by priority: min(10, c p^-beta), 1 if fresh.

    Here p is the factor of the priority in a probability (Schaul et al. 2016). The factor of the age is intended.
    """
    drawn = torch.from_numpy(probability[s.environments :]).clamp(min=1e-300)
    logarithm = -beta * (torch.log(drawn) + age[s.environments :].double() * (math.log(2.0) / s.half_life))
    raw = torch.exp(logarithm - logarithm.amax()) if len(drawn) else drawn
    # If the k largest are cut to 10, the others have the sum n - 10 k: for the first k that leaves none above 10.
    largest_first = raw.sort(descending=True).values
    factors = (len(raw) - 10.0 * torch.arange(len(raw)).double()) / largest_first.flip(0).cumsum(0).flip(0)
    cut = [(raw * factor).clamp(max=10.0) for factor in factors[factors * largest_first <= 10.0][:1]]
    return torch.cat([torch.ones(s.environments), *cut]).float()


def v_trace(s: Settings, segments: Segments, value: Tensor, reward: Tensor, log_ratio: Tensor) -> tuple[Tensor, Tensor]:
    """Returns advantages A and corrections D of the values, <float32>[B, T], by V-trace (Espeholt et al. 2018).

        delta_t = r_t + gamma (1 - terminated_t) V_{t+1} - V_t          rho_t = min(1, ratio_t)
        A_t     = delta_t + gamma lambda n_t D_{t+1}                    n_t = 0 where an episode ends, else 1
        D_t     = rho_t A_t

    The ratio is of the proximal policy to the one that acted. Where they are the same, A and D are GAE. A truncated
    episode would have gone on, so its last step counts the value of the observation after it.
    """
    rho = log_ratio.clamp(-20.0, 0.0).exp()
    delta = reward + torch.where(segments.terminated, 0.0, s.discount * value[:, 1:]) - value[:, :-1]
    delta = torch.where(segments.valid, delta, 0.0)
    goes_on = segments.valid & ~(segments.terminated | segments.truncated)
    decay = torch.where(goes_on, s.discount * s.trace_decay, 0.0)
    advantage, correction, following = torch.empty_like(delta), torch.empty_like(delta), torch.zeros(len(delta))
    for t in reversed(range(s.unroll_length)):
        advantage[:, t] = delta[:, t] + decay[:, t] * following
        following = rho[:, t] * delta[:, t] + decay[:, t] * rho[:, t] * following  # rho_t A_t, in two products
        correction[:, t] = following
    return advantage, correction


def ppo_loss(s: Settings, policy: "Policy", steps: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Returns log probabilities, <float32>[M], and PPO's loss (Schulman et al. 2017), clipped around an anchor.

    The anchor is between the proximal policy and the one that acted. The weight, which is the clipped ratio of anchor
    and the latter, corrects for it (Hilton, Cobbe & Schulman 2021), and omega corrects for the draws.
    """
    observation, action, anchor, advantage, target, omega, weight = steps
    log_probs, value = policy(observation)
    log_prob, entropy = log_probs.gather(-1, action[:, None])[:, 0], -(log_probs.exp() * log_probs).sum(-1).mean()
    advantage = advantage - (omega * advantage).sum() / omega.sum()
    advantage = advantage / (((omega * advantage.square()).sum() / omega.sum()).sqrt() + 1e-8)
    ratio = (log_prob - anchor).clamp(-20.0, 20.0).exp()
    clipped = ratio.clamp(1.0 - s.clip_range, 1.0 + s.clip_range)
    policy_loss = -(weight * torch.minimum(ratio * advantage, clipped * advantage)).mean()
    value_loss = (omega * 0.5 * (value - target).square()).mean()
    return log_prob, policy_loss + s.value_coefficient * value_loss - s.entropy_coefficient * entropy


def flat(module: nn.Module) -> nn.Parameter:
    """Moves the parameters of a module, and their gradients, into one tensor each, at multiples of 64 bytes."""
    sizes = [math.ceil(each.numel() / 16) * 16 for each in module.parameters()]
    joined = nn.Parameter(torch.zeros(sum(sizes)))
    joined.grad = torch.zeros(sum(sizes))
    for each, *parts in zip(
        module.parameters(), torch.split(joined.data, sizes), torch.split(joined.grad, sizes), strict=True
    ):
        value, gradient = (part[: each.numel()].view_as(each) for part in parts)
        each.data, each.grad = value.copy_(each.detach()), gradient
    return joined


class Moments:
    """Running mean and variance, which normalise (Chan, Golub & LeVeque 1979)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.mean, self.variance, self.count = torch.zeros(shape).double(), torch.ones(shape).double(), 0.0

    def update(self, values: Tensor) -> None:
        """Adds values, <float32>[n, *shape]."""
        count, mean, variance = float(len(values)), values.double().mean(0), values.double().var(0, unbiased=False)
        delta, total = mean - self.mean, self.count + count
        squares = self.variance * self.count + variance * count + delta.square() * (self.count * count / total)
        self.mean, self.variance, self.count = self.mean + delta * count / total, squares / total, total

    def scale(self) -> Tensor:
        """Returns 1 / deviation, <float32>[*shape]; 1 for a number that was always 0."""
        squared = self.variance + (1e-7 * self.mean).square()
        return torch.where(squared > 1e-60, torch.rsqrt(squared), 1.0).float()


def network(*sizes: int, gain: float) -> nn.Sequential:
    """Returns layers of these widths with tanh between them, and orthogonal weights (Saxe et al. 2014)."""
    layers: list[Any] = []
    for before, after, own in zip(sizes, sizes[1:], [math.sqrt(2.0)] * (len(sizes) - 2) + [gain], strict=False):
        layers += [nn.Linear(before, after), nn.Tanh()]
        nn.init.orthogonal_(layers[-2].weight, own)
        nn.init.zeros_(layers[-2].bias)
    return nn.Sequential(*layers[:-1])


class Policy(nn.Module):
    """The networks of policy and value, and the normalisers. Actors use both, and the learner changes both."""

    def __init__(self, s: Settings, envs: "SyncVectorEnv[Any, Any]") -> None:
        super().__init__()
        observed, acted = envs.single_observation_space, envs.single_action_space
        if not isinstance(observed, Box) or len(observed.shape) != 1 or not isinstance(acted, Discrete):
            raise ValueError(f"the spaces of {s.env_id} are not a row of numbers and a choice; use penstock train")
        self.start, (features,) = int(acted.start), observed.shape
        self.actor = network(features, *s.hidden_sizes, int(acted.n), gain=0.01)
        self.critic = network(features, *s.hidden_sizes, 1, gain=1.0)
        self.observations, self.returns, self.normalises = Moments((features,)), Moments(()), s.normalise_observations

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the log probabilities of all actions, <float32>[..., A], and the values, <float32>[...].

        Observations, <float32>[..., F], are taken relative to their mean, in deviations, and clipped at 10.
        """
        if self.normalises:
            centred = observation - self.observations.mean.float()
            observation = (centred * self.observations.scale()).clamp(-10.0, 10.0)
        return torch.log_softmax(self.actor(observation), -1), self.critic(observation).squeeze(-1)


def main() -> None:
    """Trains by the options of the command line, and prints the mean return of the last 100 episodes."""
    parser = argparse.ArgumentParser(description="Trains a policy by the algorithm of Penstock.")
    parser.add_argument("--env-id", default="CartPole-v1", help="Gymnasium id of the environment")
    parser.add_argument("--degree", type=int, default=0, help="batches that collection may run ahead of training")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=30_000, help="environment steps")
    given = parser.parse_args()
    torch.set_num_threads(1)  # More threads make such small networks slower.
    try:
        if not (0 <= given.degree <= 64 and given.steps > 0 <= given.seed):
            raise ValueError("--degree must be from 0 to 64, --steps above 0, and --seed 0 or above")
        run = Run(Settings(given.env_id, given.seed, given.steps, off_policy_degree=given.degree))
    except (ValueError, gymnasium.error.Error) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    run.train(lambda run: print(f"{run.env_steps:,} steps  return {np.mean(run.returns[-100:]):.1f}", flush=True))


if __name__ == "__main__":
    main()
