"""Conversion of columns to blocks and back, with one copy each way.

protobuf would copy a payload several times while it builds a message. A block is therefore the last field, number 15,
of its message, and the payload is the last field of the block, also number 15. protobuf serialises the heads, and the
payload is appended unchanged. Any protobuf client can parse the result.
"""

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.errors import InvalidSegment, Overloaded
from penstock.types.block import COLUMN_ALIGNMENT, Columns, Fragment, Schema
from penstock.types.payloads import PayloadPool, layout, views
from penstock.v1 import block_pb2

MAX_PART_BYTES = 3_670_016
"""Largest part, 3.5 MiB, which with its head stays below gRPC's default limit of 4 MiB per message."""

_FINAL_FIELD_TAG = b"\x7a"
"""Tag of field 15, length-delimited."""

_BYTES_HEADER = bytes.__basicsize__ - 1
"""Offset of the content of a bytes object. CPython's basic size includes the zero at the end."""

ctypes.pythonapi.PyBytes_FromStringAndSize.restype = ctypes.py_object
ctypes.pythonapi.PyBytes_FromStringAndSize.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t)

_MAX_FIELDS = 10_000
"""Limit on the fields of one message. A window has at most two per segment. A message of 4 MiB could have two million,
which take seconds to scan."""

_LAYOUT = ("schema_hash", "segments", "column_offsets", "total_bytes", "parts")
"""Fields that all parts of a block share."""

_VARINT, _LENGTH_DELIMITED = 0, 2
_FIXED_SIZES = {1: 8, 5: 4}
"""Wire types of protobuf's encoding; the fixed-size ones with their sizes in bytes."""


def pack(columns: Columns, start: int, into: NDArray[np.uint8]) -> None:
    """Fills `into` with the columns' payload from byte `start` on. Leaves gaps between columns unchanged."""
    offsets, _ = layout(columns.schema, columns.segments)
    for array, offset in zip(columns.arrays, offsets, strict=True):
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        first, last = max(start - offset, 0), min(start + into.size - offset, content.size)
        if first < last:
            into[offset + first - start : offset + last - start] = content[first:last]


def clear_gaps(schema: Schema, segments: int, start: int, into: NDArray[np.uint8]) -> None:
    """Zeroes the gaps between columns in the part of a payload that begins at byte `start`."""
    offsets, total = layout(schema, segments)
    for width, offset, following in zip(schema.column_bytes, offsets, (*offsets[1:], total), strict=True):
        end = offset + segments * width
        into[max(end - start, 0) : max(following - start, 0)] = 0


def heads(schema: Schema, segments: int) -> Iterator[tuple[block_pb2.Block, slice]]:
    """Yields, for each part of a payload, its block without the payload and the slice of its bytes."""
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


def blank_message(heads_outermost_first: Sequence[bytes], size: int) -> tuple[bytes, NDArray[np.uint8]]:
    """Allocates a serialised message and its uninitialised payload, <uint8>[size], to be written before any other use.

    Each of the nested heads, outermost first, lacks its final field, which is the next head or the payload. gRPC
    accepts only `bytes`, and creating one from a filled buffer would copy it. CPython permits the creator of a bytes
    object to fill it until other code uses it (PyBytes_FromStringAndSize with NULL).
    """
    prefix = b""
    for head in reversed(heads_outermost_first):
        prefix = head + _FINAL_FIELD_TAG + _varint(size + len(prefix)) + prefix
    message = ctypes.pythonapi.PyBytes_FromStringAndSize(None, len(prefix) + size)
    memory = (ctypes.c_ubyte * len(message)).from_address(id(message) + _BYTES_HEADER)
    content = np.frombuffer(memoryview(memory).cast("B"), np.uint8)
    content[: len(prefix)] = np.frombuffer(prefix, np.uint8)
    return message, content[len(prefix) :]


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def split_final(message: bytes | memoryview) -> tuple[bytes, memoryview | None]:
    """Returns a message without field 15, for protobuf to parse, and the uncopied content of that field (None: absent).

    The fields may be in any order. Raises `InvalidSegment` if the bytes are not a message, or it has the field twice or
    too many fields.
    """
    view = memoryview(message)
    head, final, position, end = [], None, 0, len(view)
    while position < end:
        start = position
        tag, position = _read_varint(view, position)
        kind = tag & 7
        if kind == _LENGTH_DELIMITED:
            size, position = _read_varint(view, position)
            if tag == _FINAL_FIELD_TAG[0]:
                if final is not None:
                    raise _malformed("it has two blocks")
                final = view[position : position + size]
            position += size
        elif kind == _VARINT:
            _, position = _read_varint(view, position)
        else:
            if kind not in _FIXED_SIZES:
                raise _malformed(f"it has a field of unknown wire type {kind}")
            position += _FIXED_SIZES[kind]
        if position > end:
            raise _malformed("it ends within a field")
        if tag != _FINAL_FIELD_TAG[0]:
            head.append(view[start:position])
            if len(head) > _MAX_FIELDS:
                raise _malformed(f"it has more than {_MAX_FIELDS} fields")
    return b"".join(head), final


