"""The training step: a batch in, better parameters and new priorities out.

`Learner.train` reads like the algorithm: estimate once, optimise for some epochs, learn the normalisers, hand back
priorities. It knows nothing of services, versions or files.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.algo import advantages, priorities
from penstock.algo.losses import Losses, LossSettings, ppo_loss
from penstock.algo.policies import Network, Policy
from penstock.algo.ratios import ratio_of
from penstock.config import PPOConfig, SamplingConfig
from penstock.learning import schedules
from penstock.learning.batches import TrainingBatch
from penstock.types import EnvironmentSpec

_KL = 3
"""Where the KL divergence stands in what `_descend` returns."""


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
    behaviour_log_prob: Tensor
    advantage: Tensor
    target: Tensor
    importance: Tensor

    def take(self, rows: Tensor) -> "_Steps":
        """The chosen rows, in this order."""
        return _Steps(*(getattr(self, name)[rows] for name in self.__slots__))

    def split(self, parts: int) -> list["_Steps"]:
        """As equal parts as can be, in order, without copies."""
        split = [torch.tensor_split(getattr(self, name), parts) for name in self.__slots__]
        return [_Steps(*columns) for columns in zip(*split, strict=True)]


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
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=ppo.learning_rate, eps=1e-5, fused=True)
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
        steps, correction = self._estimate(batch, progress)
        trail: list[Tensor] = []
        for _ in range(ppo.epochs):
            epoch = [self._descend(minibatch, settings) for minibatch in self._minibatches(steps)]
            trail += epoch
            if ppo.target_kl is not None and float(torch.stack(epoch)[:, _KL].mean()) > ppo.target_kl:
                break
        fresh_steps = self._learn_moments(batch)
        priority = priorities.segment_priorities(correction, batch.valid, self._sampling.eta)
        return TrainingOutcome(
            priorities=priority.double().cpu().numpy(),
            fresh_steps=fresh_steps,
            updates=len(trail),
            statistics=self._statistics(batch, steps, fresh_steps, trail, rate),
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
    def _estimate(self, batch: TrainingBatch, progress: float) -> tuple[_Steps, Tensor]:
        """Advantages, targets and weights under the parameters as they are now: the proximal policy."""
        proximal_value = self.policy.value(batch.observation)
        proximal_log_prob = self.policy.distribution(batch.observation[:, :-1]).log_prob(batch.action)
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
        steps = _Steps(
            observation=batch.observation[:, :-1][valid],
            action=batch.action[valid],
            proximal_log_prob=proximal_log_prob[valid],
            proximal_value=proximal_value[:, :-1][valid],
            behaviour_log_prob=batch.behaviour_log_prob[valid],
            advantage=estimates.advantage[valid],
            target=estimates.target[valid],
            importance=importance[:, None].expand_as(valid)[valid],
        )
        return steps, estimates.correction

    def _minibatches(self, steps: _Steps) -> list[_Steps]:
        """Every valid step once, shuffled, in as equal minibatches as can be."""
        count = steps.advantage.shape[0]
        # A minibatch of nothing has no mean: its losses would be NaN.
        parts = max(1, min(self._ppo.minibatches, count))
        order = torch.randperm(count, generator=self.generator).to(self._device)
        return steps.take(order).split(parts)

    def _descend(self, steps: _Steps, settings: LossSettings) -> Tensor:
        """One gradient step; <float32>[6] losses and the gradient's norm, left on the device."""
        distribution, value = self.policy.evaluate(steps.observation)
        losses: Losses = ppo_loss(
            settings,
            log_prob=distribution.log_prob(steps.action),
            value=value,
            entropy=distribution.entropy(),
            proximal_log_prob=steps.proximal_log_prob,
            proximal_value=steps.proximal_value,
            behaviour_log_prob=steps.behaviour_log_prob,
            advantage=steps.advantage,
            target=steps.target,
            importance=steps.importance,
        )
        self.optimizer.zero_grad(set_to_none=True)
        losses.total.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self._ppo.max_gradient_norm)
        self.optimizer.step()
        return torch.stack([losses.policy, losses.value, losses.entropy, losses.approximate_kl, losses.clipped, norm])

    def _learn_moments(self, batch: TrainingBatch) -> int:
        """Fresh segments enter the normalisers once, after the last epoch, so that they stand still within a batch."""
        fresh = slice(None, batch.fresh_segments)
        valid = batch.valid[fresh]
        self.policy.learn_moments(batch.observation[fresh, :-1][valid], batch.discounted_return[fresh][valid])
        return int(valid.sum())

    @torch.no_grad()
    def _statistics(
        self, batch: TrainingBatch, steps: _Steps, fresh_steps: int, trail: list[Tensor], rate: float
    ) -> TrainingStatistics:
        log_ratio = steps.proximal_log_prob - steps.behaviour_log_prob
        weight = ratio_of(log_ratio).clamp(max=self._ppo.behaviour_weight_clip)
        unexplained = (steps.target - steps.proximal_value).var(unbiased=False)
        explained = 1.0 - unexplained / steps.target.var(unbiased=False).clamp(min=1e-8)
        # The one place where the device is waited for.
        numbers = torch.cat(
            [
                torch.stack(trail).mean(0),
                torch.stack([_effective_share(weight), _effective_share(weight[:fresh_steps]), explained]),
            ]
        ).tolist()
        return TrainingStatistics(
            policy_loss=numbers[0],
            value_loss=numbers[1],
            entropy=numbers[2],
            approximate_kl=numbers[3],
            clipped_share=numbers[4],
            gradient_norm=numbers[5],
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
