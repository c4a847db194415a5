"""The types of settings: which values each takes, and how text becomes them.

Options and variables are text. Lists and tables of settings read theirs here, and `read_scalar` reads an argument of an
environment. Used by `config`, and by `cli.options` for the arguments of environments.
"""

import json
import re
import types
import typing
from typing import Annotated

import pydantic
from pydantic import Field, PositiveInt
from pydantic_settings import NoDecode

from penstock.types import MAX_SLOTS

NONE = "None"
"""How None is written among an environment's arguments in a file, since TOML has no null."""

_SPELLINGS = {"True": True, "False": False, NONE: None}
_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")


def read_scalar(text: object) -> object:
    """The value that text spells in JSON or in Python: a number, a truth value, None, or text in double quotes.

    Anything else remains as it is: other text, and a value that is no text.
    """
    if not isinstance(text, str):
        return text
    if text in _SPELLINGS:
        return _SPELLINGS[text]
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return text if isinstance(value, (list, dict)) else value


def takes_numbers_only(annotation: object) -> bool:
    """Whether a setting of this type is made of numbers, and of no truth values."""
    kinds = [kind for kind in _kinds(annotation) if issubclass(kind, (int, float))]
    return bool(kinds) and bool not in kinds


def _kinds(annotation: object) -> list[type]:
    """The classes that a type is made of."""
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return [annotation]
    return [kind for part in typing.get_args(annotation) for kind in _kinds(part)]


def holds_bool(value: object) -> bool:
    """Whether a value is a truth value or a list with one."""
    return isinstance(value, bool) or (isinstance(value, (list, tuple)) and any(holds_bool(each) for each in value))


def is_table(annotation: object) -> bool:
    """Whether a setting of this type is a table."""
    return typing.get_origin(annotation) is dict


def _read_list(value: object) -> object:
    """Text from an option or a variable becomes the list that it separates by commas, in brackets or without."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    return [part.strip().strip("\"'") for part in inner.split(",") if part.strip()]


def _read_tables(value: object) -> object:
    """Text from an option or a variable becomes the tables that it holds as JSON: a list, or separated by commas."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value if value.lstrip().startswith("[") else f"[{value}]")
    except ValueError:
        raise ValueError(
            f'must be a list of tables in JSON, like [{{"g": 9.0}}, {{"g": 11.0}}], not {value!r}'
        ) from None


def _check_argument(value: object) -> object:
    if not isinstance(value, (bool, int, float, str, types.NoneType)):
        raise ValueError(f"must be a number, true, false, text or None, got {value!r}")
    return None if value == NONE else value


def _check_device(name: str) -> str:
    if not _DEVICE.fullmatch(name):
        raise ValueError(f"must be auto, cpu, cuda, or cuda:N for the GPU of number N, got {name!r}")
    return name


UnitInterval = Annotated[float, Field(ge=0.0, le=1.0)]
Port = Annotated[int, Field(ge=0, le=65535)]
Address = Annotated[str, Field(pattern=r"^\S+:\d{1,5}$")]
Device = Annotated[str, pydantic.AfterValidator(_check_device)]
ActorSlots = Annotated[int, Field(ge=1, le=MAX_SLOTS)]
Temperature = Annotated[float, Field(ge=0.01, le=100.0)]
Addresses = Annotated[tuple[Address, ...], pydantic.BeforeValidator(_read_list), NoDecode, Field(min_length=1)]
Names = Annotated[tuple[str, ...], pydantic.BeforeValidator(_read_list), NoDecode]
Sizes = Annotated[tuple[PositiveInt, ...], pydantic.BeforeValidator(_read_list), NoDecode]
# An environment's own numbers need not be finite.
_AnyFloat = Annotated[float, Field(allow_inf_nan=True)]
Scalar = Annotated[bool | int | _AnyFloat | str | None, pydantic.BeforeValidator(_check_argument)]
Tables = Annotated[tuple[dict[str, Scalar], ...], pydantic.BeforeValidator(_read_tables), NoDecode]
