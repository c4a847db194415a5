"""Execution by torch, whose results are the definition for the others."""

import torch
from torch import Tensor

from penstock.algo import advantages, losses, priorities
from penstock.algo.advantages import LARGEST_SPREAD, Estimate, Estimates, ratio_of
from penstock.algo.losses import LossSettings, Movement
from penstock.algo.policies import Inputs, Policy
from penstock.config import PPOConfig, Precision
from penstock.learning.step.batches import TrainingBatch
from penstock.learning.step.devices import autocast
from penstock.learning.step.execution import Descent
from penstock.learning.step.gradient_steps import Descended, Estimated, GradientStep, Steps


class TorchExecution:
    """Execution by torch's operations, with any executor of gradient steps. Implements `Execution`.

    Attributes:
        name: Name of the executor in `learner.execution`.
        descent: The executor of gradient steps.
        gradients: Implements `Execution`, operation by operation. Compiled code would be compiled for each number of
            rows.
    """

    def __init__(
        self,
        name: str,
        policy: Policy,
        step: GradientStep,
        descent: Descent,
        *,
        ppo: PPOConfig,
        device: torch.device,
        precision: Precision,
        estimate: Estimate | None = None,
    ) -> None:
        """Computes with this policy, whose parameters the executor changes by this step, on this device.

        Advantages come from V-trace, or from `estimate` with functions of the user's own.
        """
        self._estimate = estimate or advantages.estimate
        self.name, self.descent, self.gradients = name, descent, step.gradients
        self._policy, self._ppo, self._device, self._precision = policy, ppo, device, precision
        # Once, because the search walks over all modules.
        self._pairs = bool(policy.auxiliary_networks)

    def evaluate(self, inputs: Inputs, actions: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Implements `Execution`."""
        # In the precision of the gradient steps, so that their ratios begin at 1.
        with autocast(self._device, self._precision):
            distribution, value = self._policy.evaluate(inputs, burn_in=self._ppo.burn_in_steps, bootstraps=True)
        return distribution.log_prob(actions), value

    def estimate(
        self,
        batch: TrainingBatch,
        settings: LossSettings,
        *,
        log_prob: Tensor,
        value: Tensor,
        reward: Tensor,
        importance: Tensor,
    ) -> Estimated:
        """Implements `Execution`."""
        log_ratio = log_prob - batch.behaviour_log_prob
        # No policy chose the action of a reset row. `<=` is false for NaN.
        known = batch.valid & (log_ratio.abs() <= LARGEST_SPREAD)
        estimates = self._estimate(
            value=value,
            reward=reward,
            terminated=batch.terminated,
            truncated=batch.truncated,
            usable=known,
            log_ratio=torch.where(known, log_ratio, 0.0) if self._ppo.v_trace else torch.zeros_like(log_ratio),
            discount=self._ppo.discount,
            trace_decay=self._ppo.trace_decay,
            rho_clip=self._ppo.rho_clip,
            trace_clip=self._ppo.trace_clip,
        )
        usable = estimates.sound
        if self._policy.memory_shape is not None:
            # A state after an unsound row is unsound too, and so is its gradient.
            usable = usable & ~(batch.valid & ~usable).any(1, keepdim=True)
        steps = _steps_of(
            batch,
            estimates,
            usable,
            settings=settings,
            proximal_log_prob=log_prob,
            proximal_value=value,
            importance=importance,
            pairs=self._pairs,
        )
        rows, chosen = batch.rows, usable if batch.rows is None else batch.rows.steps
        moved = log_prob[chosen] - batch.behaviour_log_prob[chosen]
        weight = ratio_of(moved).clamp(max=settings.behaviour_weight_clip)
        counted = None if rows is None else usable[chosen]
        return Estimated(
            usable=usable,
            stored_count=int(usable[: batch.stored_segments].sum()) if rows is None else rows.counts.stored_steps,
            fresh_count=int(usable[: batch.fresh_segments].sum()) if rows is None else rows.counts.fresh_steps,
            steps=steps,
            correction=estimates.correction,
            priority=priorities.segment_priorities(estimates.advantage, usable),
            error=priorities.mean_errors(estimates.correction, usable),
            behaviour_weight=weight if counted is None else torch.where(counted, weight, 0.0),
            counted=counted,
        )

    def begin(self, steps: Steps, settings: LossSettings, most_steps: int) -> None:
        """Implements `Descent`."""
        self._steps, self._settings = steps, settings
        self.descent.begin(steps, settings, most_steps)

    def descend(self, order: Tensor, minibatches: int) -> Descended:
        """Implements `Descent`."""
        return self.descent.descend(order, minibatches)

    def movement(self, order: Tensor, log_prob: Tensor) -> Movement:
        """Implements `Execution`."""
        steps = self._steps
        return losses.movement(
            self._settings,
            log_prob=log_prob,
            anchor_log_prob=steps.anchor_log_prob.index_select(0, order),
            proximal_log_prob=steps.proximal_log_prob.index_select(0, order),
            counted=None if steps.usable is None else steps.usable.index_select(0, order),
        )


def _steps_of(
    batch: TrainingBatch,
    estimates: Estimates,
    usable: Tensor,
    *,
    settings: LossSettings,
    proximal_log_prob: Tensor,
    proximal_value: Tensor,
    importance: Tensor,
    pairs: bool,
) -> Steps:
    """Returns the usable rows, <bool>[B, T], of a batch or, with memory, the segments that have some.

    With `pairs`, they have the observations after them.

    Where only the device knows which these are, the steps are the valid rows or their segments, with `Steps.usable`.
    """
    recurrent, index = batch.memory is not None, _index_of(batch, usable)

    def of(value: Tensor) -> Tensor:
        return (value if recurrent else value.flatten(0, 1)).index_select(0, index)

    proximal, behaviour = of(proximal_log_prob), of(batch.behaviour_log_prob)
    anchor, weight = losses.anchor(settings, proximal_log_prob=proximal, behaviour_log_prob=behaviour)
    importance = of(importance[:, None].expand_as(usable))
    return Steps(
        inputs=Inputs(
            observation=tuple(of(leaf[:, :-1]) for leaf in batch.observation),
            mask=None if batch.action_mask is None else of(batch.action_mask),
            state=None if batch.memory is None else of(batch.memory),
            begun=None if batch.begun is None else of(batch.begun[:, :-1]),
            following=tuple(of(leaf[:, -usable.shape[1] :]) for leaf in batch.observation) if pairs else (),
            # After the end of an episode, the next row may show the first observation of another one.
            goes_on=of(~batch.terminated) if pairs else None,
        ),
        action=tuple(of(leaf) for leaf in batch.action),
        proximal_log_prob=proximal,
        proximal_value=of(proximal_value[:, :-1]),
        anchor_log_prob=anchor,
        advantage=of(estimates.advantage),
        target=of(estimates.target),
        importance=importance,
        policy_weight=importance * weight,
        usable=of(usable) if recurrent or batch.rows is not None else None,
    )


def _index_of(batch: TrainingBatch, usable: Tensor) -> Tensor:
    """Returns the numbers, <int64>[N], of the rows in [B * T] or, with memory, of the segments that `_steps_of` takes.

    A mask in their place would be counted for each column.
    """
    rows = batch.rows
    if batch.memory is not None:
        return usable.any(1).nonzero().squeeze(1) if rows is None else rows.segments
    return usable.flatten().nonzero().squeeze(1) if rows is None else rows.segment * usable.shape[1] + rows.step
