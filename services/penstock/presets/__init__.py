"""Presets, which are TOML files that a user can read and copy, and the choice of one for an environment."""

import importlib.resources
import re
import tomllib
from typing import NamedTuple

from penstock.config import Config, build, merge
from penstock.errors import ConfigurationError

NO_PRESET = "none"
"""Name that selects the defaults alone; an empty name does the same."""

_VERSION = re.compile(r"-v\d+$")


class Configured(NamedTuple):
    """A configuration, and the name of the preset that it is based on; None: it is based on the defaults."""

    config: Config
    preset: str | None


def configured(values: dict[str, object], *, preset: str | None = None) -> Configured:
    """Returns the configuration of nested values that override a preset (`NO_PRESET` or empty: the defaults).

    Without a name it is the preset that ships for the environment, if there is one, and CartPole's without an
    environment. Raises `ConfigurationError` if the preset does not exist or is for another environment, or a value is
    invalid.
    """
    environment = values.get("environment")
    given = environment.get("id") if isinstance(environment, dict) else None
    if preset is None:
        chosen = preset_for(given if isinstance(given, str) else Config().environment.id)
    else:
        chosen = None if preset in ("", NO_PRESET) else preset
    if chosen is None:
        return Configured(build(values), None)
    below = preset_values(chosen)
    if isinstance(given, str) and preset_for(given) != chosen:
        raise ConfigurationError(_misfit(chosen, given))
    return Configured(build(merge(below, values)), chosen)


def preset(name: str, **sections: dict[str, object]) -> Config:
    """Returns the configuration of a preset, overridden by the given values.

    Example: `preset("cartpole", run={"seed": 1}, ppo={"epochs": 4})`.
    Raises `ConfigurationError` as `configured` does.
    """
    return configured(dict(sections), preset=name).config


def configure(**sections: dict[str, object]) -> Config:
    """Returns the configuration that `penstock train` uses: the given values on the environment's preset, if one ships.

    Example: `configure(environment={"id": "Pendulum-v1"}, run={"seed": 1})`.
    Raises `ConfigurationError` as `configured` does.
    """
    return configured(dict(sections)).config


def preset_names() -> list[str]:
    """Returns the names of the presets that ship with Penstock."""
    folder = importlib.resources.files(__package__)
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def preset_values(name: str) -> dict[str, object]:
    """Returns the nested values of a shipped preset. Raises `ConfigurationError` if it does not exist."""
    if name not in preset_names():
        raise ConfigurationError(f"unknown preset {name!r}; choose from: {', '.join(preset_names())}, {NO_PRESET}")
    return tomllib.loads((importlib.resources.files(__package__) / f"{name}.toml").read_text())


def preset_for(environment_id: str) -> str | None:
    """Returns the name of the preset that ships for this environment, or None.

    It recognises Gymnasium's other spellings of an id: `package:Id-v0` imports a package first, and an id without a
    version means the latest, to which the presets apply.
    """
    wanted = environment_id.rpartition(":")[2]
    for name in preset_names():
        own = _environment_of(name)
        if wanted in (own, _VERSION.sub("", own)):
            return name
    return None


def _environment_of(name: str) -> str:
    """Returns the id of the environment that a preset is for."""
    environment = preset_values(name)["environment"]
    assert isinstance(environment, dict)
    return str(environment["id"])


def _misfit(name: str, environment_id: str) -> str:
    fitting = preset_for(environment_id)
    instead = f"use the preset {fitting}" if fitting else f"use the preset {NO_PRESET} for the defaults"
    file = importlib.resources.files(__package__) / f"{name}.toml"
    return (
        f"the preset {name} is for {_environment_of(name)}, and environment.id is {environment_id}; {instead}, or copy"
        f" {file}, edit [environment] and [evaluation], and pass the copy with --config"
    )
