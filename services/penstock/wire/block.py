"""Columns to blocks and back, with one copy each way.

protobuf would copy a payload several times while it builds a message. Every message that carries a block therefore has
it as its
last field, number 15, and so has the block its payload: the heads are serialised by protobuf and the payload is
appended to them as it is. Any protobuf client parses the result.
"""

import functools
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.errors import InvalidSegment, Overloaded
from penstock.types import COLUMN_ALIGNMENT, Columns, Schema
from penstock.v1 import block_pb2

MAX_PART_BYTES = 3_670_016
"""3.5 MiB, which with its head stays under gRPC's default limit of 4 MiB for a message."""

_FINAL_FIELD_TAG = b"\x7a"
"""Field 15, length-delimited."""


@functools.lru_cache(maxsize=256)
def layout(schema: Schema, segments: int) -> tuple[tuple[int, ...], int]:
    """Where each column begins in the payload of so many segments, and how long the payload is, in bytes."""
    offsets, end = [], 0
    for column in schema.columns:
        offsets.append(end)
        end += -(-segments * column.segment_bytes(schema.unroll_length) // COLUMN_ALIGNMENT) * COLUMN_ALIGNMENT
    return tuple(offsets), end


def allocate(schema: Schema, segments: int) -> tuple[NDArray[np.uint8], Columns]:
    """A payload for so many segments, and columns that are views into it."""
    offsets, total = layout(schema, segments)
    payload = np.zeros(total, np.uint8)
    return payload, _views(schema, segments, offsets, payload)


def pack(columns: Columns) -> NDArray[np.uint8]:
    """The payload of these columns. Copies them."""
    payload, views = allocate(columns.schema, columns.segments)
    for view, array in zip(views.arrays, columns.arrays, strict=True):
        view[...] = array
    return payload


def heads(schema: Schema, segments: int) -> Iterator[tuple[block_pb2.Block, slice]]:
    """For each part of a payload, its block without the payload, and which bytes belong to it."""
    offsets, total = layout(schema, segments)
    parts = max(1, -(-total // MAX_PART_BYTES))
    for part in range(parts):
        start = part * MAX_PART_BYTES
        head = block_pb2.Block(
            schema_hash=schema.hash,
            segments=segments,
            column_offsets=offsets,
            total_bytes=total,
            part=part,
            parts=parts,
            part_offset=start,
        )
        yield head, slice(start, min(start + MAX_PART_BYTES, total))


def append_payload(heads_outermost_first: Sequence[bytes], payload: NDArray[np.uint8]) -> bytes:
    """A serialised message: nested heads, each the last field of the one before, and the payload in the innermost."""
    size = payload.nbytes
    pieces: list[bytes | memoryview] = [payload.data]
    for head in reversed(heads_outermost_first):
        prefix = head + _FINAL_FIELD_TAG + _varint(size)
        pieces.append(prefix)
        size += len(prefix)
    return b"".join(reversed(pieces))


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


class BlockAssembler:
    """Turns the parts of one block after another into columns. Holds at most one payload of `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._head: block_pb2.Block | None = None
        self._payload: NDArray[np.uint8] = np.zeros(0, np.uint8)

    def add(self, schema: Schema, block: block_pb2.Block) -> Columns | None:
        """Takes the next part; returns the columns when the block is whole, else None.

        Raises:
            InvalidSegment: The block does not fit the schema, or the part is not the one that is due.
            Overloaded: The payload would exceed `max_bytes`.
        """
        if block.parts == 1 and self._head is None:
            self._check(schema, block)
            payload = np.frombuffer(block.payload, np.uint8)
            _expect(
                payload.size == block.total_bytes and block.part == 0 and block.part_offset == 0,
                f"a payload of {payload.size} bytes as part {block.part} of 1 at byte {block.part_offset}, announced as"
                f" {block.total_bytes} bytes",
            )
            return _views(schema, block.segments, tuple(block.column_offsets), payload)
        if self._head is None:
            self._check(schema, block)
            self._payload = np.empty(block.total_bytes, np.uint8)
        due = 0 if self._head is None else self._head.part + 1
        _expect(block.part == due, f"part {block.part} of a block, and part {due} was due")
        _expect(
            self._head is None or _same_layout(self._head, block), f"part {block.part} differs from the part before"
        )
        filled = 0 if self._head is None else self._head.part_offset + len(self._head.payload)
        end = block.part_offset + len(block.payload)
        _expect(
            block.part_offset == filled and end <= self._payload.size,
            f"part {block.part} covers bytes {block.part_offset} to {end} of {block.total_bytes}; it must begin at"
            f" {filled}",
        )
        self._payload[block.part_offset : end] = np.frombuffer(block.payload, np.uint8)
        if block.part + 1 < block.parts:
            self._head = block
            return None
        _expect(end == block.total_bytes, f"the last part ends at byte {end} of {block.total_bytes}")
        self._head, payload = None, self._payload
        return _views(schema, block.segments, tuple(block.column_offsets), payload)

    def _check(self, schema: Schema, block: block_pb2.Block) -> None:
        _expect(
            block.schema_hash == schema.hash,
            f"a block of schema {block.schema_hash:016x}; this run's is {schema.hash:016x}",
        )
        _expect(block.parts >= 1, "a block of no parts")
        if block.total_bytes > self._max_bytes:
            raise Overloaded(f"a payload of {block.total_bytes} bytes; at most {self._max_bytes} are taken at once")
        _expect(
            len(block.column_offsets) == len(schema.columns),
            f"{len(block.column_offsets)} column offsets for {len(schema.columns)} columns",
        )
        for column, offset in zip(schema.columns, block.column_offsets, strict=True):
            end = offset + block.segments * column.segment_bytes(schema.unroll_length)
            _expect(
                offset % COLUMN_ALIGNMENT == 0 and end <= block.total_bytes,
                f"column {column.name} of {block.segments} segments covers bytes {offset} to {end} of"
                f" {block.total_bytes}",
            )


def check_values(columns: Columns) -> None:
    """Refuses what no learner could use. Raises `InvalidSegment` for NaN, infinities, and booleans that are neither 0
    nor 1.
    """
    for column, array in zip(columns.schema.columns, columns.arrays, strict=True):
        if column.dtype == "bool":
            _expect(not array.size or int(array.view(np.uint8).max()) <= 1, f"column {column.name} has bytes above 1")
        elif column.dtype.startswith("float"):
            _expect(bool(np.isfinite(array).all()), f"column {column.name} has values that are not finite")


def _same_layout(one: block_pb2.Block, other: block_pb2.Block) -> bool:
    fields = ("schema_hash", "segments", "column_offsets", "total_bytes", "parts")
    return all(getattr(one, field) == getattr(other, field) for field in fields)


def _views(schema: Schema, segments: int, offsets: tuple[int, ...], payload: NDArray[np.uint8]) -> Columns:
    arrays = []
    for column, offset in zip(schema.columns, offsets, strict=True):
        size = segments * column.segment_bytes(schema.unroll_length)
        shape = (segments, *column.segment_shape(schema.unroll_length))
        arrays.append(payload[offset : offset + size].view(column.dtype).reshape(shape))
    return Columns(schema, tuple(arrays))


def _expect(condition: bool, what_came: str) -> None:
    if not condition:
        raise InvalidSegment(f"malformed segments: {what_came}")
