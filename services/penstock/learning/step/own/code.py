"""Functions of the user's own that settings name: their import, their calls, and messages about them in one line.

The learner imports them after `config.foreign_code` has refused names that a file alone gives. Each is tried before
training, and a fault found there is a mistake of the settings.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from penstock.errors import ConfigurationError, TrainingFailed
from penstock.machine import environment_names, foreign_errors
from penstock.machine.module_imports import import_for, instance_for


class OwnFunction:
    """A function that a setting names, or the instance of a class with `__call__`. Used by one thread.

    Attributes:
        setting: Name of the setting, such as "learner.loss".
        name: Its value.
        function: The function.
    """

    def __init__(
        self, setting: str, name: str, *, examples: str, arguments: Sequence[str], makes: bool = False
    ) -> None:
        """Imports the function, and makes it if it is a class.

        Args:
            setting: Name of the setting.
            name: Its value.
            examples: Values of the setting, for the message about one without a module.
            arguments: Names of the arguments that it takes.
            makes: Whether a class is the function itself, which makes an instance of it.

        Raises:
            ConfigurationError: There is no such function, or it does not take the arguments.
        """
        self.setting, self.name = setting, name
        self.function: Callable[..., Any] = self._imported(examples, makes=makes)
        self._check_arguments(arguments)

    @classmethod
    def of(cls, setting: str, name: str, function: Callable[..., Any]) -> "OwnFunction":
        """Returns a function that was imported before."""
        made = cls.__new__(cls)
        made.setting, made.name, made.function = setting, name, function
        return made

    def __call__(self, *arguments: object) -> Any:
        """Returns its result. Raises `TrainingFailed` with the line of the exception if it raises one."""
        try:
            return self.function(*arguments)
        except foreign_errors.MISBEHAVIOUR as error:
            foreign_errors.let_ctrl_c_pass(error)
            raise TrainingFailed(
                f"{self.setting} {self.name!r} failed: {foreign_errors.explain(error)}; correct it"
            ) from error

    def sentence(self, what: str, remedy: str) -> str:
        """Returns a sentence about the function, with its name and its line."""
        return f"{self.setting} {self.name!r}{_line_of(self.function)} {what}; {remedy}"

    def fault(self, what: str, remedy: str) -> TrainingFailed:
        """Returns the error of a function whose result can't be used."""
        return TrainingFailed(self.sentence(what, remedy))

    def refusal(self, fault: str, remedy: str) -> ConfigurationError:
        """Returns the error of a function that can't be called."""
        return ConfigurationError(f"{self.setting} {self.name!r} {fault}; {remedy}")

    def numbers(self, value: object, shape: torch.Size, device: torch.device, remedy: str) -> Tensor:
        """Returns a result, <float32>[*shape]. Raises `TrainingFailed` unless it is such a tensor of floats.

        The `remedy` ends before the shape.
        """
        if not isinstance(value, Tensor) or value.shape != shape or not value.is_floating_point():
            raise self.fault(f"returned {shown(value)}", f"{remedy} of shape {list(shape)}")
        if value.device != device:
            raise self.fault(f"returned a tensor on {value.device}", f"return it on {device}, as its inputs are")
        return value.detach().float()

    def _imported(self, examples: str, *, makes: bool) -> Callable[..., Any]:
        found: Any = import_for(self.setting, self.name, kind="function", examples=examples)
        if found is None:
            place, _ = environment_names.split(self.name)
            raise self.refusal(f"names nothing of {place}", "correct the part after the colon")
        if isinstance(found, type) and not makes:
            found = instance_for(self.setting, self.name, found)
        if not callable(found):
            raise self.refusal(
                f"is a {type(found).__name__}, which can't be called", "name a function, or a class with __call__"
            )
        function: Callable[..., Any] = found
        return function

    def _check_arguments(self, arguments: Sequence[str]) -> None:
        count = ("no", "one argument", "two arguments", "three arguments")[len(arguments)]
        try:
            inspect.signature(self.function).bind(*arguments)
        except TypeError as error:
            raise self.refusal(
                f"does not take {count}{_line_of(self.function)}: {error}", f"take ({', '.join(arguments)})"
            ) from error
        except ValueError:
            # Some callables of C have no signature.
            pass


@contextmanager
def before_training() -> Iterator[None]:
    """Raises a `TrainingFailed` of the block, which tries a function, as `ConfigurationError`."""
    try:
        yield
    except TrainingFailed as error:
        raise ConfigurationError(str(error)) from error


def shown(value: object) -> str:
    """Returns a description of a result that can't be used."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)} and type {value.dtype}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}, which begins with {shown(value[0])}" if value else "an empty tuple"
    return f"a value of type {type(value).__name__}"


def _line_of(function: object) -> str:
    """Returns the line at which a function, or the `__call__` of an object, begins; empty if it is not known."""
    for each in (function, type(function).__call__ if callable(function) else None):
        code = getattr(inspect.unwrap(each) if callable(each) else each, "__code__", None)
        if code is not None:
            return f" (line {code.co_firstlineno})"
    return ""
