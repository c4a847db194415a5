"""Wrappers of Gymnasium that the user puts around each environment (`environment.wrappers`).

`vectors` and `cli.film` wrap the environments that they have made. A wrapper that does not exist, does not fit or fails
is refused in one line.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium

from penstock.acting.environments.refusals import can_not_wrap
from penstock.errors import ConfigurationError
from penstock.machine import environment_names, extras, foreign_errors
from penstock.machine.module_imports import import_named
from penstock.machine.spelling import question, similar

Wrapping = Mapping[str, Any]
"""The name of a wrapper, as in `environment.wrappers`, and its arguments."""


_OWN = {
    "OneChoice": "penstock.acting.environments.wrappers.one_choice",
    "TextTokens": "penstock.acting.environments.wrappers.texts",
    **dict.fromkeys(("PadAction", "PadObservation", "ShowNumbers"), "penstock.acting.environments.wrappers.bodies"),
}
"""Wrappers of Penstock, by their names, and their modules."""


def wrapped(made: gymnasium.Env[Any, Any], env_id: str, wrappers: Sequence[Wrapping]) -> gymnasium.Env[Any, Any]:
    """Returns an environment in these wrappers, the first one innermost.

    It imports the modules of the wrappers. Raises `ConfigurationError`, after it has closed the environment, if there
    is no such wrapper, or if the wrapper fails.
    """
    env = made
    try:
        for each in wrappers:
            arguments = {name: value for name, value in each.items() if name != "name"}
            env = _wrapped(env, env_id, each["name"], arguments)
    except BaseException:
        foreign_errors.close_quietly(env)
        raise
    return env


def _wrapped(
    env: gymnasium.Env[Any, Any], env_id: str, name: str, arguments: Mapping[str, Any]
) -> gymnasium.Env[Any, Any]:
    wrapper = _found(env_id, name)
    try:
        result = wrapper(env, **arguments)
    except ConfigurationError as error:
        # A wrapper of Penstock says what to change.
        raise _unusable(env_id, name, str(error)) from error
    except foreign_errors.MISBEHAVIOUR as error:
        foreign_errors.let_ctrl_c_pass(error)
        raise can_not_wrap(env_id, name, error, wrapper, arguments) from error
    if isinstance(result, gymnasium.Env):
        return result
    raise _unusable(
        env_id,
        name,
        f"it returned an object of {type(result).__qualname__}, not an environment of Gymnasium; correct it, or remove"
        " it from environment.wrappers",
    )


def _found(env_id: str, name: str) -> Callable[..., object]:
    """Returns the class or function of a name. Raises `ConfigurationError` if there is none."""
    place, rest = environment_names.split(name)
    if not place and rest in _OWN:
        place = _OWN[rest]
    elif not place:
        if rest not in (known := [*_OWN, *(each for each in gymnasium.wrappers.__all__ if each != "vector")]):
            meant = question(similar(rest, known))
            raise _unusable(
                env_id,
                name,
                f"gymnasium.wrappers has no {rest!r}; {f'{meant} Otherwise, ' if meant else ''}your own wrapper needs"
                " file.py:Class or package.module:Class in environment.wrappers",
            )
        place = gymnasium.wrappers.__name__
    try:
        found = import_named(place, rest)
    except ConfigurationError as error:
        raise _unusable(env_id, name, str(error)) from error
    except ImportError as error:
        # Gymnasium imports the packages of wrappers for other arrays when these wrappers are used.
        raise extras.lacking(f"the wrapper {name}", extras.missing_module(error) or place) from error
    if callable(found):
        return found
    raise _unusable(
        env_id,
        name,
        f"{place} has no class or function {rest!r}; correct the part of the name after the colon in"
        " environment.wrappers",
    )


def _unusable(env_id: str, name: str, reason: str) -> ConfigurationError:
    return ConfigurationError(f"can't wrap the environment {env_id!r} in {name}: {reason}")
