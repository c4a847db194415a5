"""Wrappers in settings: the forms in which users write them, and the one form that all other parts receive.

That form is a table with the name of the wrapper and its arguments, which `acting.environments.wrappers.named` finds.
"""

import re
from collections.abc import Mapping
from typing import Annotated

import pydantic

from penstock.config.setting_types import Arguments, read_scalar, read_table, split_at_commas
from penstock.config.wanted import InWords
from penstock.machine import environment_names

_CALL = re.compile(r"(?P<name>[^({]+)\((?P<arguments>.*)\)", re.DOTALL)


def _read_wrappers(value: object) -> object:
    """Converts text or a list to tables, each with the name of a wrapper first."""
    if isinstance(value, str):
        text = value.strip()
        inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
        value = [_read_wrapper(part.strip()) for part in split_at_commas(inner) if part.strip()]
    elif not isinstance(value, (list, tuple)):
        value = [value]
    return tuple(map(_wrapper, value))


def _read_wrapper(text: str) -> object:
    if called := _CALL.fullmatch(text):
        return {"name": called["name"].strip(), **read_table(called["arguments"])}
    return read_scalar(text)


def _wrapper(value: object) -> dict[str, object]:
    """Returns the table of a wrapper that is given by its name, its class, or one of the tables that users know."""
    table = value if isinstance(value, Mapping) else {"name": value}
    if len(table) == 1 and "name" not in table:
        # The form of RL-Zoo.
        ((name, arguments),) = table.items()
        table = {"name": name, **arguments} if isinstance(arguments, Mapping) else table
    given = table.get("name")
    if not (isinstance(given, str) and given) and not callable(given):
        raise ValueError(f'must be a table with the name of a wrapper, such as {{name = "TimeLimit"}}; got {value!r}')
    return {**table, "name": _wrapper_name(environment_names.name_of(given, what="wrapper"))}


def _wrapper_name(name: str) -> str:
    """Returns the name of a wrapper: a class of `gymnasium.wrappers`, or module:Class or file.py:Class."""
    place, dot, rest = name.rpartition(".")
    if ":" not in name and dot and rest != "py":
        name = f"{place}:{rest}"
    place, rest = environment_names.split(name)
    return rest if f"{place}.".startswith("gymnasium.wrappers.") else environment_names.absolute(name)


Wrappers = Annotated[
    tuple[Arguments, ...],
    pydantic.BeforeValidator(_read_wrappers),
    InWords("wrappers, separated by commas, such as FlattenObservation,TimeLimit(max_episode_steps=100)"),
]
