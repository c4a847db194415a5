"""Conversion between records and nested mappings of plain values, as JSON and the contract contain them.

A record is a dataclass of numbers, texts, records, and tuples of records. In its plain form, tuples are lists and a
wait's reason is text.
"""

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from penstock.types.waits import WaitReason

T = TypeVar("T")

_kinds_of: Callable[[Any], dict[str, Any]] = functools.cache(typing.get_type_hints)


def plain(record: Any) -> dict[str, Any]:
    """Returns the plain form of a record."""
    return {each.name: _plain(getattr(record, each.name)) for each in dataclasses.fields(record)}


def _plain(value: Any) -> Any:
    if isinstance(value, WaitReason):
        return str(value)
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return plain(value) if dataclasses.is_dataclass(value) else value


def record_of(kind: type[T], values: Mapping[str, Any]) -> T:
    """Returns the record with this plain form. A missing value is the field's default.

    Raises `TypeError` if a value without a default is missing, a name is unknown, or there are no names.
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"{kind.__name__} has named values, not {values!r}")
    kinds = _kinds_of(kind)
    return kind(**{name: _read(kinds.get(name), value) for name, value in values.items()})


def total(records: Sequence[T]) -> T:
    """Returns the sum of at least one record of numbers, field by field."""
    kind = type(records[0])
    return kind(*(sum(getattr(each, name) for each in records) for name in _kinds_of(kind)))


def _read(kind: Any, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(kind, types.UnionType):
        [kind] = [each for each in typing.get_args(kind) if each is not types.NoneType]
    if kind is WaitReason:
        return WaitReason.parse(str(value))
    if typing.get_origin(kind) is tuple:
        return tuple(_read(typing.get_args(kind)[0], each) for each in value)
    return record_of(kind, value) if isinstance(kind, type) and dataclasses.is_dataclass(kind) else value
