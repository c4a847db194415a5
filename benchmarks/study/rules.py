"""Rules of the experiments that no setting makes (`helpers.rule`).

- `AgeByPolicy`: segments age by how far the policy has moved from the one that acted, and not by versions.
- `CriticReplay`: replayed segments train the critic alone.
- `StepByEss`: the learning rate follows the effective sample size of the batch.
- `ErrorPriority`: priorities are temporal differences.
- `GradientBound`: priorities bound the gradient at the outputs of the networks.
- `Reanalysis`: priorities of old segments are computed again under the current policy.
"""

import dataclasses
import math
import time
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.study.pool import Kept, Pool
from helpers.rule import Rule
from penstock.algo.losses import Losses, LossSettings
from penstock.algo.priorities import mean_errors
from penstock.config import Config
from penstock.learning.assembly import learner_as, learner_of
from penstock.learning.batches import TrainingBatch
from penstock.learning.gradient_steps import Estimated, Objective, Steps
from penstock.learning.learner import Learner, TrainingOutcome
from penstock.learning.protocols import BatchSource
from penstock.learning.training_statistics import effective_share
from penstock.types.replay import Batch, CommitOutcome, SamplingPlan
from penstock.types.spaces import EnvironmentSpec
from penstock.types.waits import WaitReason

Parts = tuple[Learner, BatchSource]


@dataclass(frozen=True)
class AgeByPolicy(Rule):
    """Draws segments by priority and by the overlap of the learning policy with the one that acted.

        mass_i    = (priority_i + epsilon)^alpha overlap_i^power 2^(-age_i / half_life)
        overlap_i = mean_t min(1, pi_prox(a_t | s_t) / mu(a_t | s_t))       over the usable rows, at the last training

    Over actions of mu, the expectation of min(1, pi / mu) is the sum over actions of min(mu, pi), which is 1 minus the
    total variation distance of the two policies. So 1 is a segment of the learning policy itself. The overlap is
    intended, as age is, so importance weights correct for the priority alone.
    """

    power: float

    def parts(self, config: Config, spec: EnvironmentSpec, device: torch.device, source: BatchSource) -> Parts:
        """Implements `Rule`."""
        assert config.ppo.behaviour_weight_clip >= 1.0, "ratios below 1 must not be clipped"
        learner = learner_as(_OverlapLearner, config, spec, device)
        return learner, _OverlapSource(source, learner, config.sampling.max_staleness, self.power)


@dataclass(frozen=True)
class CriticReplay(Rule):
    """Trains the policy on the fresh rows F of each minibatch, and the critic on all rows, N.

        loss = policy loss(F) - entropy coefficient mean_F(entropy) + value coefficient value loss(N)

    Advantages are standardised over F. A minibatch without fresh rows trains the critic alone. Phasic Policy Gradient
    (Cobbe et al. 2021, section 3.2) found that the value function tolerates more passes over older data than the
    policy.
    """

    def parts(self, config: Config, spec: EnvironmentSpec, device: torch.device, source: BatchSource) -> Parts:
        """Implements `Rule`."""
        return learner_as(_CriticReplayLearner, config, spec, device), source


@dataclass(frozen=True)
class StepByEss(Rule):
    """Multiplies the learning rate by the square root of the batch's effective sample share.

        share = (sum w)^2 / (N sum w^2),    w = min(pi_prox / mu, ppo.behaviour_weight_clip)

    VCPO (Huang et al. 2026, arXiv 2602.17616) scales the learning rate by the effective sample size. The square root is
    that of Adam's scaling with the size of a batch (Malladi et al. 2022), here with share N in place of N.
    """

    def parts(self, config: Config, spec: EnvironmentSpec, device: torch.device, source: BatchSource) -> Parts:
        """Implements `Rule`."""
        return learner_as(_EssLearner, config, spec, device), source


@dataclass(frozen=True)
class ErrorPriority(Rule):
    """Draws segments by priority = eta max_t |D_t| + (1 - eta) mean_t |D_t|, over the usable rows.

    This is the mixture of R2D2 (Kapturowski et al. 2019, section 2.3).
    """

    eta: float

    def parts(self, config: Config, spec: EnvironmentSpec, device: torch.device, source: BatchSource) -> Parts:
        """Implements `Rule`."""
        learner = learner_as(_ErrorLearner, config, spec, device)
        learner.eta = self.eta
        return learner, source


