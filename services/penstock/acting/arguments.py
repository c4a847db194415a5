"""Checks the arguments of an environment against the signature of its constructor.

An argument such as "no" remains text, and a constructor treats any text that is not empty as true.
"""

import inspect
from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

from penstock.errors import ConfigurationError


def check_arguments(
    made: gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any], env_id: str, kwargs: Mapping[str, object]
) -> None:
    """Raises an error if an argument is text and its default is True or False.

    Args:
        made: The environment, or its own vectorised form, made with these arguments.
        env_id: Gymnasium id, for messages.
        kwargs: Arguments that were passed to `gymnasium.make`.

    Raises:
        ConfigurationError: An argument is text where its default is True or False.
    """
    texts = {name: value for name, value in kwargs.items() if isinstance(value, str)}
    if not texts:
        return
    parameters = inspect.signature(type(made.unwrapped)).parameters
    for name, text in texts.items():
        if name in parameters and isinstance(default := parameters[name].default, bool):
            raise ConfigurationError(
                f"the argument {name} of {env_id} must be True or False (its default is {default}), not the text"
                f" {text!r}; write {name}=True or {name}=False"
            )
