"""The two ends of the connection between a process and its worker: messages, and rows in shared memory."""

import json
import math
import mmap
import os
import socket
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from penstock.acting.environments.varied import Turns, Variation
from penstock.acting.values.spaces import ActionMap
from penstock.algo.network import Network
from penstock.machine.environment_arguments import read_tables, written_table
from penstock.types.spaces import ArrayType, EnvironmentSpec, Leaves

STEP, DONE = b"s", b"."
"""Messages of one byte: the request for a step, and the reply that a request is done. Other messages are JSON lines."""

_CHUNK_BYTES = 4096
_ALIGNMENT = 64


class Channel:
    """One end of a connection. Requests and replies alternate."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def send(self, message: bytes) -> None:
        """Sends a message. Raises `OSError` if the other end is closed."""
        self.connection.sendall(message)

    def receive(self, *, wait: bool = True) -> bytes:
        """Returns the next message; nothing if the other end is closed.

        Raises `TimeoutError` after the connection's time limit, or if not `wait`, if no message has arrived.
        """
        try:
            message = received = self.connection.recv(_CHUNK_BYTES, 0 if wait else socket.MSG_DONTWAIT)
            while received and message not in (STEP, DONE) and not message.endswith(b"\n"):
                received = self.connection.recv(_CHUNK_BYTES)
                message += received
        except BlockingIOError:
            raise TimeoutError from None
        except ConnectionResetError:
            return b""
        return message if received else b""


def line(**values: object) -> bytes:
    """Returns a message with these values."""
    return json.dumps(values).encode() + b"\n"


def encode_variations(turns: Turns) -> list[list[Any]]:
    """Returns the variants for a message."""
    return [
        [each.number, written_table(each.kwargs), [written_table(wrapper) for wrapper in each.wrappers], each.share]
        for each in turns.variations
    ]


def decode_variations(message: list[list[Any]]) -> list[Variation]:
    """Returns the variants of a message."""
    found: list[Any] = [
        [number, read_tables(kwargs), read_tables(wrappers), share] for number, kwargs, wrappers, share in message
    ]
    return [Variation(*each) for each in found]


@dataclass(frozen=True, slots=True)
class Layout:
    """The arrays of N environments.

    Attributes:
        count: Number of environments, N.
        observation: Element type and shape of one value of each leaf of an observation.
        action: Element type and shape of one value of each leaf of an action.
        mask_bits: Bits of the action mask; 0: no masks.
        info_metrics: Number of values of `StepOutcome.info` in each row; 0: none.
    """

    count: int
    observation: tuple[ArrayType, ...]
    action: tuple[ArrayType, ...]
    mask_bits: int
    info_metrics: int = 0

    @classmethod
    def of(cls, spec: EnvironmentSpec, observation: tuple[ArrayType, ...], count: int, info_metrics: int) -> Self:
        """Returns the layout for environments with this spec."""
        maps = ActionMap(spec.action, Network()).maps
        acted = tuple((each.dtype.str, each.shape) for each in maps)
        return cls(count, observation, acted, spec.mask_bits, info_metrics)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Returns the layout of its form as a dictionary, in JSON."""
        return cls(**{**value, "observation": arrays(value["observation"]), "action": arrays(value["action"])})

    def to_json(self) -> dict[str, object]:
        """Returns a form for JSON."""
        return asdict(self)


def arrays(value: list[Any]) -> tuple[ArrayType, ...]:
    """Returns element types and shapes of their form in JSON, which has no tuples."""
    return tuple((dtype, tuple(shape)) for dtype, shape in value)


class SharedRows:
    """Arrays [N, ...] in memory that a process shares with its workers.

    Attributes:
        observation, action: [N, ...] one array per leaf.
        action_mask: <bool>[N, bits]; None without masks.
        outcome: Arrays of `StepOutcome`, without `info`.
        info: <float64>[N, M] values of `StepOutcome.info`; None without any.
    """

    def __init__(self, descriptor: int, layout: Layout, rows: range | None = None) -> None:
        """Maps the memory of this descriptor, which is made large enough. `rows` are those to use; None: all."""
        outcome = [("float32", ()), *[("bool", ())] * 4]
        last = [("float64", (layout.info_metrics,)), ("bool", (layout.mask_bits,))]
        every = [*layout.observation, *layout.action, *outcome, *last]
        sizes = [layout.count * math.prod(shape) * np.dtype(dtype).itemsize for dtype, shape in every]
        starts = np.cumsum([0, *(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)]).tolist()
        end = max(starts[-1], 1)
        if os.fstat(descriptor).st_size < end:
            os.ftruncate(descriptor, end)
        memory = mmap.mmap(descriptor, end)
        own = slice(None) if rows is None else slice(rows.start, rows.stop)
        made: list[NDArray[Any]] = [
            np.ndarray((layout.count, *shape), dtype, memory, start)[own]
            for (dtype, shape), start in zip(every, starts, strict=False)
        ]
        observed, acted = len(layout.observation), len(layout.observation) + len(layout.action)
        self.observation: Leaves = tuple(made[:observed])
        self.action: Leaves = tuple(made[observed:acted])
        reward, terminated, truncated, valid, begun, info = made[acted:-1]
        self.outcome = reward, terminated, truncated, valid, begun
        self.info: NDArray[np.float64] | None = info if layout.info_metrics else None
        self.action_mask: NDArray[np.bool_] | None = made[-1] if layout.mask_bits else None
