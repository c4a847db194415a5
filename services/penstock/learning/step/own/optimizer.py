"""An optimizer of the user's own (`learner.optimizer`) in place of Adam.

A function of the user makes it for the policy's parameters. Its state is saved with checkpoints, its learning rates
follow the schedule, and refused gradient steps leave it as it was. It is tried on copies of the parameters before
training: what can't be saved, or continues differently from a saved state, is refused.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from penstock.config import Execution
from penstock.errors import ConfigurationError, TrainingFailed
from penstock.learning.step.chosen_execution import ChosenExecution
from penstock.learning.step.own.code import OwnFunction, before_training, shown
from penstock.machine import foreign_errors

_NUMBERS = {"int": int, "float": float, "bool": bool}
"""Types of numbers in a state, which a checkpoint has as tensors whose names end with the type."""

_TOLERANCE = 1e-6


class OwnOptimizer:
    """A user's optimizer for some parameters, whose gradients are written in place. Used by one thread.

    Implements `gradient_steps.Optimizer`.

    Attributes:
        kind: Name of its class.
        learning_rate: Learning rate of the next steps, of a group with the rate that the function was given.
        capturable: Whether its steps can be captured into a CUDA graph.
    """

    def __init__(self, function: OwnFunction, parameters: Sequence[nn.Parameter], learning_rate: float) -> None:
        """Makes the optimizer. Raises `TrainingFailed` if the function returns no optimizer of these parameters."""
        self._function, self._parameters = function, parameters
        self._device, self._why = parameters[0].device, ""
        self._optimizer = self._made(learning_rate)
        self.kind = type(self._optimizer).__name__
        groups = self._optimizer.param_groups
        self.capturable = self._device.type == "cuda" and all(group.get("capturable", False) for group in groups)
        self.learning_rate, self._shares = learning_rate, [float(group["lr"]) / learning_rate for group in groups]
        if self.capturable:
            for group in groups:
                # A CUDA graph would capture a number as a constant.
                group["lr"] = torch.tensor(float(group["lr"]), device=self._device)

    @classmethod
    def of(cls, name: str, parameters: Sequence[nn.Parameter], learning_rate: float) -> "OwnOptimizer":
        """Returns the optimizer that the function of this name makes, after a trial on copies of the parameters.

        Leaves the parameters and all random generators unchanged. Raises `ConfigurationError` if it can't be used.
        """
        function = OwnFunction(
            "learner.optimizer",
            name,
            examples="file.py:my_optimizer, my_package.my_module:my_optimizer or torch.optim:AdamW",
            arguments=("parameters", "learning_rate"),
            makes=True,
        )
        device = parameters[0].device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), before_training():
            _try(function, parameters, learning_rate)
            return cls(function, parameters, learning_rate)

    def executed(self, chosen: ChosenExecution, execution: Execution) -> ChosenExecution:
        """Returns the execution that can take its steps. Raises `ConfigurationError` if `execution` demands another."""
        found = chosen if self.capturable else chosen.without_capture(execution)
        if found.name == "graphed" and not self.capturable:
            raise ConfigurationError(
                self._function.sentence(
                    f"makes {self.kind}, which can't be captured into a CUDA graph",
                    "give it capturable=True, or set learner.execution to auto or eager",
                )
            )
        self._why = ", because it is not capturable" if found != chosen else ""
        return found

    def notices(self, execution: str) -> list[str]:
        """Returns a line about its steps, with their execution, and findings with which training may begin."""
        name, count = self._function.name, len(self._parameters)
        lines = [
            f"learner.optimizer {name} makes {self.kind} in place of Adam, so torch takes the steps"
            f" ({execution}{self._why})"
        ]
        if left_out := count - sum(len(group["params"]) for group in self._optimizer.param_groups):
            what = f"leaves out {left_out} of the policy's {count} parameters"
            lines.append(self._function.sentence(what, "they will not be trained"))
        return lines

    @property
    def state(self) -> dict[str, Tensor]:
        """State by names of the form KIND/PARAMETER/KEY, on the device of the parameters; empty before the first step.

        Raises `TrainingFailed` if it can't be saved.
        """
        found = {}
        for position, values in self._state_dict()["state"].items():
            for key, value in values.items():
                name = f"{self.kind}/{position}/{key}"
                kind = type(value).__name__
                if isinstance(value, Tensor) and value.layout == torch.strided:
                    found[name] = value.detach().to(self._device)
                elif kind in _NUMBERS:
                    dtype = torch.float64 if kind == "float" else torch.int64
                    found[f"{name}:{kind}"] = torch.tensor(value, dtype=dtype, device=self._device)
                elif value is not None:
                    raise self._function.fault(
                        f"makes an optimizer with {shown(value)} in its state ({key!r}), which can't be saved",
                        "keep tensors and numbers there",
                    )
        return found

    @torch.no_grad()
    def step(self, refused: Tensor) -> None:
        """Takes a step, which changes nothing if `refused`, <float32>[] on the device, is 1.

        Waits for the device, unless the step is captured.
        """
        if not (self.capturable and torch.cuda.is_current_stream_capturing()):
            if not bool(refused):
                self._take_step()
            return
        held = [*self._parameters, *self.state.values()]
        if len(held) == len(self._parameters):
            # Its state would begin anew in each replay.
            raise TrainingFailed(
                "the first gradient steps were refused because their gradients had no finite norm, so the steps of"
                f" learner.optimizer {self._function.name} can't be captured; set learner.execution to eager"
            )
        before = [each.clone() for each in held]
        self._take_step()
        for each, earlier in zip(held, before, strict=True):
            each.copy_(torch.where(refused.bool(), earlier, each))

    def set_learning_rate(self, rate: float) -> None:
        """Scales the learning rates of all groups so that a group with the rate of the function gets this one."""
        self.learning_rate = rate
        for group, share in zip(self._optimizer.param_groups, self._shares, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(share * rate)
            else:
                group["lr"] = share * rate

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Copies a saved state; an empty one resets the state. Raises `ConfigurationError` for another optimizer's."""
        values: dict[int, dict[str, Any]] = {}
        for name, tensor in state.items():
            kind, _, rest = name.partition("/")
            position, _, key = rest.partition("/")
            if kind != self.kind or not rest or int(position) >= len(self._parameters):
                other = "Penstock's Adam" if not rest else kind if kind != self.kind else f"{kind} of more parameters"
                raise ConfigurationError(
                    f"it has the state of {other}, and learner.optimizer {self._function.name} makes {self.kind};"
                    " resume with the optimizer it was trained with"
                )
            key, _, number = key.partition(":")
            # Copied on the host, from where torch moves each value to the device where its optimizer keeps it.
            value = _NUMBERS[number](tensor.item()) if number else tensor.detach().cpu().clone()
            values.setdefault(int(position), {})[key] = value
        if not values:
            self._optimizer.state.clear()
            return
        self._optimizer.load_state_dict({**self._state_dict(), "state": values})

    def _take_step(self) -> None:
        try:
            self._optimizer.step()
        except foreign_errors.MISBEHAVIOUR as error:
            foreign_errors.let_ctrl_c_pass(error)
            raise self._function.fault(
                f"makes an optimizer whose step failed: {foreign_errors.explain(error)}", "correct it"
            ) from error

    def _state_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = self._optimizer.state_dict()
        if found.keys() != {"state", "param_groups"}:
            more = ", ".join(sorted(found.keys() - {"state", "param_groups"}))
            raise self._function.fault(
                f"makes an optimizer with {more or 'nothing'} in its state_dict, which can't be saved",
                "keep its values in `state`",
            )
        return found

    def _made(self, learning_rate: float) -> torch.optim.Optimizer:
        made = self._function(list(self._parameters), learning_rate)
        if not isinstance(made, torch.optim.Optimizer):
            raise self._function.fault(f"returned {shown(made)}", "return a torch.optim.Optimizer")
        own = {id(each) for each in self._parameters}
        if any(id(each) not in own for group in made.param_groups for each in group["params"]):
            raise self._function.fault(
                "makes an optimizer of tensors that are not parameters of the policy", "give it the first argument"
            )
        if not all("lr" in group for group in made.param_groups):
            raise self._function.fault(
                "makes an optimizer without a learning rate, so ppo.learning_rate can't have an effect",
                "keep the rate in its groups as lr",
            )
        return made


