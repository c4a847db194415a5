"""The training step: a batch in, better parameters and new priorities out.

`Learner.train` reads like the algorithm: estimate once, optimise for some epochs, learn the normalisers, hand back
priorities. It knows nothing of services, versions or files.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.algo import advantages, losses, priorities
from penstock.algo.losses import LossSettings, Movement
from penstock.algo.parameters import flatten
from penstock.algo.policies import Network, Policy
from penstock.algo.ratios import ratio_of
from penstock.config import Execution, PPOConfig, Precision, SamplingConfig
from penstock.learning import schedules
from penstock.learning.batches import TrainingBatch
from penstock.learning.devices import autocast, check_execution, send
from penstock.learning.execution import descent_by
from penstock.learning.gradient_steps import Descended, GradientStep, Steps, objective_of
from penstock.types import EnvironmentSpec


@dataclass(frozen=True, slots=True)
class TrainingStatistics:
    """What one batch's training looked like; means over its minibatches unless said otherwise."""

    policy_loss: float
    value_loss: float
    entropy: float
    approximate_kl: float
    clipped_share: float
    gradient_norm: float
    learning_rate: float
    effective_sample_share: float
    """Of the behaviour weights: (sum w)^2 / (n sum w^2), 1 where the data is on policy."""
    fresh_effective_share: float
    """The same of the fresh segments alone, which are as old as the off-policy degree lets them be; 1 where there are
    none."""
    explained_variance: float
    """Share of the targets' variance that the values explain, before training."""
    staleness_mean: float
    staleness_max: int
    fresh_lag_mean: float
    fresh_lag_max: int


@dataclass(frozen=True, slots=True)
class TrainingOutcome:
    """What training on one batch yields.

    Attributes:
        priorities: <float64>[B] raw.
        fresh_steps: Valid steps in the fresh segments.
        updates: Gradient steps.
        statistics: For people to look at.
    """

    priorities: NDArray[np.float64]
    fresh_steps: int
    updates: int
    statistics: TrainingStatistics


@dataclass(frozen=True, slots=True)
class _Estimated:
    """What is known of a batch before it is trained.

    Attributes:
        steps: To train on.
        correction: <float32>[B, T] D_t, which priorities are made of.
        behaviour_weight: <float32>[N] of its valid steps, proximal over behaviour probability, cut.
    """

    steps: Steps
    correction: Tensor
    behaviour_weight: Tensor


@dataclass(frozen=True, slots=True)
class _Epoch:
    """One pass over a batch. Its scalars are left on the device, which nobody waits for until the batch is done.

    Attributes:
        minibatches: What each gradient step said.
        movement: How far the policy had gone, as the minibatches found it.
    """

    minibatches: list[Descended]
    movement: Movement


