"""A loss of the user's own (`learner.loss`) as the objective of gradient steps.

It refuses results with which no gradient step can be taken, and orders the statistics. `code` imports and calls the
loss, and `loss_check` tries it before training.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from penstock.algo.losses import Losses, LossSettings, counted_mean, standardised
from penstock.algo.policies import Policy
from penstock.config import Precision
from penstock.learning.step.devices import autocast
from penstock.learning.step.gradient_steps import Objective, Steps, counted_steps
from penstock.learning.step.own.code import OwnFunction, shown
from penstock.losses import Minibatch
from penstock.types.statistics import LearningNumbers, declared

_OF_PPO = ("policy_loss", "value_loss")
"""Statistics that a loss may report in place of PPO's."""

_MEASURED = {*declared(LearningNumbers), "auxiliary"} - set(_OF_PPO)
"""Statistics that the learner measures itself."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_MOST_STATISTICS = 32


class OwnLoss:
    """A user's loss. Used by one thread.

    Attributes:
        function: The function that the setting names.
        statistics: Names of its own statistics (`Losses.own`), known after the first call.
    """

    def __init__(self, name: str) -> None:
        """Imports the loss of this name, and makes it if it is a class.

        Raises `ConfigurationError` if there is none, or it can't be called with a policy, a batch and settings.
        """
        self.function = OwnFunction(
            "learner.loss",
            name,
            examples="file.py:my_loss or my_package.my_module:MyLoss",
            arguments=("policy", "batch", "settings"),
        )
        found = self.function.function
        if isinstance(found, nn.Module) and any(True for _ in found.parameters()):
            raise self.function.refusal(
                "has parameters of its own, which would not be trained", "put them into a network (policy.module)"
            )
        self._names: tuple[str, ...] | None = None
        self.statistics: tuple[str, ...] = ()

    def objective(self, policy: Policy, precision: Precision, device: torch.device, burn_in: int) -> Objective:
        """Returns the objective with this loss, as `gradient_steps.objective_of`.

        It raises `TrainingFailed` if the loss raises an exception, or returns what can't be minimised.
        """

        def objective(steps: Steps, settings: LossSettings, counted: Tensor | None) -> tuple[Tensor, Losses]:
            with autocast(device, precision):
                distribution, value = policy.evaluate(steps.inputs, burn_in=burn_in)
            counts, advantage = counted_steps(steps.usable, counted), steps.advantage
            if settings.normalise_advantages:
                advantage = standardised(advantage, steps.importance, counts)
                settings = dataclasses.replace(settings, normalise_advantages=False)
            batch = Minibatch(
                log_prob=distribution.log_prob(steps.action),
                value=value,
                entropy=distribution.entropy(),
                distribution=distribution,
                inputs=steps.inputs,
                action=steps.action,
                proximal_log_prob=steps.proximal_log_prob,
                proximal_value=steps.proximal_value,
                anchor_log_prob=steps.anchor_log_prob,
                advantage=advantage,
                target=steps.target,
                importance=steps.importance,
                policy_weight=steps.policy_weight,
                counted=counts,
            )
            return batch.log_prob, self._losses(policy, batch, settings)

        return objective

    def introduction(self, execution: str, *, waits: bool) -> str:
        """Returns a notice that this loss is trained, by this execution; `waits` as `loss_check.Trial`."""
        why = ", because the loss waits for the GPU and can't be captured" if waits and execution == "eager" else ""
        return (
            f"learner.loss {self.function.name} replaces the loss of PPO, so torch takes the steps ({execution}{why})"
        )

    def _losses(self, policy: Policy, batch: Minibatch, settings: LossSettings) -> Losses:
        result = self.function(policy, batch, settings)
        total, statistics = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
        if not isinstance(total, Tensor) or total.ndim or not total.is_floating_point():
            raise self.function.fault(
                f"returned {shown(result)}",
                "return a tensor of one float, such as batch.mean(...), alone or in a tuple with a dict of statistics",
            )
        if not total.requires_grad:
            raise self.function.fault(
                "returned a tensor without a gradient",
                "compute it from batch.log_prob, batch.value, batch.entropy or batch.distribution, without .detach(),"
                " .item() and torch.no_grad()",
            )
        own = self._ordered(statistics, total.device)
        unknown = total.detach().new_full((), math.nan)
        policy_loss, value_loss = (own.pop(name, unknown) for name in _OF_PPO)
        entropy = counted_mean(batch.entropy.detach(), batch.counted)
        return Losses(total, policy_loss, value_loss, entropy, tuple(own.values()))

    def _ordered(self, statistics: Any, device: torch.device) -> dict[str, Tensor]:
        """Returns statistics, <float32>[] each, in the order of the first call, whose names all calls have."""
        if not isinstance(statistics, Mapping):
            raise self.function.fault(
                f"returned statistics of type {type(statistics).__name__}", "return them in a dict"
            )
        if self._names is None:
            for name in statistics:
                self._check_name(name)
            if len(statistics) > _MOST_STATISTICS:
                raise self.function.fault(
                    f"returned {len(statistics)} statistics", f"return at most {_MOST_STATISTICS}"
                )
            self._names = tuple(statistics)
            self.statistics = tuple(name for name in self._names if name not in _OF_PPO)
        if statistics.keys() != set(self._names):
            raise self.function.fault(
                f"returned the statistics {', '.join(statistics) or 'none'}, and {', '.join(self._names) or 'none'} in"
                " its first call",
                "return the same names in each call, with NaN for an unknown number",
            )
        return {name: self._number(name, statistics[name], device) for name in self._names}

    def _check_name(self, name: object) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise self.function.fault(
                f"returned a statistic with the name {name!r}",
                "use up to 40 lower-case letters, digits and underscores",
            )
        if name in _MEASURED:
            raise self.function.fault(
                f"returned the statistic {name}, which the learner measures", "give it another name"
            )

    def _number(self, name: str, value: object, device: torch.device) -> Tensor:
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise self.function.fault(
                f"returned {shown(value)} as the statistic {name}", "return a tensor of one number, such as its mean"
            )
        return value.detach().reshape(()).to(device, torch.float32)
