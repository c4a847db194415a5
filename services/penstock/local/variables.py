"""Penstock's environment variables: settings, and a few others.

An unknown variable with Penstock's prefix is refused, since the user probably meant a setting.
"""

import difflib
import os
import re
from collections.abc import Mapping

from pydantic_settings import EnvSettingsSource, SettingsError

from penstock.config import Config, setting_names
from penstock.config.setting_types import NONE
from penstock.errors import ConfigurationError
from penstock.process.service import SUPERVISED_VARIABLE

SETTING_PREFIX = "PENSTOCK__"
PRESET = "PENSTOCK_PRESET"
"""Variable that names the preset if --preset does not; docker-compose.yml reads it as well."""

OF_COMPOSE = (
    "PENSTOCK_RUN",
    "PENSTOCK_ACTORS",
    "PENSTOCK_PACKAGES",
    "PENSTOCK_REPLAY_MEMORY",
    "PENSTOCK_LEARNER_MEMORY",
    "PENSTOCK_ACTOR_MEMORY",
    "PENSTOCK_TAG",
)
"""Variables that docker-compose.yml reads itself; its `.env` passes all of them into the containers."""

_PREFIX = "PENSTOCK_"
_OF_KUBERNETES = re.compile(r"_SERVICE_(HOST|PORT)(_\w+)?$|_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?$")
"""Variables that a pod gets for every service in its namespace, such as one called penstock-learner."""


def settings_of_variables() -> dict[str, object]:
    """Returns the nested values of all `PENSTOCK__SECTION__KEY` variables.

    Raises `ConfigurationError` if a variable with Penstock's prefix is unknown, or a table is not given as JSON.
    """
    for name, text in os.environ.items():
        _check(name.upper(), name, text)
    source = EnvSettingsSource(
        Config,  # type: ignore[arg-type]
        case_sensitive=False,
        env_prefix=SETTING_PREFIX,
        env_nested_delimiter="__",
        env_parse_none_str=NONE,
    )
    try:
        return source()
    except SettingsError:
        name, value = _unreadable(source)
        raise ConfigurationError(
            f'the variable {name.upper()} must be a table in JSON, such as {{"size": 5}}; got {value!r}'
        ) from None


def without_settings(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that do not change the settings of a process."""
    return {
        name: value
        for name, value in variables.items()
        if not name.upper().startswith(SETTING_PREFIX) and name.upper() != PRESET
    }


def _check(name: str, written: str, text: str) -> None:
    if not name.startswith(_PREFIX):
        return
    if name.startswith(SETTING_PREFIX):
        if name.removeprefix(SETTING_PREFIX).partition("__")[0].lower() not in Config.model_fields:
            raise ConfigurationError(
                f"the variable {written} has an unknown section; choose from: {', '.join(Config.model_fields)}"
                f"{_meant(name)}"
            )
        return
    is_link = _OF_KUBERNETES.search(name) or "://" in text
    if name not in (PRESET, SUPERVISED_VARIABLE, *OF_COMPOSE) and not is_link:
        raise ConfigurationError(
            f"the variable {written} is not a setting; settings are named PENSTOCK__SECTION__KEY, with two underscores"
            f" before section and key{_meant(name) or '; correct the name'}, or unset it"
        )


def _meant(name: str) -> str:
    """Returns a clause that suggests the settings the name may mean; empty if there are none."""
    settings = {f"{SETTING_PREFIX}{setting.replace('.', '__').upper()}": setting for setting in setting_names()}
    bare = _squeezed(name).removeprefix("PENSTOCK")
    same = [each for each in settings if _squeezed(each) == _squeezed(name)]
    same = same or [each for each, setting in settings.items() if _squeezed(setting.partition(".")[2]) == bare.lower()]
    meant = same or difflib.get_close_matches(name, [*settings, PRESET, *OF_COMPOSE], n=1, cutoff=0.8)
    return f"; write {' or '.join(meant)}" if meant else ""


def _squeezed(name: str) -> str:
    return name.replace("_", "")


def _unreadable(source: EnvSettingsSource) -> tuple[str, str | None]:
    """Returns the name and text of the variable that can't be parsed, since the error does not name it."""
    for name, text in dict(source.env_vars).items():
        source.env_vars = {name: text}
        try:
            source()
        except SettingsError:
            return name, text
    raise AssertionError("no variable fails alone")
