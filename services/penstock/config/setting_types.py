"""The types of settings: the values that each accepts, and the conversion from text.

Options and environment variables are text. Numbers, lists and tables are converted here.
"""

import json
import os
import re
import shlex
import types
import typing
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from penstock.config.wanted import InWords
from penstock.machine.addresses import ADDRESS_FILE, parse_name
from penstock.machine.addresses import Address as ParsedAddress
from penstock.machine.environment_arguments import literal, plain, written
from penstock.machine.environment_names import absolute, absolute_program
from penstock.types.replay import MAX_SLOTS
from penstock.types.run import MOST_INFO_METRICS

_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")
_COUNT = re.compile(r"(?P<number>\d[\d_,]*(\.\d+)?(e\+?\d+)?)\s*(?P<unit>[kM])?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1_000, "m": 1_000_000}
_INFO_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]{0,63}")
_OPENING, _CLOSING = "[{(", "]})"


def read_scalar(text: object) -> object:
    """Returns the value that text spells in JSON or in Python: a number, a boolean, None, a list, or quoted text.

    Other text, and values that are not text, are returned unchanged.
    """
    if not isinstance(text, str):
        return text
    for read in (json.loads, literal):
        try:
            value = read(text)
        except (ValueError, RecursionError):
            continue
        return text if value is Ellipsis else value
    return text


def read_bool(value: object) -> bool:
    """Returns a boolean, or one that is written as text. Raises `ValueError` for anything else."""
    known = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    found = known.get(str(value).lower())
    if found is None:
        raise ValueError(f"must be true or false; got {value!r}")
    return found


def read_count(value: object) -> object:
    """Returns a whole number that is written like 1e6, 1M, 500k or 1_000_000; other values unchanged."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    found = _COUNT.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        return value
    number = float(found["number"].replace("_", "").replace(",", "")) * _UNITS[(found["unit"] or "").lower()]
    return round(number) if number.is_integer() else value


def read_table(text: str) -> dict[str, object]:
    """Returns the table that text spells as name=value,name=value or in JSON.

    Raises `ValueError` with the expected form.
    """
    if text.lstrip().startswith("{"):
        whole = read_scalar(text)
        if isinstance(whole, dict):
            return whole
    table: dict[str, object] = {}
    for part in filter(None, map(str.strip, split_at_commas(text))):
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"must be name=value,name=value; got {text!r}")
        table[name.strip()] = read_scalar(value.strip())
    return table


def split_at_commas(text: str) -> list[str]:
    """Splits text at its commas, but not within brackets or quotes."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        else:
            depth += (character in _OPENING) - (character in _CLOSING)
        if character == "," and depth <= 0 and not quote:
            parts.append("")
        else:
            parts[-1] += character
    return parts


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


def is_list(annotation: object) -> bool:
    """Returns whether a setting of this type is a list."""
    return typing.get_origin(annotation) is tuple


