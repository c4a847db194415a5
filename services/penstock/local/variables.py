"""Penstock's environment variables: settings, and a few others.

An unknown variable with Penstock's prefix is refused, since the user probably meant a setting.
"""

import difflib
import json
import os
import re
import sys
from collections.abc import Mapping

from penstock.config import Config, setting_names
from penstock.config.sections import fields
from penstock.config.setting_types import is_table, read_scalar, read_table
from penstock.errors import ConfigurationError
from penstock.machine.environment_arguments import NONE
from penstock.machine.installation import INSTALLATION
from penstock.process.environment_process import ARGUMENTS_VARIABLE
from penstock.process.service import COMMIT_VARIABLE, PRESET_VARIABLE, START_VARIABLE, SUPERVISED_VARIABLE
from penstock.runs.end import VARIABLES

SETTING_PREFIX = "PENSTOCK__"

OF_COMPOSE = (
    COMMIT_VARIABLE,
    "PENSTOCK_RUN",
    "PENSTOCK_ACTORS",
    "PENSTOCK_PACKAGES",
    "PENSTOCK_COMPILER",
    "PENSTOCK_TORCH",
    "PENSTOCK_REPLAY_MEMORY",
    "PENSTOCK_LEARNER_MEMORY",
    "PENSTOCK_ACTOR_MEMORY",
    "PENSTOCK_TAG",
    "PENSTOCK_REGISTRY",
    "PENSTOCK_SETTINGS",
    "PENSTOCK_ACTOR_CPUS",
    "PENSTOCK_LEARNER_CPUS",
    "PENSTOCK_GPU",
    "PENSTOCK_CERTIFICATES",
    "PENSTOCK_CERTIFICATES_VERSION",
)
"""Variables that docker-compose.yml and deploy/swarm read themselves; `.env` passes all of them into containers."""

_PREFIX = "PENSTOCK_"
_OF_KUBERNETES = re.compile(r"_SERVICE_(HOST|PORT)(_\w+)?$|_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?$")
"""Variables that a pod gets for every service in its namespace, such as one called penstock-learner."""


def settings_of_variables() -> dict[str, object]:
    """Returns the nested values of all `PENSTOCK__SECTION__KEY` variables.

    `PENSTOCK__SECTION__KEY__NAME` is one element of a table, and `PENSTOCK__SECTION` is a whole section in JSON. A
    variable for one value overrides one for a table.

    Raises `ConfigurationError` if a variable with Penstock's prefix is unknown, or a table can't be read.
    """
    values: dict[str, object] = {}
    # The shortest first, so that those for one value override those for tables.
    for name, text in sorted(os.environ.items(), key=lambda item: item[0].count("__")):
        check_variable(name.upper(), name, text)
        if name.upper().startswith(SETTING_PREFIX):
            _put(values, name.upper().removeprefix(SETTING_PREFIX).lower().split("__"), text, name.upper())
    return values


def _put(values: dict[str, object], path: list[str], text: str, name: str) -> None:
    """Puts the value of a variable into nested values."""
    field = fields().get(".".join(path[:2]))
    if len(path) == 1 or (len(path) == 2 and field is not None and is_table(field.annotation)):
        value: object = _table(name, text)
    else:
        unset = None if text == NONE else text
        value = read_scalar(text) if len(path) > 2 else unset
    inner = values
    for key in path[:-1]:
        below = inner.setdefault(key, {})
        assert isinstance(below, dict)
        inner = below
    inner[path[-1]] = value


def _table(name: str, text: str) -> dict[str, object]:
    try:
        return read_table(text)
    except ValueError as error:
        raise ConfigurationError(f"the variable {name} {error}") from None


def without_settings(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that do not change the settings of a process."""
    return {
        name: value
        for name, value in variables.items()
        if not name.upper().startswith(SETTING_PREFIX) and name.upper() != PRESET_VARIABLE
    }


def of_services(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of a run's services: no settings, and the arguments of this process for environments."""
    return without_settings(variables) | {ARGUMENTS_VARIABLE: json.dumps(sys.argv)}


def check_variable(name: str, written: str, text: str) -> None:
    """Raises `ConfigurationError` if a variable with Penstock's prefix is none of Penstock's; `written` is shown."""
    if not name.startswith(_PREFIX):
        return
    if name.startswith(SETTING_PREFIX):
        if name.removeprefix(SETTING_PREFIX).partition("__")[0].lower() not in Config.model_fields:
            raise ConfigurationError(
                f"the variable {written} has an unknown section; choose from: {', '.join(Config.model_fields)}"
                f"{meant_by(name)}"
            )
        return
    is_link = _OF_KUBERNETES.search(name) or "://" in text
    of_others = (INSTALLATION, SUPERVISED_VARIABLE, START_VARIABLE, ARGUMENTS_VARIABLE, *VARIABLES.values())
    if name not in (PRESET_VARIABLE, *of_others, *OF_COMPOSE) and not is_link:
        raise ConfigurationError(
            f"the variable {written} is not a setting; settings are named PENSTOCK__SECTION__KEY, with two underscores"
            f" before section and key{meant_by(name) or '; correct the name'}, or unset it"
        )


def meant_by(name: str) -> str:
    """Returns a clause that suggests the settings the name may mean; empty if there are none."""
    settings = {f"{SETTING_PREFIX}{setting.replace('.', '__').upper()}": setting for setting in setting_names()}
    bare = _squeezed(name).removeprefix("PENSTOCK")
    same = [each for each in settings if _squeezed(each) == _squeezed(name)]
    same = same or [each for each, setting in settings.items() if _squeezed(setting.partition(".")[2]) == bare.lower()]
    meant = same or difflib.get_close_matches(name, [*settings, PRESET_VARIABLE, *OF_COMPOSE], n=1, cutoff=0.8)
    return f"; write {' or '.join(meant)}" if meant else ""


def _squeezed(name: str) -> str:
    return name.replace("_", "")
