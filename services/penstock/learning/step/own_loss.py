"""A loss of the user's own (`learner.loss`) as the objective of gradient steps.

It imports the loss, refuses results with which no gradient step can be taken, and orders the statistics. The learner
makes it, after `config.foreign_code` has refused names that a file alone gives; `loss_check` tries it before training.
"""

import dataclasses
import inspect
import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from penstock.algo.losses import Losses, LossSettings, counted_mean, standardised
from penstock.algo.policies import Policy
from penstock.config import Precision
from penstock.errors import ConfigurationError, TrainingFailed
from penstock.learning.step.devices import autocast
from penstock.learning.step.gradient_steps import Objective, Steps, counted_steps
from penstock.losses import Loss, Minibatch
from penstock.machine import environment_names, foreign_errors
from penstock.machine.module_imports import import_named
from penstock.types.statistics import LearningNumbers, declared

_OF_PPO = ("policy_loss", "value_loss")
"""Statistics that a loss may report in place of PPO's."""

_MEASURED = declared(LearningNumbers).keys() - set(_OF_PPO)
"""Statistics that the learner measures itself."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_MOST_STATISTICS = 32


class OwnLoss:
    """A user's loss. Used by one thread.

    Attributes:
        statistics: Names of its own statistics (`Losses.own`), known after the first call.
    """

    def __init__(self, name: str) -> None:
        """Imports the loss of this name, and makes it if it is a class.

        Raises `ConfigurationError` if there is none, or it can't be called with a policy, a batch and settings.
        """
        self._name = name
        self._function = _function_of(name)
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
        return f"learner.loss {self._name} replaces the loss of PPO, so torch takes the steps ({execution}{why})"

    def sentence(self, what: str, remedy: str) -> str:
        """Returns a sentence about the loss, with its name and its line."""
        return f"learner.loss {self._name!r}{_line_of(self._function)} {what}; {remedy}"

    def fault(self, what: str, remedy: str) -> TrainingFailed:
        """Returns the error of a loss with which no gradient step can be taken."""
        return TrainingFailed(self.sentence(what, remedy))

    def _losses(self, policy: Policy, batch: Minibatch, settings: LossSettings) -> Losses:
        try:
            result: Any = self._function(policy, batch, settings)
        except foreign_errors.MISBEHAVIOUR as error:
            foreign_errors.let_ctrl_c_pass(error)
            raise TrainingFailed(
                f"learner.loss {self._name!r} failed: {foreign_errors.explain(error)}; correct it"
            ) from error
        total, statistics = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
        if not isinstance(total, Tensor) or total.ndim or not total.is_floating_point():
            raise self.fault(
                f"returned {_shown(result)}",
                "return a tensor of one float, such as batch.mean(...), alone or in a tuple with a dict of statistics",
            )
        if not total.requires_grad:
            raise self.fault(
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
            raise self.fault(f"returned statistics of type {type(statistics).__name__}", "return them in a dict")
        if self._names is None:
            for name in statistics:
                self._check_name(name)
            if len(statistics) > _MOST_STATISTICS:
                raise self.fault(f"returned {len(statistics)} statistics", f"return at most {_MOST_STATISTICS}")
            self._names = tuple(statistics)
            self.statistics = tuple(name for name in self._names if name not in _OF_PPO)
        if statistics.keys() != set(self._names):
            raise self.fault(
                f"returned the statistics {', '.join(statistics) or 'none'}, and {', '.join(self._names) or 'none'} in"
                " its first call",
                "return the same names in each call, with NaN for an unknown number",
            )
        return {name: self._number(name, statistics[name], device) for name in self._names}

    def _check_name(self, name: object) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise self.fault(
                f"returned a statistic with the name {name!r}",
                "use up to 40 lower-case letters, digits and underscores",
            )
        if name in _MEASURED:
            raise self.fault(f"returned the statistic {name}, which the learner measures", "give it another name")

    def _number(self, name: str, value: object, device: torch.device) -> Tensor:
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise self.fault(
                f"returned {_shown(value)} as the statistic {name}", "return a tensor of one number, such as its mean"
            )
        return value.detach().reshape(()).to(device, torch.float32)


def _function_of(name: str) -> Loss:
    place, attribute = environment_names.split(name)
    if not place or not attribute:
        raise _refusal(
            name, "has no module or no function", "write it as file.py:my_loss or my_package.my_module:MyLoss"
        )
    try:
        found: Any = import_named(place, attribute)
    except ConfigurationError as error:
        raise ConfigurationError(f"learner.loss {name!r}: {error}") from error
    if found is None:
        raise _refusal(name, f"names nothing of {place}", "correct the part after the colon")
    if isinstance(found, type):
        try:
            found = found()
        except foreign_errors.MISBEHAVIOUR as error:
            foreign_errors.let_ctrl_c_pass(error)
            raise _refusal(
                name, f"can't be made without arguments: {foreign_errors.explain(error)}", "give them default values"
            ) from error
    if not callable(found):
        raise _refusal(
            name, f"is a {type(found).__name__}, which can't be called", "name a function, or a class with __call__"
        )
    if isinstance(found, nn.Module) and any(True for _ in found.parameters()):
        raise _refusal(
            name, "has parameters of its own, which would not be trained", "put them into a network (policy.module)"
        )
    try:
        inspect.signature(found).bind(None, None, None)
    except TypeError as error:
        raise _refusal(
            name, f"does not take three arguments{_line_of(found)}: {error}", "take (policy, batch, settings)"
        ) from error
    except ValueError:
        # Some callables of C have no signature.
        pass
    loss: Loss = found
    return loss


def _line_of(function: object) -> str:
    """Returns the line at which a function, or the `__call__` of an object, begins; empty if it is not known."""
    for each in (function, type(function).__call__ if callable(function) else None):
        code = getattr(inspect.unwrap(each) if callable(each) else each, "__code__", None)
        if code is not None:
            return f" (line {code.co_firstlineno})"
    return ""


def _shown(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)} and type {value.dtype}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}, which begins with {_shown(value[0])}" if value else "an empty tuple"
    return f"a value of type {type(value).__name__}"


def _refusal(name: str, fault: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(f"learner.loss {name!r} {fault}; {remedy}")
