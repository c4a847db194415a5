"""One-line errors for environments that can't be made, with the reason and a remedy."""

import contextlib
import inspect
import re
import traceback
from collections.abc import Callable, Collection

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from penstock.acting.environments.ids import unknown
from penstock.acting.values.faults import remedy_for
from penstock.errors import ConfigurationError
from penstock.machine import extras, foreign_errors

_UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")
_NOT_ARGUMENTS = ("self", "num_envs")
_OF_NOTHING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_SETTINGS = "environment.kwargs, environment.variants and environment.training_kwargs"


def can_not_make(name: str, error: BaseException, found: str | EnvSpec, given: Collection[str]) -> ConfigurationError:
    """Returns the error for an exception of `gymnasium.make(found)`.

    Args:
        name: The environment's name in messages.
        error: The exception.
        found: Object that could not be made.
        given: Names of the arguments that it was given.
    """
    if isinstance(error, (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv)) and isinstance(found, str):
        return unknown(found)
    reason = _reason(error, _taken(found), given, settings=_SETTINGS, remedy=remedy_for(error))
    return ConfigurationError(f"can't make the environment {name!r}: {reason}")


def can_not_wrap(
    name: str, wrapper: str, error: BaseException, creator: Callable[..., object], given: Collection[str]
) -> ConfigurationError:
    """Returns the error for an exception of a wrapper's class or function, with the names of its arguments."""
    remedy = "correct it, or remove it from environment.wrappers"
    if isinstance(error, AssertionError) and not str(error):
        # Gymnasium asserts without a text what a wrapper needs.
        line = traceback.extract_tb(error.__traceback__)[-1].line or ""
        error = AssertionError(line.removeprefix("assert ")).with_traceback(error.__traceback__)
    taken = _taken_by(creator)[1:]
    reason = _reason(error, taken, given, settings="environment.wrappers", remedy=remedy)
    return ConfigurationError(f"can't wrap the environment {name!r} in {wrapper}: {reason}")


def _reason(error: BaseException, taken: Collection[str], given: Collection[str], *, settings: str, remedy: str) -> str:
    unexpected = _UNEXPECTED.search(str(error)) if isinstance(error, TypeError) else None
    # A constructor can also pass other names on to code that does not take them, which is a fault of the environment.
    if unexpected and unexpected[1] in given and unexpected[1] not in taken:
        known = f"; it takes {', '.join(taken)}" if taken else ""
        return f"it takes no argument {unexpected[1]!r}{known}; check {settings}"
    text = foreign_errors.shortened(str(error)).rstrip(".")
    if module := extras.missing_module(error):
        return f"it needs {module}; {extras.installation(module)}"
    # The reason and the remedy are Gymnasium's: a missing extra, or another version.
    if isinstance(error, gymnasium.error.Error) and text:
        return text
    # Python's text for a call with other arguments than a constructor takes, if no line of the user made that call.
    called = isinstance(error, TypeError) and "argument" in str(error) and not foreign_errors.place_of(error)
    return f"{foreign_errors.explain(error)}; {f'check {settings}' if called else remedy}"


def _taken(found: str | EnvSpec) -> list[str]:
    """Returns the names of the arguments of the environment's constructor; none if they are unknown."""
    spec = gymnasium.registry.get(found) if isinstance(found, str) else found
    entry = None if spec is None else spec.entry_point or spec.vector_entry_point
    if entry is None:
        return []
    with contextlib.suppress(Exception):
        return _taken_by(load_env_creator(entry) if isinstance(entry, str) else entry)
    return []


def _taken_by(creator: Callable[..., object]) -> list[str]:
    with contextlib.suppress(Exception):
        parameters = inspect.signature(creator).parameters.values()
        return [each.name for each in parameters if each.kind not in _OF_NOTHING and each.name not in _NOT_ARGUMENTS]
    return []
