"""Memory of payloads: the place of each column in one, columns as views of one, and a pool that reuses it."""

import functools
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from penstock.types.block import COLUMN_ALIGNMENT, Columns, Schema
from penstock.types.codecs import Forms, encodable, encoded_sizes

Memory = Callable[[int], bytearray | memoryview]
"""Function that allocates writable memory, <uint8>[bytes]."""


class PayloadPool:
    """Pool of memory for payloads, reused once no view is left, because new pages cost more than a copy into them.

    Attributes:
        holds_all: Whether every payload must lie in memory of the pool, because a device reads it there.
    """

    def __init__(self, spare: int = 4, memory: Memory | None = None) -> None:
        """Keeps at most `spare` unused buffers. `memory` allocates them; None: as any other memory of the process."""
        self.holds_all, self._memory = memory is not None, memory or bytearray
        self._spare: deque[bytearray | memoryview] = deque(maxlen=spare)

    def take(self, size: int) -> NDArray[np.uint8]:
        """Returns uninitialised <uint8>[size]. Its memory returns to the pool when the last view of it is gone."""
        try:
            memory = self._spare.pop()
        except IndexError:
            memory = self._memory(size)
        if len(memory) != size:
            memory = self._memory(size)
        payload = np.frombuffer(memory, np.uint8)
        weakref.finalize(payload, self._spare.append, memory)
        return payload


@functools.lru_cache(maxsize=256)
def layout(schema: Schema, segments: int) -> tuple[tuple[int, ...], int]:
    """Returns each column's offset in a payload of `segments` segments, and the payload's size, in bytes."""
    return _offsets([segments * width for width in schema.column_bytes])


@dataclass(frozen=True, slots=True)
class Places:
    """Places of the columns of segments in a payload.

    Attributes:
        offsets: Offset of each column in bytes.
        sizes: Bytes of each column of all segments.
        total_bytes: Size of the payload in bytes.
        forms: Forms of the segments' columns; None if all columns are raw.
        starts: For each column that may be encoded, by its position, the offset of each segment in the column's bytes,
            and their end, <int64>[segments + 1]. Empty if all columns are raw.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    total_bytes: int
    forms: Forms | None = None
    starts: dict[int, NDArray[np.int64]] = field(default_factory=dict)


def places(schema: Schema, segments: int, forms: Forms | None = None) -> Places:
    """Returns the places of the columns of `segments` segments that have these forms."""
    if forms is None:
        return _raw_places(schema, segments)
    sizes = [segments * width for width in schema.column_bytes]
    ends = np.zeros((segments + 1, len(encodable(schema))), np.int64)
    np.cumsum(encoded_sizes(schema, forms), axis=0, out=ends[1:])
    starts = {position: np.ascontiguousarray(ends[:, index]) for index, position in enumerate(encodable(schema))}
    for position, column_starts in starts.items():
        sizes[position] = int(column_starts[-1])
    offsets, total = _offsets(sizes)
    return Places(offsets, tuple(sizes), total, forms, starts)


@functools.lru_cache(maxsize=64)
def _raw_places(schema: Schema, segments: int) -> Places:
    sizes = tuple(segments * width for width in schema.column_bytes)
    offsets, total = _offsets(sizes)
    return Places(offsets, sizes, total)


def _offsets(sizes: Sequence[int]) -> tuple[tuple[int, ...], int]:
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // COLUMN_ALIGNMENT) * COLUMN_ALIGNMENT
    return tuple(offsets), end


def allocate(schema: Schema, segments: int, pool: PayloadPool) -> Columns:
    """Returns uninitialised columns for `segments` segments as views into one buffer of the pool."""
    return columns_in(schema, segments, pool.take(layout(schema, segments)[1]))


def columns_in(schema: Schema, segments: int, payload: NDArray[np.uint8]) -> Columns:
    """Returns the columns of `segments` segments as views into memory that begins with their payload."""
    return views(schema, segments, layout(schema, segments)[0], payload)


def views(schema: Schema, segments: int, offsets: tuple[int, ...], payload: NDArray[np.uint8]) -> Columns:
    """Returns the columns of `segments` segments, each at its offset in bytes, as views of a payload."""
    arrays = []
    for column, width, offset in zip(schema.columns, schema.column_bytes, offsets, strict=True):
        shape = (segments, *column.segment_shape(schema.unroll_length))
        arrays.append(payload[offset : offset + segments * width].view(column.dtype).reshape(shape))
    return Columns(schema, tuple(arrays))
