"""Conversion between records and messages whose fields have the same names. A field of one side alone is an error."""

from typing import Any, TypeVar

from google.protobuf.message import Message

from penstock.types.records import plain, record_of

M = TypeVar("M", bound=Message)
T = TypeVar("T")


def encoded(kind: type[M], record: Any) -> M:
    """Returns the message of a record. Raises `ValueError` if the message lacks one of its fields."""
    return kind(**plain(record))


def decoded(kind: type[T], message: Message) -> T:
    """Returns the record of a message. Raises `TypeError` if either lacks a field of the other."""
    return record_of(kind, values_of(message))


def values_of(message: Message) -> dict[str, Any]:
    """Returns a message's values by name, with None for absent optional fields."""
    values = {}
    for field in message.DESCRIPTOR.fields:
        value = None if field.has_presence and not message.HasField(field.name) else getattr(message, field.name)
        if field.message_type is not None and value is not None:
            value = [values_of(each) for each in value] if field.is_repeated else values_of(value)
        values[field.name] = value
    return values
