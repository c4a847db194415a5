"""Presets: TOML files that a user can read and copy, and how one is chosen for an environment.

`configured` decides for the command line and for Python alike what is underneath the values that a user gives.
"""

import importlib.resources
import re
import tomllib
from dataclasses import dataclass

from penstock.config import Config, build, merge
from penstock.errors import ConfigurationError

NO_PRESET = "none"
"""The name that asks for the defaults alone; an empty one does, too."""

_VERSION = re.compile(r"-v\d+$")


@dataclass(frozen=True, slots=True)
class Configured:
    """A configuration and what is underneath it.

    Attributes:
        config: All settings.
        preset: The name of the preset underneath; None: the defaults are.
    """

    config: Config
    preset: str | None


def configured(values: dict[str, object], *, preset: str | None = None) -> Configured:
    """Nested values on top of a preset, or of the defaults.

    Args:
        values: What the user gives.
        preset: Its name; `NO_PRESET` or empty for none. None: the one that ships for the environment, if one does;
            CartPole's where no environment is given.

    Raises:
        ConfigurationError: There is no such preset, it is for another environment, or a value is wrong.
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
    """A preset's configuration, with values of your own on top.

    Example: `preset("cartpole", run={"seed": 1}, ppo={"epochs": 4})`.

    Raises:
        ConfigurationError: As `configured`.
    """
    return configured(dict(sections), preset=name).config


def configure(**sections: dict[str, object]) -> Config:
    """The configuration that `penstock train` uses: your values, on the preset for the environment if one ships.

    Example: `configure(environment={"id": "Pendulum-v1"}, run={"seed": 1})`.

    Raises:
        ConfigurationError: As `configured`.
    """
    return configured(dict(sections)).config


def preset_names() -> list[str]:
    """The presets that ship with Penstock."""
    folder = importlib.resources.files(__package__)
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def preset_values(name: str) -> dict[str, object]:
    """The nested values of a shipped preset. Raises `ConfigurationError` if there is none of this name."""
    if name not in preset_names():
        raise ConfigurationError(f"no preset {name!r}; there are: {', '.join(preset_names())}, {NO_PRESET}")
    return tomllib.loads((importlib.resources.files(__package__) / f"{name}.toml").read_text())


def preset_for(environment_id: str) -> str | None:
    """The name of the preset made for this environment, if one ships.

    Gymnasium's other ways to write an id count: `package:Id-v0` imports a package first, and an id without a version
    is the latest, for which presets are.
    """
    wanted = environment_id.rpartition(":")[2]
    for name in preset_names():
        own = _environment_of(name)
        if wanted in (own, _VERSION.sub("", own)):
            return name
    return None


def _environment_of(name: str) -> str:
    """The id of the environment that a preset is for."""
    environment = preset_values(name)["environment"]
    assert isinstance(environment, dict)
    return str(environment["id"])


def _misfit(name: str, environment_id: str) -> str:
    fitting = preset_for(environment_id)
    instead = f"use the preset {fitting}, which is" if fitting else f"use {NO_PRESET} as the preset for the defaults"
    file = importlib.resources.files(__package__) / f"{name}.toml"
    return (
        f"the preset {name} is for {_environment_of(name)}, and environment.id is {environment_id}; {instead}"
        f"{' for it' if fitting else ''}, or copy {file}, change [environment] and [evaluation] in it and name the copy"
        " by --config"
    )