@dataclass(frozen=True)
class GradientBound(Rule):
    """Draws segments by the sizes of the gradients at the outputs of the networks, in units of their batch's means.

        priority = mean_t(|D_t| / mean|D| + |A_t| g_t / mean(|A| g)),    g_t = |d log pi(a_t) / d outputs|

    D_t is the value's gradient, and A_t g_t the policy's. Each is relative to its mean over the batch, because the two
    networks' gradients are clipped separately. This is the bound of Katharopoulos & Fleuret (2018).
    """

    def parts(self, config: Config, spec: EnvironmentSpec, device: torch.device, source: BatchSource) -> Parts:
        """Implements `Rule`."""
        return learner_as(_BoundLearner, config, spec, device), source


@dataclass(frozen=True)
class Reanalysis(Rule):
    """Recomputes the priorities of the oldest replayable segments after every `interval` batches.

    They are as many as the segments trained since, so that the cost has a bound: one forward pass for each, beside the
    forward and backward passes of `ppo.epochs`. MuZero Reanalyze (Schrittwieser et al. 2020, appendix H) recomputes
    targets of stored data in the same way.
    """

    interval: int = 16

    def parts(self, config: Config, spec: EnvironmentSpec, device: torch.device, source: BatchSource) -> Parts:
        """Implements `Rule`."""
        learner = learner_of(config, spec, device)
        return learner, ReanalysedSource(source, learner, config, self.interval)


class Around:
    """A source of batches around another one, which it leaves as it is."""

    def __init__(self, source: BatchSource) -> None:
        self._source = source

    def open(self, plan: SamplingPlan) -> None:
        """Implements `BatchSource`."""
        self._source.open(plan)

    def adjust(self, plan: SamplingPlan) -> None:
        """Implements `BatchSource`."""
        self._source.adjust(plan)

    def next(self, timeout_s: float) -> Batch | None:
        """Implements `BatchSource`."""
        return self._source.next(timeout_s)

    @property
    def waiting_for(self) -> WaitReason | None:
        """Implements `BatchSource`."""
        return self._source.waiting_for

    def commit(self, batch: Batch, priorities: NDArray[np.float64]) -> Future[CommitOutcome]:
        """Implements `BatchSource`."""
        return self._source.commit(batch, priorities)


def overlaps(estimated: Estimated) -> NDArray[np.float64]:
    """Returns mean_t min(1, pi_prox / mu) over the usable rows of each segment, <float64>[B]; 0 without usable rows."""
    ratio = torch.zeros(estimated.usable.shape, dtype=torch.float64)
    ratio[estimated.usable] = estimated.behaviour_weight.double().clamp(max=1.0)
    result: NDArray[np.float64] = (ratio.sum(1) / estimated.usable.sum(1).clamp(min=1)).numpy()
    return result


def error_priorities(estimated: Estimated, eta: float) -> NDArray[np.float64]:
    """Returns the priorities of `ErrorPriority`, <float64>[B]; 0 without usable rows."""
    error = torch.where(estimated.usable, estimated.correction.abs(), 0.0)
    mixture = eta * error.amax(1) + (1.0 - eta) * mean_errors(estimated.correction, estimated.usable)
    result: NDArray[np.float64] = mixture.double().numpy()
    return result