def _read_varint(view: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        if position >= len(view):
            raise _malformed("it ends within a number")
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise _malformed("it has a number of more than 64 bits")


@dataclass(frozen=True, slots=True)
class BlockPart:
    """One part of a block, checked against its schema.

    Attributes:
        schema: Schema of the segments.
        segments: Segments in the whole block.
        column_offsets: Offset of each column in the payload, in bytes.
        total_bytes: Size of the whole payload in bytes.
        first: Whether this is the first part.
        last: Whether this is the last part.
        start: Offset of this part in the payload, in bytes.
        data: <uint8>[...] view of the part in its message or staging slot.
    """

    schema: Schema
    segments: int
    column_offsets: tuple[int, ...]
    total_bytes: int
    first: bool
    last: bool
    start: int
    data: NDArray[np.uint8]

    def fragments(self) -> Iterator[Fragment]:
        """Yields this part's bytes of each column."""
        end = self.start + self.data.size
        for index, (width, offset) in enumerate(zip(self.schema.column_bytes, self.column_offsets, strict=True)):
            start, stop = max(self.start, offset), min(end, offset + self.segments * width)
            if start < stop:
                yield Fragment(index, start - offset, self.data[start - self.start : stop - self.start])

    def columns(self) -> Columns:
        """Returns the segments of a block in one part, as views of the message."""
        return views(self.schema, self.segments, self.column_offsets, self.data)


class BlockReader:
    """Reader of successive blocks, which checks their parts against the schema and against one another."""

    def __init__(self, max_bytes: int, segments: int | None = None) -> None:
        """Limits payloads to `max_bytes` bytes, and blocks to exactly `segments` segments unless it is None."""
        self._max_bytes, self._segments = max_bytes, segments
        self._head: block_pb2.Block | None = None
        self._filled = 0

    def add(self, schema: Schema, message: bytes | memoryview, staged: NDArray[np.uint8] | None = None) -> BlockPart:
        """Takes the next serialised block. Part 0 starts a new block, even if the last one is incomplete.

        `staged` is the <uint8>[...] staging slot that begins with the payload, if the message has none. Raises
        `InvalidSegment` if the block does not fit the schema or the part is not the expected one, and `Overloaded`
        above `max_bytes`.
        """
        head_bytes, payload = split_final(message)
        head = block_pb2.Block.FromString(head_bytes)
        if staged is not None:
            if payload is not None:
                raise _malformed("a staged block has a payload")
            data = staged[: head.total_bytes]
        else:
            data = np.frombuffer(payload if payload is not None else b"", np.uint8)
        if head.part == 0:
            self._check(schema, head)
            self._head, self._filled = head, 0
        else:
            self._check_follows(head)
        end = self._filled + data.size
        if head.part_offset != self._filled or end > head.total_bytes:
            raise _malformed(
                f"part {head.part} covers bytes {head.part_offset} to {head.part_offset + data.size} of"
                f" {head.total_bytes}; it must begin at {self._filled}"
            )
        last = head.part + 1 == head.parts
        if last != (end == head.total_bytes):
            raise _malformed(f"part {head.part} of {head.parts} ends at byte {end} of {head.total_bytes}")
        start, self._filled, self._head = self._filled, end, None if last else head
        return BlockPart(
            schema, head.segments, tuple(head.column_offsets), head.total_bytes, head.part == 0, last, start, data
        )

    def _check_follows(self, head: block_pb2.Block) -> None:
        former = self._head
        due = former.part + 1 if former is not None else 0
        if former is None or head.part != due:
            raise _malformed(f"got part {head.part} of a block, expected part {due}")
        if any(getattr(former, field) != getattr(head, field) for field in _LAYOUT):
            raise _malformed(f"part {head.part} differs from the part before")

    def _check(self, schema: Schema, block: block_pb2.Block) -> None:
        if self._segments not in (None, block.segments):
            raise _malformed(f"the block has {block.segments} segments, but {self._segments} were announced")
        if block.schema_hash != schema.hash:
            raise _malformed(f"the block has schema {block.schema_hash:016x}; expected {schema.hash:016x}")
        if block.parts < 1:
            raise _malformed("the block has 0 parts")
        if block.total_bytes > self._max_bytes:
            raise Overloaded(f"a payload of {block.total_bytes} bytes; the maximum is {self._max_bytes}")
        if len(block.column_offsets) != len(schema.columns):
            raise _malformed(
                f"the block has {len(block.column_offsets)} column offsets for {len(schema.columns)} columns"
            )
        filled = 0
        for column, width, offset in zip(schema.columns, schema.column_bytes, block.column_offsets, strict=True):
            end = offset + block.segments * width
            if offset % COLUMN_ALIGNMENT or not filled <= offset <= end <= block.total_bytes:
                raise _malformed(
                    f"column {column.name} of {block.segments} segments covers bytes {offset} to {end} of"
                    f" {block.total_bytes}, after {filled}"
                )
            filled = end


class BlockAssembler:
    """Assembler of successive blocks' parts into columns. Holds at most one payload of `max_bytes`."""

    def __init__(self, max_bytes: int, pool: PayloadPool | None = None) -> None:
        """Limits payloads to `max_bytes` bytes. Those of several parts are assembled in memory of the `pool`.

        One of a single part is a view of its message, unless the pool must hold all.
        """
        self._reader, self._pool = BlockReader(max_bytes), pool or PayloadPool()
        self._payload: NDArray[np.uint8] = np.zeros(0, np.uint8)

    def add(self, schema: Schema, message: bytes | memoryview) -> Columns | None:
        """Takes the next serialised block. Returns the columns once it is complete. Raises as `BlockReader.add`."""
        part = self._reader.add(schema, message)
        if part.first and part.last and not self._pool.holds_all:
            return part.columns()
        if part.first:
            self._payload = self._pool.take(part.total_bytes)
        self._payload[part.start : part.start + part.data.size] = part.data
        if not part.last:
            return None
        payload, self._payload = self._payload, np.zeros(0, np.uint8)
        return views(schema, part.segments, part.column_offsets, payload)


def _malformed(reason: str) -> InvalidSegment:
    return InvalidSegment(f"malformed message: {reason}")