class Learner:
    """A policy with its optimizer. Used by one thread."""

    def __init__(
        self,
        spec: EnvironmentSpec,
        network: Network,
        *,
        ppo: PPOConfig,
        sampling: SamplingConfig,
        device: torch.device,
        seed: int,
        precision: Precision = "float32",
        execution: Execution = "eager",
    ) -> None:
        """Builds the policy of these spaces, initialised from `seed`.

        Raises:
            ConfigurationError: The spaces are not supported, or the device can't execute it so.
        """
        self._ppo, self._sampling, self._device, self._precision = ppo, sampling, device, precision
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.policy = Policy(spec, network).to(device)
        self.parameters = flatten(self.policy)
        check_execution(device, execution)
        graphed = execution == "graphed"
        # A number would be captured for good.
        rate = torch.tensor(ppo.learning_rate, device=device) if graphed else ppo.learning_rate
        self.optimizer = torch.optim.Adam([self.parameters], lr=rate, eps=1e-5, fused=True, capturable=graphed)
        self.generator = torch.Generator().manual_seed(seed)
        objective = objective_of(self.policy, precision, device)
        step = GradientStep(objective, self.parameters, self.optimizer, ppo.max_gradient_norm)
        self._descent = descent_by(execution, step, minibatches=ppo.minibatches)

    def train(self, batch: TrainingBatch, progress: float) -> TrainingOutcome:
        """Trains on a batch for some epochs.

        Args:
            batch: On this learner's device.
            progress: Share of the run that is done, 0 to 1; schedules follow it.
        """
        ppo = self._ppo
        rate = schedules.scheduled(ppo.learning_rate, ppo.learning_rate_schedule, progress)
        self._set_learning_rate(rate)
        settings = self._loss_settings(progress)
        estimated = self._estimate(batch, settings, progress)
        largest = max(batch.valid.shape[0], self._sampling.batch_segments) * batch.valid.shape[1]
        self._descent.begin(estimated.steps, settings, largest)
        epochs: list[_Epoch] = []
        for _ in range(ppo.epochs):
            epochs.append(self._train_epoch(estimated.steps, settings))
            if ppo.target_kl is not None and float(epochs[-1].movement.approximate_kl) > ppo.target_kl:
                break
        fresh_steps = self._learn_moments(batch)
        priority = priorities.segment_priorities(estimated.correction, batch.valid, self._sampling.eta)
        return TrainingOutcome(
            priorities=priority.double().cpu().numpy(),
            fresh_steps=fresh_steps,
            updates=sum(len(epoch.minibatches) for epoch in epochs),
            statistics=_statistics(batch, estimated, fresh_steps, epochs, rate),
        )

    def _set_learning_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def _loss_settings(self, progress: float) -> LossSettings:
        ppo = self._ppo
        return LossSettings(
            clip_range=schedules.scheduled(ppo.clip_range, ppo.clip_range_schedule, progress),
            value_clip_range=ppo.value_clip_range,
            value_coefficient=ppo.value_coefficient,
            entropy_coefficient=schedules.scheduled(ppo.entropy_coefficient, ppo.entropy_schedule, progress),
            normalise_advantages=ppo.normalise_advantages,
            clip_anchor=ppo.clip_anchor,
            behaviour_weight_clip=ppo.behaviour_weight_clip,
        )

    @torch.no_grad()
    def _estimate(self, batch: TrainingBatch, settings: LossSettings, progress: float) -> _Estimated:
        """Advantages, targets and weights under the parameters as they are now: the proximal policy."""
        # As the gradient steps see it, so that their ratios begin at 1.
        with autocast(self._device, self._precision):
            distribution, proximal_value = self.policy.estimate(batch.observation)
        proximal_log_prob = distribution.log_prob(batch.action)
        # A row that only reset has an action nobody chose; its ratio must not reach a neighbour's trace.
        corrected = batch.valid if self._ppo.v_trace else torch.zeros_like(batch.valid)
        log_ratio = torch.where(corrected, proximal_log_prob - batch.behaviour_log_prob, 0.0)
        estimates = advantages.estimate(
            value=proximal_value,
            reward=self.policy.scale_rewards(batch.reward),
            terminated=batch.terminated,
            truncated=batch.truncated,
            log_ratio=log_ratio,
            discount=self._ppo.discount,
            trace_decay=self._ppo.trace_decay,
            rho_clip=self._ppo.rho_clip,
            trace_clip=self._ppo.trace_clip,
        )
        sampling = self._sampling
        importance = priorities.importance_weights(
            batch.priorities,
            batch.fresh_segments,
            alpha=sampling.alpha,
            beta=schedules.beta(sampling.beta, sampling.final_beta, progress),
            epsilon=sampling.epsilon,
        )
        valid = batch.valid
        proximal, behaviour = proximal_log_prob[valid], batch.behaviour_log_prob[valid]
        anchor, weight = losses.anchor(settings, proximal_log_prob=proximal, behaviour_log_prob=behaviour)
        importance = importance[:, None].expand_as(valid)[valid]
        steps = Steps(
            observation=batch.observation[:, :-1][valid],
            action=batch.action[valid],
            proximal_log_prob=proximal,
            proximal_value=proximal_value[:, :-1][valid],
            anchor_log_prob=anchor,
            advantage=estimates.advantage[valid],
            target=estimates.target[valid],
            importance=importance,
            policy_weight=importance * weight,
        )
        cut = ratio_of(proximal - behaviour).clamp(max=settings.behaviour_weight_clip)
        return _Estimated(steps, estimates.correction, behaviour_weight=cut)

    def _train_epoch(self, steps: Steps, settings: LossSettings) -> _Epoch:
        """Every valid step once, shuffled, in as equal minibatches as can be."""
        count = steps.advantage.shape[0]
        # A minibatch of nothing has no mean: its losses would be NaN.
        minibatches = max(1, min(self._ppo.minibatches, count))
        order = send(torch.randperm(count, generator=self.generator), self._device)
        done = self._descent.descend(order, minibatches)
        movement = losses.movement(
            settings,
            log_prob=torch.cat([each.log_prob for each in done]),
            anchor_log_prob=steps.anchor_log_prob[order],
            proximal_log_prob=steps.proximal_log_prob[order],
        )
        return _Epoch(done, movement)

    def _learn_moments(self, batch: TrainingBatch) -> int:
        """Fresh segments enter the normalisers once, after the last epoch, so that they stand still within a batch."""
        fresh = slice(None, batch.fresh_segments)
        valid = batch.valid[fresh]
        self.policy.learn_moments(batch.observation[fresh, :-1][valid], batch.discounted_return[fresh][valid])
        return int(valid.sum())


@torch.no_grad()
def _statistics(
    batch: TrainingBatch, estimated: _Estimated, fresh_steps: int, epochs: list[_Epoch], rate: float
) -> TrainingStatistics:
    steps, weight = estimated.steps, estimated.behaviour_weight
    minibatches = [minibatch for epoch in epochs for minibatch in epoch.minibatches]
    means = (
        [minibatch.policy_loss for minibatch in minibatches],
        [minibatch.value_loss for minibatch in minibatches],
        [minibatch.entropy for minibatch in minibatches],
        [minibatch.gradient_norm for minibatch in minibatches],
        [epoch.movement.approximate_kl for epoch in epochs],
        [epoch.movement.clipped for epoch in epochs],
    )
    unexplained = (steps.target - steps.proximal_value).var(unbiased=False)
    explained = 1.0 - unexplained / steps.target.var(unbiased=False).clamp(min=1e-8)
    shares = (_effective_share(weight), _effective_share(weight[:fresh_steps]), explained)
    # The one place where the device is waited for.
    numbers = torch.stack([*(torch.stack(each).mean() for each in means), *shares]).tolist()
    return TrainingStatistics(
        policy_loss=numbers[0],
        value_loss=numbers[1],
        entropy=numbers[2],
        gradient_norm=numbers[3],
        approximate_kl=numbers[4],
        clipped_share=numbers[5],
        learning_rate=rate,
        effective_sample_share=numbers[6],
        fresh_effective_share=numbers[7],
        explained_variance=numbers[8],
        staleness_mean=float(batch.staleness.mean()),
        staleness_max=int(batch.staleness.max()),
        fresh_lag_mean=float(batch.staleness[: batch.fresh_segments].mean()) if batch.fresh_segments else 0.0,
        fresh_lag_max=int(batch.staleness[: batch.fresh_segments].max(initial=0)),
    )


def _effective_share(weight: Tensor) -> Tensor:
    if not weight.shape[0]:
        return weight.new_ones(())
    return weight.sum().square() / (weight.square().sum() * weight.shape[0]).clamp(min=1e-8)