def read_list(value: object) -> object:
    """Converts text from an option or a variable to a list: values separated by commas, with or without brackets."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    return [part.strip().strip("\"'") for part in inner.split(",") if part.strip()]


def _read_tables(value: object) -> object:
    """Converts text from an option or a variable to tables: a list in JSON or Python, or tables separated by commas."""
    if not isinstance(value, str):
        return value
    tables = read_scalar(value if value.lstrip().startswith("[") else f"[{value}]")
    if isinstance(tables, str):
        raise ValueError(f'must be a list of tables in JSON, like [{{"g": 9.0}}, {{"g": 11.0}}], not {value!r}')
    return tables


def _check_device(name: str) -> str:
    if not _DEVICE.fullmatch(name):
        raise ValueError(f"must be auto, cpu, cuda, or cuda:N for GPU number N; got {name!r}")
    return name


def _check_listen(text: str) -> str:
    return str(ParsedAddress.parse(text))


def _check_address(text: str) -> str:
    address = ParsedAddress.parse(text)
    if not address.port and not address.path:
        raise ValueError(f"must have a port from 1 to 65,535; got {text!r}")
    return str(address)


def _check_replay_address(text: str) -> str:
    return text if text.startswith(ADDRESS_FILE) else _check_address(text)


def _check_name(text: str) -> str:
    parse_name(text)
    return text


def _check_host(text: str) -> str:
    name = parse_name(text)
    if name.port or name.path:
        raise ValueError(f"must be a host's name or address, without a port; got {text!r}")
    return name.host


def _read_command(value: object) -> object:
    """Converts a list of arguments, also as text in JSON, to a line for a shell."""
    read = read_scalar(value) if isinstance(value, str) and value.lstrip().startswith("[") else value
    return shlex.join(map(str, read)) if isinstance(read, (list, tuple)) else value


def _check_notified(text: str) -> str:
    scheme, separator, rest = text.strip().partition("://")
    if not text.strip() or (separator and scheme.isalnum() and (scheme.lower() not in ("http", "https") or not rest)):
        raise ValueError(f"must be an address http://... or https://..., or a command; got {text!r}")
    return text.strip()


def _read_schedule(value: object) -> object:
    """Returns the name of a schedule, or its points as tuples. Raises `ValueError` with the accepted forms."""
    read = read_scalar(value) if isinstance(value, str) and value.lstrip().startswith("[") else value
    if isinstance(read, str) and read in _SCHEDULES:
        return read
    try:
        points: Any = read
        found = tuple((float(progress), float(share)) for progress, share in points)
    except (TypeError, ValueError):
        found = ()
    places = [progress for progress, _ in found]
    if not found or not all(0.0 <= each <= 1.0 for point in found for each in point):
        raise ValueError(f"must be {_SCHEDULE}; got {value!r}")
    if places != sorted(set(places)):
        raise ValueError(f"must have points in the order of their progress, each at another one; got {value!r}")
    return found


def _check_info_keys(keys: tuple[str, ...]) -> tuple[str, ...]:
    wrong = next((key for key in keys if not _INFO_KEY.fullmatch(key)), None)
    if wrong is not None:
        raise ValueError(
            f"must have keys of at most 64 letters, digits and _ . / -, which begin with a letter or _; got {wrong!r}"
        )
    if len(set(keys)) < len(keys):
        raise ValueError(f"must have different keys; got {', '.join(keys)}")
    return keys


def _read_padding(value: object) -> object:
    return value if value == "auto" else read_list(value)


def _read_auto(value: object) -> object:
    return 0 if value == "auto" else value


def _read_degree(value: object) -> object:
    return AUTO_DEGREE if value == "auto" else value


UnitInterval = Annotated[float, Field(ge=0.0, le=1.0)]
_SCHEDULES = ("constant", "linear", "cosine")
_SCHEDULE = "constant, linear, cosine, or points of progress and share from 0 to 1, such as [[0, 1], [0.5, 0.1]]"
Schedule = Annotated[
    Literal["constant", "linear", "cosine"] | tuple[tuple[float, float], ...],
    pydantic.PlainValidator(_read_schedule),
    # Its values are plain already.
    pydantic.PlainSerializer(lambda value: value, return_type=Any),
    InWords(_SCHEDULE),
]
"""How a setting changes over a run. Points are joined by straight lines."""
MetricsPort = Annotated[
    Annotated[int, Field(ge=0, le=65535)] | Literal["auto"], InWords("a port, 0 for none, or auto for any free port")
]
ListenAddress = Annotated[
    str,
    pydantic.AfterValidator(_check_listen),
    InWords("host:port (0: any free port), [IPv6]:port or unix:PATH"),
]
Address = Annotated[
    str, pydantic.AfterValidator(_check_address), InWords("an address host:port, such as 10.0.0.1:7431, or unix:PATH")
]
ProjectName = Annotated[
    str,
    Field(pattern=r"^[\w.-]+$", max_length=100),
    InWords("a name of at most 100 letters, digits, dots, dashes and underscores"),
]
NodeName = Annotated[
    str, Field(pattern=r"^[^\s\x00-\x1f\x7f]{1,253}$"), InWords("a name of at most 253 characters, without spaces")
]
"""The name of a node or a job. Names of hosts have at most 253 characters."""
Host = Annotated[str, pydantic.AfterValidator(_check_host), InWords("a host's name or address, without a port")]
Device = Annotated[str, pydantic.AfterValidator(_check_device), InWords("auto, cpu, cuda, or cuda:N for GPU number N")]
ActorSlots = Annotated[int, Field(ge=1, le=MAX_SLOTS)]
Temperature = Annotated[float, Field(ge=0.01, le=100.0)]
Addresses = Annotated[
    tuple[Address, ...],
    pydantic.BeforeValidator(read_list),
    Field(min_length=1),
    InWords("addresses host:port, separated by commas"),
]
ReplayAddresses = Annotated[
    tuple[Annotated[str, pydantic.AfterValidator(_check_replay_address)], ...],
    pydantic.BeforeValidator(read_list),
    Field(min_length=1),
    InWords("addresses host:port or file:PATH, separated by commas"),
]
Names = Annotated[
    tuple[Annotated[str, pydantic.AfterValidator(_check_name)], ...],
    pydantic.BeforeValidator(read_list),
    InWords("hosts or addresses host:port, separated by commas"),
]
EnvironmentName = Annotated[str, pydantic.AfterValidator(absolute)]
Interpreter = Annotated[str, pydantic.AfterValidator(absolute_program)]
_AbsolutePath = Annotated[
    str,
    pydantic.BeforeValidator(lambda value: os.fspath(value) if isinstance(value, os.PathLike) else value),
    pydantic.AfterValidator(os.path.abspath),
]
RunOrCheckpoint = Annotated[_AbsolutePath, InWords("the folder of a run or a .safetensors file")]
DemonstrationFile = Annotated[_AbsolutePath, InWords("a .safetensors file of penstock.record_demonstrations")]
Modules = Annotated[
    tuple[EnvironmentName, ...], pydantic.BeforeValidator(read_list), InWords("modules, separated by commas")
]
Notified = Annotated[
    str,
    pydantic.BeforeValidator(_read_command),
    pydantic.AfterValidator(_check_notified),
    InWords("an address http://... or https://..., or a command as one line or a list of arguments"),
]
InfoKeys = Annotated[
    tuple[str, ...],
    pydantic.BeforeValidator(read_list),
    Field(max_length=MOST_INFO_METRICS),
    pydantic.AfterValidator(_check_info_keys),
    InWords(f"at most {MOST_INFO_METRICS} keys, separated by commas, such as success,final.distance"),
]
"""Keys of infos. They are labels in Prometheus, and parts of names in records and in TensorBoard."""
PartName = Annotated[str, Field(min_length=1)]
PartNames = Annotated[
    tuple[PartName, ...], pydantic.BeforeValidator(read_list), InWords("names of parts, separated by commas")
]
Count = Annotated[
    PositiveInt, pydantic.BeforeValidator(read_count), InWords("a whole number above 0, such as 1000 or 1e6")
]
Minutes = Annotated[PositiveFloat, InWords("a number of minutes above 0, such as 30")]
# 0 is replaced by `config.Config`, so that no other part sees it.
DerivedCount = Annotated[
    int, pydantic.BeforeValidator(_read_auto), Field(ge=0), InWords("a whole number above 0, or auto")
]
AUTO_DEGREE = -1
# `config.Config.degree` replaces -1 by a number.
DerivedDegree = Annotated[
    int, pydantic.BeforeValidator(_read_degree), Field(ge=AUTO_DEGREE), InWords("a whole number, 0 or more, or auto")
]
Sizes = Annotated[
    tuple[PositiveInt, ...],
    pydantic.BeforeValidator(read_list),
    InWords("whole numbers above 0, separated by commas, such as 256,256"),
]
PaddedSizes = Annotated[
    Literal["auto"] | tuple[NonNegativeInt, NonNegativeInt] | None,
    pydantic.BeforeValidator(_read_padding),
    InWords("auto, none, or the numbers of an observation and of an action, such as 24,6"),
]
Numbers = Annotated[
    tuple[float, ...],
    pydantic.BeforeValidator(read_list),
    InWords("a list of numbers, separated by commas, such as 0,4e6"),
]
Argument = Annotated[
    Any, pydantic.BeforeValidator(plain), pydantic.PlainSerializer(written, return_type=Any, when_used="json")
]
"""An argument of an environment; numbers may be infinite or NaN."""
Arguments = dict[str, Argument]
Tables = Annotated[tuple[Arguments, ...], pydantic.BeforeValidator(_read_tables), InWords("a list of tables in JSON")]
