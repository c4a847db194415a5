"""Auxiliary losses of the networks of a user (`auxiliary_loss` of `policy.module`), added to the loss of a policy."""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from penstock.algo.losses import Losses, LossSettings, counted_mean
from penstock.algo.policies import Policy
from penstock.auxiliary import Transitions
from penstock.config import Precision
from penstock.learning.step.devices import autocast
from penstock.learning.step.gradient_steps import Objective, Steps, counted_steps
from penstock.learning.step.own.code import OwnFunction, before_training, shown
from penstock.learning.step.own.loss_check import made_up_steps

STATISTIC = "auxiliary"
"""Name of the mean auxiliary loss among the statistics of a loss (`Losses.own`)."""

_ROWS = 8


class OwnAuxiliary:
    """The auxiliary losses of a policy's networks, which were tried on made-up steps. Used by one thread.

    Attributes:
        notices: A line that these losses are added.
    """

    def __init__(self, policy: Policy, precision: Precision, device: torch.device, burn_in: int) -> None:
        """Calls the losses of a policy that has some for made-up steps. Leaves all random generators unchanged.

        Raises `ConfigurationError` if one fails, or does not return <float>[N], finite and with a gradient.
        """
        self._policy, self._precision, self._device, self._burn_in = policy, precision, device, burn_in
        name = f"{policy.network.module}.auxiliary_loss"
        losses: list[Any] = [each.auxiliary_loss for each in policy.auxiliary_networks]
        self._functions = [OwnFunction.of("policy.module", name, each) for each in losses]
        self.notices = [f"policy.module {policy.network.module} adds an auxiliary loss"]
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), before_training():
            mean = self._mean(made_up_steps(policy, _ROWS, burn_in), None)
            if not bool(mean.isfinite()):
                raise self._functions[0].fault(f"returned {mean.item():g} for made-up steps", "keep it finite")

    def added_to(self, objective: Objective) -> Objective:
        """Returns the objective with the means of these losses, which join its own statistics as the last one."""

        def whole(steps: Steps, settings: LossSettings, counted: Tensor | None) -> tuple[Tensor, Losses]:
            log_prob, losses = objective(steps, settings, counted)
            mean = self._mean(steps, counted)
            return log_prob, dataclasses.replace(
                losses, total=losses.total + mean, own=(*losses.own, mean.detach().float())
            )

        return whole

    def _mean(self, steps: Steps, counted: Tensor | None) -> Tensor:
        """Returns the sum of the mean losses of all networks, <float32>[]. Raises `TrainingFailed` as `OwnFunction`."""
        inputs, counts = steps.inputs, counted_steps(steps.usable, counted)
        assert inputs.goes_on is not None
        counts = inputs.goes_on if counts is None else inputs.goes_on & counts
        rows = counts.dim()
        actions = tuple(leaf.flatten(0, rows - 1) for leaf in steps.action)
        total = counts.new_zeros((), dtype=torch.float32)
        with autocast(self._device, self._precision):
            pairs = self._policy.features_of_pairs(inputs, self._burn_in)
            for function, (features, following) in zip(self._functions, pairs, strict=True):
                found = function(
                    Transitions(
                        features=features.flatten(0, rows - 1),
                        next_features=following.flatten(0, rows - 1),
                        action=actions[0] if len(actions) == 1 else actions,
                        counted=counts.flatten(),
                    )
                )
                total = total + counted_mean(self._checked(function, found, counts.numel()), counts.flatten())
        return total

    @staticmethod
    def _checked(function: OwnFunction, found: object, count: int) -> Tensor:
        if not isinstance(found, Tensor) or found.shape != (count,) or not found.is_floating_point():
            raise function.fault(f"returned {shown(found)}", f"return one loss per step, of shape [{count}]")
        if not found.requires_grad:
            raise function.fault(
                "returned a tensor without a gradient", "compute it from steps.features or the module's parameters"
            )
        return found.float()
