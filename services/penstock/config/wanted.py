"""The values that a setting accepts, in words, derived from its type."""

import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import pydantic
from pydantic.fields import FieldInfo


@dataclass(frozen=True, slots=True)
class InWords:
    """Words for a type that has a format of its own, as a part of its annotation."""

    text: str


def wanted(field: FieldInfo) -> str:
    """Returns a description of a setting's values: "a whole number from 1, or auto"."""
    return _joined(list(dict.fromkeys(_clauses(field.annotation, list(field.metadata)))))


def choices(field: FieldInfo) -> tuple[str, ...]:
    """Returns the words that a setting accepts, besides other values."""
    return tuple(_words(field.annotation))


def is_flag(field: FieldInfo) -> bool:
    """Returns whether a setting is true or false."""
    return field.annotation is bool


def _joined(alternatives: list[str]) -> str:
    *first, last = alternatives
    if not first:
        return last
    comma = "," if len(first) > 1 or " " in first[0] else ""
    return f"{', '.join(first)}{comma} or {last}"


def _words(annotation: object) -> Iterator[str]:
    if _origin(annotation) is Literal:
        yield from map(str, typing.get_args(annotation))
    for part in typing.get_args(annotation):
        yield from _words(part)


def _clauses(annotation: object, metadata: list[object]) -> Iterator[str]:
    origin = _origin(annotation)
    parts = typing.get_args(annotation)
    if hasattr(annotation, "__metadata__"):
        yield from _clauses(parts[0], [*parts[1:], *metadata])
        return
    words = [each.text for each in metadata if isinstance(each, InWords)]
    if words:
        yield words[0]
    elif origin in (typing.Union, types.UnionType):
        kinds = sorted(parts, key=lambda part: (part is types.NoneType, _origin(part) is Literal))
        for part in kinds:
            yield from _clauses(part, metadata)
    elif origin is Literal:
        yield from map(str, parts)
    elif annotation is types.NoneType:
        yield "none"
    elif annotation is bool:
        yield "true or false"
    elif isinstance(annotation, type) and issubclass(annotation, (int, float)):
        yield _number(annotation, metadata)
    elif isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        yield "a table of settings"
    elif origin is tuple:
        yield "a list"
    elif origin is dict:
        words = list(_words(parts[1]))
        yield f"a table of {_joined(words)}" if words else "a table"
    else:
        yield "text"


def _origin(annotation: object) -> object:
    return typing.get_origin(annotation)


def _number(kind: type, metadata: list[object]) -> str:
    """Describes a number with its bounds."""
    bounds: dict[str, float] = {}
    for each in metadata:
        for part in each.metadata if isinstance(each, FieldInfo) else [each]:
            bounds |= {
                name: value for name in ("gt", "ge", "lt", "le") if (value := getattr(part, name, None)) is not None
            }
    whole = issubclass(kind, int)
    low, high = bounds.get("ge"), bounds.get("le")
    if whole:
        low = bounds["gt"] + 1 if "gt" in bounds else low
        high = bounds["lt"] - 1 if "lt" in bounds else high
    name = "a size in bytes" if kind is pydantic.ByteSize else "a whole number" if whole else "a number"
    below = f"from {_figure(low)}" if low is not None else f"above {bounds['gt']:g}" if "gt" in bounds else ""
    above = f"{'to' if low is not None else 'at most'} {_figure(high)}" if high is not None else ""
    above = f"below {bounds['lt']:g}" if not above and "lt" in bounds else above
    joint = " and " if below.startswith("above") and above else " "
    return f"{name} {joint.join(filter(None, (below, above)))}".rstrip()


def _figure(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