def _try(function: OwnFunction, parameters: Sequence[nn.Parameter], learning_rate: float) -> None:
    """Takes steps on copies of parameters. Raises `TrainingFailed` if no run could be trained or resumed."""
    copies, others = _copies(parameters), _copies(parameters)
    optimizer = OwnOptimizer(function, copies, learning_rate)
    addresses = [each.data_ptr() for each in copies]
    _take_random_step(optimizer, copies, seed=0)
    if [each.data_ptr() for each in copies] != addresses:
        raise function.fault("makes an optimizer that replaces the parameters", "change them in place")
    if not all(bool(each.isfinite().all()) for each in copies):
        raise function.fault("makes an optimizer whose step is not finite", "correct it, or lower ppo.learning_rate")
    resumed = OwnOptimizer(function, others, learning_rate)
    with torch.no_grad():
        for one, other in zip(copies, others, strict=True):
            other.copy_(one)
    resumed.load(optimizer.state)
    for each, of in ((optimizer, copies), (resumed, others)):
        _take_random_step(each, of, seed=1)
    pairs = zip(copies, others, strict=True)
    if not all(torch.allclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE * learning_rate) for one, other in pairs):
        raise function.fault(
            "makes an optimizer that continues differently from its saved state, so no run could be resumed",
            "keep all that its steps depend on in `state`",
        )


def _copies(parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
    return [nn.Parameter(each.detach().clone(), requires_grad=each.requires_grad) for each in parameters]


def _take_random_step(optimizer: OwnOptimizer, parameters: Sequence[nn.Parameter], *, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    for each in parameters:
        each.grad = 0.01 * torch.randn(each.shape, generator=draw).to(each.device)
    optimizer.step(torch.zeros((), device=parameters[0].device))