class _ErrorLearner(Learner):
    """Learner with the priorities of `ErrorPriority`."""

    eta: float

    def priorities_of(
        self, estimated: Estimated, refused_steps: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        _, errors = super().priorities_of(estimated, refused_steps)
        return np.where(refused_steps == 0, error_priorities(estimated, self.eta), 0.0), errors


def gradient_bounds(estimated: Estimated, score: Tensor) -> NDArray[np.float64]:
    """Returns the priorities of `GradientBound`, <float64>[B], of g_t, <float32>[B, T]."""
    usable, steps = estimated.usable, estimated.steps
    advantage = torch.zeros(usable.shape)
    advantage[usable] = steps.advantage if steps.usable is None else steps.advantage[steps.usable]
    total = torch.zeros(usable.shape[0])
    for part in (estimated.correction.abs(), advantage.abs() * score):
        size = torch.where(usable, part, 0.0)
        total += size.mean(1) / (size.sum() / usable.sum().clamp(min=1)).clamp(min=1e-30)
    result: NDArray[np.float64] = total.double().numpy()
    return result


class _BoundLearner(Learner):
    """Learner with the priorities of `GradientBound`."""

    def train(self, batch: TrainingBatch, progress: float) -> TrainingOutcome:
        outputs: list[Tensor] = []
        hook = self.policy.actor.register_forward_hook(lambda module, inputs, output: outputs.append(output))
        with torch.enable_grad():
            distribution, _ = self.policy.evaluate(batch.inputs, burn_in=self._ppo.burn_in_steps, bootstraps=True)
            (gradient,) = torch.autograd.grad(distribution.log_prob(batch.action).sum(), outputs[0])
        hook.remove()
        self._score = gradient.flatten(2).norm(dim=-1)
        return super().train(batch, progress)

    def priorities_of(
        self, estimated: Estimated, refused_steps: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        priority, errors = super().priorities_of(estimated, refused_steps)
        return np.where(priority > 0.0, gradient_bounds(estimated, self._score), 0.0), errors


class _OverlapLearner(Learner):
    """Learner that also returns overlaps.

    Attributes:
        overlaps: <float64>[B] overlaps of the segments of the last batch.
    """

    overlaps: NDArray[np.float64]

    def priorities_of(
        self, estimated: Estimated, refused_steps: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        self.overlaps = overlaps(estimated)
        return super().priorities_of(estimated, refused_steps)


@dataclass(frozen=True, slots=True)
class _Use:
    """The last training on a segment, which `version` collected."""

    version: int
    priority: float
    overlap: float


class _OverlapSource(Around):
    """Commits masses as priorities, and returns batches as if they had been drawn by their priorities and ages alone.

    The store draws with alpha 1 and epsilon 0, so a committed priority is the mass without the factor of age.
    """

    def __init__(self, source: BatchSource, learner: _OverlapLearner, max_staleness: int, power: float) -> None:
        super().__init__(source)
        self._learner, self._max_staleness, self._power = learner, max_staleness, power
        self._uses: dict[int, _Use] = {}

    def open(self, plan: SamplingPlan) -> None:
        self._plan = plan
        self._source.open(dataclasses.replace(plan, alpha=1.0, epsilon=0.0))

    def adjust(self, plan: SamplingPlan) -> None:
        assert plan.alpha == self._plan.alpha, "committed masses have the former exponent"
        self._plan = plan
        self._source.adjust(dataclasses.replace(plan, alpha=1.0, epsilon=0.0))

    def next(self, timeout_s: float) -> Batch | None:
        batch = self._source.next(timeout_s)
        if batch is None:
            return None
        head, replayed = batch.head, slice(batch.fresh_segments, None)
        uses = [self._uses[key] for key in batch.keys[replayed].tolist()]
        priorities, probabilities = head.priorities.copy(), head.probabilities.copy()
        priorities[replayed] = [use.priority for use in uses]
        probabilities[replayed] /= np.array([use.overlap for use in uses]) ** self._power
        return Batch(dataclasses.replace(head, priorities=priorities, probabilities=probabilities), batch.columns)

    def commit(self, batch: Batch, priorities: NDArray[np.float64]) -> Future[CommitOutcome]:
        overlap = self._learner.overlaps
        used = zip(
            batch.keys.tolist(), batch.head.versions.tolist(), priorities.tolist(), overlap.tolist(), strict=True
        )
        self._uses |= {key: _Use(*use) for key, *use in used}
        oldest = batch.number + 1 - self._max_staleness
        self._uses = {key: use for key, use in self._uses.items() if use.version >= oldest}
        masses = (priorities + self._plan.epsilon) ** self._plan.alpha * overlap**self._power
        return self._source.commit(batch, masses)


class _CriticReplayLearner(Learner):
    """Learner whose replayed rows have a policy weight of 0, by which the objective finds them."""

    def estimate(self, batch: TrainingBatch, progress: float) -> Estimated:
        estimated = super().estimate(batch, progress)
        steps, fresh = estimated.steps, estimated.fresh_count
        if steps.usable is not None:
            # Rows are segments.
            fresh = int(estimated.usable[: batch.fresh_segments].any(1).sum())
        weight = steps.policy_weight.clone()
        weight[fresh:] = 0.0
        return dataclasses.replace(estimated, steps=dataclasses.replace(steps, policy_weight=weight))

    def objective(self) -> Objective:
        both = super().objective()

        def objective(steps: Steps, settings: LossSettings, counted: Tensor | None) -> tuple[Tensor, Losses]:
            assert counted is None, "minibatches of one shape are not supported; set learner.execution to eager"
            weight = steps.policy_weight
            fresh = (weight if steps.usable is None else torch.where(steps.usable, weight, 0.0).amax(1)) > 0.0
            of_critic = dataclasses.replace(steps, policy_weight=torch.zeros_like(weight))
            log_prob, critic = both(of_critic, dataclasses.replace(settings, entropy_coefficient=0.0), None)
            if not bool(fresh.any()):
                return log_prob, critic
            _, policy = both(steps.take(fresh), dataclasses.replace(settings, value_coefficient=0.0), None)
            return log_prob, Losses(critic.total + policy.total, policy.policy, critic.value, policy.entropy)

        return objective


class _EssLearner(Learner):
    def learning_rate(self, estimated: Estimated, progress: float) -> float:
        return super().learning_rate(estimated, progress) * math.sqrt(effective_share(estimated.behaviour_weight))


def recomputed(learner: Learner, pool: Pool, segments: list[Kept], number: int, size: int) -> NDArray[np.float64]:
    """Returns the priorities, <float64>[segments], that training on them in batch `number` would commit.

    They are evaluated in batches of this size, to bound the memory.
    """
    found = []
    for first in range(0, len(segments), size):
        batch = pool.batch(segments[first : first + size], number)
        # Priorities do not depend on the settings that follow a schedule.
        found.append(learner.priorities_of(learner.estimate(batch, 0.0), 0)[0])
    return np.concatenate(found) if found else np.zeros(0)


class ReanalysedSource(Around):
    """Commits the priorities of old segments together with those of a batch.

    Attributes:
        seconds: CPU time of this thread for recomputing priorities.
    """

    def __init__(self, source: BatchSource, learner: Learner, config: Config, interval: int) -> None:
        super().__init__(source)
        self._learner, self._interval, self._size = learner, interval, config.sampling.batch_segments
        self._pool = Pool(config.sampling.max_staleness)
        self._trained = 0
        self.seconds = 0.0

    def commit(self, batch: Batch, priorities: NDArray[np.float64]) -> Future[CommitOutcome]:
        """Implements `BatchSource`."""
        self._trained += batch.keys.size
        self._pool.see_commit(batch, priorities)
        if (batch.number + 1) % self._interval == 0:
            began = time.thread_time()
            batch, priorities = self._with_oldest(batch, priorities)
            self.seconds += time.thread_time() - began
            self._trained = 0
        return self._source.commit(batch, priorities)

    def _with_oldest(self, batch: Batch, priorities: NDArray[np.float64]) -> tuple[Batch, NDArray[np.float64]]:
        """Returns the batch with the keys of further segments, and the priorities of all.

        A commit may name any segment that was trained before. Those of the batch have the priorities of its own
        estimates, as ever.
        """
        own = set(batch.keys.tolist())
        others = [kept for kept in self._pool.segments.values() if kept.key not in own]
        # Stable, so that of one version the first one is the oldest.
        oldest = sorted(others, key=lambda kept: kept.version)[: self._trained]
        found = recomputed(self._learner, self._pool, oldest, batch.number + 1, self._size)
        keys = np.concatenate([batch.keys, np.array([kept.key for kept in oldest], np.uint64)])
        extended = Batch(dataclasses.replace(batch.head, keys=keys), batch.columns)
        return extended, np.concatenate([priorities, found])
