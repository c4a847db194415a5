"""The gradient step: a minibatch in, better parameters out. `execution` says how a device is made to take it.

A step whose gradient has no finite norm is refused: it changes neither the parameters nor the optimizer.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from penstock.algo import losses
from penstock.algo.losses import Losses, LossSettings
from penstock.algo.parameters import clip_gradient
from penstock.algo.policies import Policy
from penstock.config import Precision
from penstock.learning.adam import Adam
from penstock.learning.devices import autocast

_LARGEST_NORM = 1e18
"""Of a gradient. Adam keeps its square, which is still finite in float32."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Valid steps, a row each, with all that the loss needs; <float32>[N] but for the first two."""

    observation: Tensor
    action: Tensor
    proximal_log_prob: Tensor
    proximal_value: Tensor
    anchor_log_prob: Tensor
    advantage: Tensor
    target: Tensor
    importance: Tensor
    policy_weight: Tensor

    @property
    def columns(self) -> tuple[Tensor, ...]:
        """All of them, in order."""
        return tuple(getattr(self, name) for name in self.__slots__)

    def take(self, rows: Tensor) -> "Steps":
        """The chosen rows, in this order."""
        return Steps(*(column[rows] for column in self.columns))

    def split(self, parts: int) -> list["Steps"]:
        """As equal parts as can be, in order, without copies."""
        split = [torch.tensor_split(column, parts) for column in self.columns]
        return [Steps(*columns) for columns in zip(*split, strict=True)]


@dataclass(frozen=True, slots=True)
class Descended:
    """What a gradient step says of itself; on the device, where it may still be under way.

    Attributes:
        log_prob: <float32>[N] of the actions, before the step.
        policy_loss, value_loss, entropy: As in `Losses`.
        gradient_norm: Before it was clipped.
        refused: 1 if the step was refused, else 0.
    """

    log_prob: Tensor
    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor
    gradient_norm: Tensor
    refused: Tensor

    @property
    def scalars(self) -> tuple[Tensor, ...]:
        """All but the log probabilities, in order."""
        return tuple(getattr(self, name) for name in self.__slots__[1:])


Objective = Callable[[Steps, LossSettings, Tensor | None], tuple[Tensor, Losses]]
"""From steps, settings and which steps count to log probabilities and losses, with gradients."""


def objective_of(policy: Policy, precision: Precision, device: torch.device) -> Objective:
    """PPO's objective for a policy, its hidden layers in this precision."""

    def objective(steps: Steps, settings: LossSettings, counted: Tensor | None) -> tuple[Tensor, Losses]:
        with autocast(device, precision):
            distribution, value = policy.evaluate(steps.observation)
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
            counted=counted,
        )
        return log_prob, loss

    return objective


@dataclass(frozen=True, slots=True)
class GradientStep:
    """One step of Adam down the objective's gradient; waits for nothing on the device.

    A step is refused if the gradient's norm is not finite, or so large that Adam could not keep its square. Parameters
    stay finite then: Adam moves none by more than 10 times the learning rate in a step (Cauchy-Schwarz on its two
    moments gives 7.3), which the configuration bounds.

    Attributes:
        objective: What to descend.
        parameters: Flat, with their gradients.
        optimizer: Of the parameters; can leave a step out on the device.
        max_gradient_norm: Gradients are scaled down to it.
    """

    objective: Objective
    parameters: nn.Parameter
    optimizer: Adam
    max_gradient_norm: float

    def __call__(self, steps: Steps, settings: LossSettings, counted: Tensor | None = None) -> Descended:
        """Takes the step; `counted` as in `ppo_loss`."""
        log_prob, loss = self.objective(steps, settings, counted)
        self.optimizer.zero_gradient()
        loss.total.backward()  # type: ignore[no-untyped-call]
        norm = clip_gradient(self.parameters, self.max_gradient_norm)
        # `<` is false for NaN.
        refused = (norm < _LARGEST_NORM).logical_not().float()
        self.optimizer.step(refused)
        return Descended(log_prob.detach(), loss.policy, loss.value, loss.entropy, norm, refused)
