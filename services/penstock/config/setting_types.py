"""The types of settings: the values that each accepts, and the conversion from text.

Options and environment variables are text. Settings that are lists or tables are converted here, and `read_scalar`
converts an argument of an environment. Used by `config`, and by `cli.options` for the arguments of environments.
"""

import json
import re
import types
import typing
from typing import Annotated

import pydantic
from pydantic import Field, PositiveFloat, PositiveInt
from pydantic_settings import NoDecode

from penstock.environment_names import absolute
from penstock.types.replay import MAX_SLOTS

NONE = "None"
"""Spelling of None among an environment's arguments in a file, because TOML has no null."""

_SPELLINGS = {"True": True, "False": False, NONE: None}
_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")


def read_scalar(text: object) -> object:
    """Returns the value that text spells in JSON or in Python: a number, a boolean, None, or quoted text.

    Other text, and values that are not text, are returned unchanged.
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
    """Returns whether a setting of this type accepts numbers but no booleans."""
    kinds = [kind for kind in _kinds(annotation) if issubclass(kind, (int, float))]
    return bool(kinds) and bool not in kinds


def _kinds(annotation: object) -> list[type]:
    """Returns the classes that a type consists of."""
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return [annotation]
    return [kind for part in typing.get_args(annotation) for kind in _kinds(part)]


def holds_bool(value: object) -> bool:
    """Returns whether a value is a boolean or a list that contains one."""
    return isinstance(value, bool) or (isinstance(value, (list, tuple)) and any(holds_bool(each) for each in value))


def is_optional(annotation: object) -> bool:
    """Returns whether a setting of this type accepts None, and no text such as a folder, which may be called none."""
    parts = typing.get_args(annotation)
    return types.NoneType in parts and str not in parts


def is_table(annotation: object) -> bool:
    """Returns whether a setting of this type is a table."""
    return typing.get_origin(annotation) is dict


def _read_list(value: object) -> object:
    """Converts text from an option or a variable to a list: values separated by commas, with or without brackets."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    return [part.strip().strip("\"'") for part in inner.split(",") if part.strip()]


def _read_tables(value: object) -> object:
    """Converts text from an option or a variable to tables: a JSON list, or JSON objects separated by commas."""
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
        raise ValueError(f"must be auto, cpu, cuda, or cuda:N for GPU number N; got {name!r}")
    return name


def _described(wanted: str) -> pydantic.WrapValidator:
    """Returns a validator whose error states what is wanted, with a value that is accepted."""

    def check(value: object, accept: pydantic.ValidatorFunctionWrapHandler) -> object:
        try:
            return accept(value)
        except pydantic.ValidationError:
            raise ValueError(f"must be {wanted}; got {value!r}") from None

    return pydantic.WrapValidator(check)


def _read_auto(value: object) -> object:
    return 0 if value == "auto" else value


UnitInterval = Annotated[float, Field(ge=0.0, le=1.0)]
Port = Annotated[int, Field(ge=0, le=65535)]
Address = Annotated[str, Field(pattern=r"^\S+:\d{1,5}$")]
Device = Annotated[str, pydantic.AfterValidator(_check_device)]
ActorSlots = Annotated[int, Field(ge=1, le=MAX_SLOTS)]
Temperature = Annotated[float, Field(ge=0.01, le=100.0)]
Addresses = Annotated[tuple[Address, ...], pydantic.BeforeValidator(_read_list), NoDecode, Field(min_length=1)]
EnvironmentName = Annotated[str, pydantic.AfterValidator(absolute)]
Modules = Annotated[tuple[EnvironmentName, ...], pydantic.BeforeValidator(_read_list), NoDecode]
PartName = Annotated[str, Field(min_length=1)]
Count = Annotated[PositiveInt, _described("a whole number above 0, such as 1000")]
Minutes = Annotated[PositiveFloat, _described("a number of minutes above 0, such as 30")]
# 0 is replaced by `config.Config`, so that no other part sees it.
DerivedCount = Annotated[int, pydantic.BeforeValidator(_read_auto), Field(ge=0)]
Sizes = Annotated[tuple[PositiveInt, ...], pydantic.BeforeValidator(_read_list), NoDecode]
# The arguments of an environment may be infinite or NaN.
_AnyFloat = Annotated[float, Field(allow_inf_nan=True)]
Scalar = Annotated[bool | int | _AnyFloat | str | None, pydantic.BeforeValidator(_check_argument)]
Tables = Annotated[tuple[dict[str, Scalar], ...], pydantic.BeforeValidator(_read_tables), NoDecode]
