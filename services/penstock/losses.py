"""Losses of one's own (`learner.loss`): the minibatch that they get, and the loss of PPO as one of them.

    from penstock.losses import LossSettings, Minibatch, Policy, ppo

    def my_loss(policy: Policy, batch: Minibatch, settings: LossSettings) -> Tensor:
        loss, statistics = ppo(policy, batch, settings)
        return loss + 0.01 * batch.mean(batch.value.square())

`learning.step.own.loss` calls such a function once for each gradient step; docs/change-the-algorithm.md is its guide.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from penstock.algo.distributions import Joint
from penstock.algo.losses import LossSettings, counted_mean, ppo_loss
from penstock.algo.policies import Inputs, Policy

__all__ = ["Inputs", "Joint", "Loss", "LossResult", "LossSettings", "Minibatch", "Policy", "ppo"]


@dataclass(frozen=True, slots=True)
class Minibatch:
    """Steps on which one gradient step is taken, with the policy's outputs for them.

    For example, a loss (`learner.loss`) without a clip::

        def unclipped(policy, batch: penstock.Minibatch, settings: penstock.LossSettings):
            ratio = (batch.log_prob - batch.anchor_log_prob).exp()
            values = batch.mean(batch.importance * (batch.value - batch.target).square())
            return values - batch.mean(batch.policy_weight * ratio * batch.advantage)

    A row is a step, and [N] is one dimension. With `policy.memory`, a row is a segment, and [N] is [S, T]: S segments
    of T steps. Every tensor is <float32>[N] on the learner's device unless noted. The first three, and the parameters
    of the distribution, carry gradients.

    Attributes:
        log_prob: Log probabilities of the actions under the policy that is trained.
        value: Its values, in the units of `target`.
        entropy: Its entropies in nats.
        distribution: Its distribution of actions, with `log_prob(actions)`, `entropy()` and `parts`, one per leaf of
            the action, such as `Categorical` with `log_probs`, <float32>[N, n].
        inputs: Inputs of the policy, such as raw observations, [N, ...] per leaf.
        action: <int64>[N], <int64>[N, k] or <float32>[N, A] actions, one tensor per leaf. Continuous ones are relative
            to the range of the action.
        proximal_log_prob: Log probabilities under the policy before the first gradient step on this batch.
        proximal_value: Values of the policy before that step.
        anchor_log_prob: Log probabilities under the anchor, on which the clip is centred (`ppo.clip_anchor`).
        advantage: Advantages, with mean 0 and deviation 1 over the minibatch unless `ppo.normalise_advantages` is
            false.
        target: Targets of the values.
        importance: Weights that correct for draws by priority; 1 for fresh segments.
        policy_weight: The same, times the clipped ratio of the anchor to the policy that acted.
        counted: <bool>[N] steps that belong to the minibatch. The others fill it up to a constant size, or have no
            action, and must not affect the loss. None: all steps.
    """

    log_prob: Tensor
    value: Tensor
    entropy: Tensor
    distribution: Joint
    inputs: Inputs
    action: tuple[Tensor, ...]
    proximal_log_prob: Tensor
    proximal_value: Tensor
    anchor_log_prob: Tensor
    advantage: Tensor
    target: Tensor
    importance: Tensor
    policy_weight: Tensor
    counted: Tensor | None

    def mean(self, values: Tensor) -> Tensor:
        """Returns the mean, <float32>[], of values, <float32>[N], over the steps that count."""
        return counted_mean(values, self.counted)


LossResult = Tensor | tuple[Tensor, Mapping[str, Tensor]]
"""The loss to minimise, <float32>[] with a gradient, alone or with statistics by their names, each a tensor of one
number."""

Loss = Callable[[Policy, Minibatch, LossSettings], LossResult]
"""Function that returns a loss. Its settings are those of [ppo] at this time of the run, and its statistics have the
same names in every call. A class is made without arguments, and its instance is the function."""


def ppo(policy: Policy, batch: Minibatch, settings: LossSettings) -> tuple[Tensor, Mapping[str, Tensor]]:
    """Returns the loss of PPO, <float32>[], as it is without `learner.loss` (`algo.losses.ppo_loss`).

    Its statistics are `policy_loss` and `value_loss`, <float32>[] each.
    """
    found = ppo_loss(
        settings,
        log_prob=batch.log_prob,
        value=batch.value,
        entropy=batch.entropy,
        anchor_log_prob=batch.anchor_log_prob,
        proximal_value=batch.proximal_value,
        advantage=batch.advantage,
        target=batch.target,
        importance=batch.importance,
        policy_weight=batch.policy_weight,
        counted=batch.counted,
    )
    return found.total, {"policy_loss": found.policy, "value_loss": found.value}
