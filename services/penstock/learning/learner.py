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
from penstock.algo.losses import Losses, LossSettings, Movement
from penstock.algo.parameters import clip_gradient, flatten
from penstock.algo.policies import Network, Policy
from penstock.algo.ratios import ratio_of
from penstock.config import PPOConfig, SamplingConfig
from penstock.learning import schedules
from penstock.learning.batches import TrainingBatch
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
class _Steps:
    """The valid steps of a batch, a row each, with all that the loss needs; <float32>[N] but for the first two."""

    observation: Tensor
    action: Tensor
    proximal_log_prob: Tensor
    proximal_value: Tensor
    anchor_log_prob: Tensor
    advantage: Tensor
    target: Tensor
    importance: Tensor
    policy_weight: Tensor

    def take(self, rows: Tensor) -> "_Steps":
        """The chosen rows, in this order."""
        return _Steps(*(getattr(self, name)[rows] for name in self.__slots__))

    def split(self, parts: int) -> list["_Steps"]:
        """As equal parts as can be, in order, without copies."""
        split = [torch.tensor_split(getattr(self, name), parts) for name in self.__slots__]
        return [_Steps(*columns) for columns in zip(*split, strict=True)]


@dataclass(frozen=True, slots=True)
class _Estimated:
    """What is known of a batch before it is trained.

    Attributes:
        steps: To train on.
        correction: <float32>[B, T] D_t, which priorities are made of.
        behaviour_weight: <float32>[N] of its valid steps, proximal over behaviour probability, cut.
    """

    steps: _Steps
    correction: Tensor
    behaviour_weight: Tensor


@dataclass(frozen=True, slots=True)
class _Epoch:
    """One pass over a batch. Its scalars are left on the device, which nobody waits for until the batch is done.

    Attributes:
        losses: Of each minibatch.
        gradient_norms: Of each minibatch.
        movement: How far the policy had gone, as the minibatches found it.
    """

    losses: list[Losses]
    gradient_norms: list[Tensor]
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
    ) -> None:
        """Builds the policy of these spaces, initialised from `seed`.

        Raises:
            ConfigurationError: The spaces are not supported.
        """
        self._ppo, self._sampling, self._device = ppo, sampling, device
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.policy = Policy(spec, network).to(device)
        self.parameters = flatten(self.policy)
        self.optimizer = torch.optim.Adam([self.parameters], lr=ppo.learning_rate, eps=1e-5, fused=True)
        self.generator = torch.Generator().manual_seed(seed)

    def train(self, batch: TrainingBatch, progress: float) -> TrainingOutcome:
        """Trains on a batch for some epochs.

        Args:
            batch: On this learner's device.
            progress: Share of the run that is done, 0 to 1; schedules follow it.
        """
        ppo = self._ppo
        rate = schedules.scheduled(ppo.learning_rate, ppo.learning_rate_schedule, progress)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        settings = self._loss_settings(progress)
        estimated = self._estimate(batch, settings, progress)
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
            updates=sum(len(epoch.losses) for epoch in epochs),
            statistics=_statistics(batch, estimated, fresh_steps, epochs, rate),
        )

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
        distribution, proximal_value = self.policy.estimate(batch.observation)
        proximal_log_prob = distribution.log_prob(batch.action)
        # A row that only reset has an action nobody chose; its ratio must not reach a neighbour's trace.
        corrected = batch.valid if self._ppo.v_trace else torch.zeros_like(batch.valid)
        log_ratio = (proximal_log_prob - batch.behaviour_log_prob).where(corrected, torch.zeros(()))
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
        steps = _Steps(
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

    def _train_epoch(self, steps: _Steps, settings: LossSettings) -> _Epoch:
        """Every valid step once, shuffled, in as equal minibatches as can be."""
        count = steps.advantage.shape[0]
        # A minibatch of nothing has no mean: its losses would be NaN.
        parts = max(1, min(self._ppo.minibatches, count))
        shuffled = steps.take(torch.randperm(count, generator=self.generator).to(self._device))
        done = [self._descend(minibatch, settings) for minibatch in shuffled.split(parts)]
        log_probs, epoch_losses, norms = zip(*done, strict=True)
        movement = losses.movement(
            settings,
            log_prob=torch.cat(log_probs),
            anchor_log_prob=shuffled.anchor_log_prob,
            proximal_log_prob=shuffled.proximal_log_prob,
        )
        return _Epoch(list(epoch_losses), list(norms), movement)

    def _descend(self, steps: _Steps, settings: LossSettings) -> tuple[Tensor, Losses, Tensor]:
        """One gradient step; the log probabilities before it, the losses, and the gradient's norm."""
        distribution, value = self.policy.evaluate(steps.observation)
        log_prob = distribution.log_prob(steps.action)
        loss = losses.ppo_loss(
            settings,
            log_prob=log_prob,
            value=value,
            entropy=distribution.entropy(),
            anchor_log_prob=steps.anchor_log_prob,
            proximal_value=steps.proximal_value,
            advantage=steps.advantage,
            target=steps.target,
            importance=steps.importance,
            policy_weight=steps.policy_weight,
        )
        self.optimizer.zero_grad(set_to_none=False)
        loss.total.backward()  # type: ignore[no-untyped-call]
        norm = clip_gradient(self.parameters, self._ppo.max_gradient_norm)
        self.optimizer.step()
        return log_prob.detach(), loss, norm

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
    minibatches = [loss for epoch in epochs for loss in epoch.losses]
    means = (
        [loss.policy for loss in minibatches],
        [loss.value for loss in minibatches],
        [loss.entropy for loss in minibatches],
        [norm for epoch in epochs for norm in epoch.gradient_norms],
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
