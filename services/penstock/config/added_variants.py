"""Which variants may be added to the environment during a run (`penstock variants add`)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.config.settings.environment import EnvironmentConfig
from penstock.errors import ConfigurationError


def check_added(environment: EnvironmentConfig, arguments: Mapping[str, Any]) -> None:
    """Raises `ConfigurationError` if a variant with these arguments can't be added to the configured ones.

    Whoever may change the variants of a run could otherwise have its actors import code or open files. Numbers can do
    neither, and other values must be among those that the actor's own user has configured.
    """
    known: dict[str, list[object]] = {}
    for variant in environment.variants:
        for name, value in variant.items():
            known.setdefault(name, []).append(value)
    for name, value in arguments.items():
        if name not in known:
            raise ConfigurationError(
                f"no table of environment.variants has the argument {name!r}; a variant that is added may have"
                f" {', '.join(known) or 'none'}"
            )
        if not _acceptable(value, known[name]):
            raise ConfigurationError(
                f"the argument {name} of a variant that is added must be a finite number, a list of them, or one of"
                f" its values in environment.variants, not {value!r}"
            )
    environment.shown({**environment.kwargs, **arguments})


def _acceptable(value: object, known: Sequence[object]) -> bool:
    numbers = value if isinstance(value, (list, tuple)) else [value]
    if all(isinstance(each, (bool, int, float)) and math.isfinite(each) for each in numbers):
        return True
    return any(type(value) is type(each) and value == each for each in known)
