"""Messages that services of a release exchanged, as bytes, and their fields."""

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from penstock.rpc import methods
from penstock.rpc.service import Method

HERE = Path(__file__).parent

METHODS = {f"/{each.service}/{each.name}": each for each in vars(methods).values() if isinstance(each, Method)}
"""Methods of the contract by their paths."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One message: the path of its method, whether it was a request or a response, and its bytes."""

    method: str
    direction: str
    data: bytes

    @property
    def parsed(self) -> Message:
        """The message, as the present contract reads it."""
        method = METHODS[self.method]
        kind: Any = method.request if self.direction == "request" else method.response
        message = kind.FromString(self.data)
        assert isinstance(message, Message)
        return message


def write_messages(folder: Path, messages: Sequence[Recorded]) -> None:
    """Writes the messages of a release, which are those of one call of each method."""
    lines = [json.dumps([each.method, each.direction, base64.b64encode(each.data).decode()]) for each in messages]
    (folder / "messages.jsonl").write_text("".join(f"{line}\n" for line in lines))


def read_messages(folder: Path) -> list[Recorded]:
    """Reads the messages of a release."""
    lines = (folder / "messages.jsonl").read_text().splitlines()
    return [Recorded(method, direction, base64.b64decode(data)) for method, direction, data in map(json.loads, lines)]


def earlier(messages: Sequence[Recorded], index: int) -> list[Recorded]:
    """Returns the messages before one, of its call and its direction."""
    of = messages[index]
    return [each for each in messages[:index] if (each.method, each.direction) == (of.method, of.direction)]


def without_each_field(message: Message) -> Iterator[tuple[str, Message]]:
    """Yields copies of a message that lack one of its fields each, also inside others, with the field's path."""
    for path in _paths(message):
        lacking = type(message)()
        lacking.CopyFrom(message)
        holder: Any = lacking
        for name in path[:-1]:
            held = getattr(holder, name)
            holder = held[0] if isinstance(held, Sequence) or hasattr(held, "add") else held
        holder.ClearField(path[-1])
        yield ".".join(path), lacking


def _paths(message: Message) -> Iterator[tuple[str, ...]]:
    """Yields the paths of all present fields, through the first element of repeated messages."""
    for field, value in message.ListFields():
        if field.name == "contract":
            continue
        yield (field.name,)
        if field.message_type is not None:
            inner = value[0] if field.is_repeated else value
            for path in _paths(inner):
                yield (field.name, *path)
