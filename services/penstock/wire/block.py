"""Conversion of columns to blocks and back, with one copy each way.

protobuf would copy a payload several times while it builds a message. A block is therefore the last field, number 15,
of its message, and the payload is the last field of the block, also number 15. protobuf serialises the heads, and the
payload is appended unchanged. Any protobuf client can parse the result.
"""

import ctypes
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.errors import InvalidSegment, Overloaded
from penstock.machine import compression
from penstock.types.block import COLUMN_ALIGNMENT, Columns, Fragment, Schema
from penstock.types.codecs import Codec, Forms, codec_numbers, encodable, form_sizes, possible
from penstock.types.payloads import PayloadPool, Places, layout, places, views
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


def pack(contents: Sequence[NDArray[np.uint8]], where: Places, start: int, into: NDArray[np.uint8]) -> None:
    """Fills `into` with a payload from byte `start` on. Leaves gaps between columns unchanged.

    Each column has its content, <uint8>[...], from its offset on.
    """
    for content, offset in zip(contents, where.offsets, strict=True):
        first, last = max(start - offset, 0), min(start + into.size - offset, content.size)
        if first < last:
            into[offset + first - start : offset + last - start] = content[first:last]


def clear_gaps(where: Places, start: int, into: NDArray[np.uint8]) -> None:
    """Zeroes the gaps between columns in the part of a payload that begins at byte `start`."""
    for size, offset, following in zip(
        where.sizes, where.offsets, (*where.offsets[1:], where.total_bytes), strict=True
    ):
        end = offset + size
        if end < following:
            into[max(end - start, 0) : max(following - start, 0)] = 0


def heads(schema: Schema, segments: int, where: Places | None = None) -> Iterator[tuple[block_pb2.Block, slice]]:
    """Yields, for each part of a payload, its block without the payload and the slice of its bytes.

    `where` has the places of the columns; None if all are raw.
    """
    where = where or places(schema, segments)
    parts = max(1, -(-where.total_bytes // MAX_PART_BYTES))
    for part in range(parts):
        start = part * MAX_PART_BYTES
        head = block_pb2.Block(
            schema_hash=schema.hash,
            segments=segments,
            column_offsets=where.offsets,
            total_bytes=where.total_bytes,
            part=part,
            parts=parts,
            part_offset=start,
            forms=where.forms.astype("<u4").tobytes() if where.forms is not None and part == 0 else b"",
        )
        yield head, slice(start, min(start + MAX_PART_BYTES, where.total_bytes))


@functools.lru_cache(maxsize=64)
def raw_heads(schema: Schema, segments: int) -> tuple[tuple[bytes, slice], ...]:
    """Returns what `heads` yields for raw columns, with serialised blocks: the same for all windows."""
    return tuple((head.SerializeToString(), part) for head, part in heads(schema, segments))


def blank_message(heads_outermost_first: Sequence[bytes], size: int) -> tuple[bytes, NDArray[np.uint8]]:
    """Allocates a serialised message and its uninitialised payload, <uint8>[size], to be written before any other use.

    Each of the nested heads, outermost first, lacks its final field, which is the next head or the payload.
    """
    prefix = b""
    for head in reversed(heads_outermost_first):
        prefix = head + _FINAL_FIELD_TAG + _varint(size + len(prefix)) + prefix
    message, memory = blank(len(prefix) + size)
    memory[: len(prefix)] = prefix
    return message, np.frombuffer(memory, np.uint8)[len(prefix) :]


def blank(size: int) -> tuple[bytes, memoryview]:
    """Allocates uninitialised bytes, and their memory, which is to be written before any other use of them.

    gRPC accepts only `bytes`, and creating them from a filled buffer would copy it. CPython permits the creator of a
    bytes object to fill it until other code uses it (PyBytes_FromStringAndSize with NULL).
    """
    message: bytes = ctypes.pythonapi.PyBytes_FromStringAndSize(None, size)
    # The view is valid only as long as the message.
    memory = (ctypes.c_ubyte * size).from_address(id(message) + _BYTES_HEADER)
    return message, memoryview(memory).cast("B")


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
        start, tag = position, view[position]
        # Most tags and sizes have one byte, and a call for each would take longer than the rest.
        if tag < 0x80:
            position += 1
        else:
            tag, position = _read_varint(view, position)
        kind = tag & 7
        if kind == _LENGTH_DELIMITED:
            if position < end and view[position] < 0x80:
                size, position = view[position], position + 1
            else:
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
        places: Places of the columns in the payload.
        first: Whether this is the first part.
        last: Whether this is the last part.
        start: Offset of this part in the payload, in bytes.
        data: <uint8>[...] view of the part in its message or staging slot.
    """

    schema: Schema
    segments: int
    places: Places
    first: bool
    last: bool
    start: int
    data: NDArray[np.uint8]

    def fragments(self) -> Iterator[Fragment]:
        """Yields this part's bytes of each column."""
        end = self.start + self.data.size
        for index, (size, offset) in enumerate(zip(self.places.sizes, self.places.offsets, strict=True)):
            start, stop = max(self.start, offset), min(end, offset + size)
            if start < stop:
                data, starts = self.data[start - self.start : stop - self.start], self.places.starts.get(index)
                yield Fragment(index, start - offset, data, starts)


@dataclass(frozen=True, slots=True)
class EncodedColumns:
    """Columns of segments as received, some of them encoded.

    Attributes:
        schema: Schema of the segments.
        segments: Number of segments.
        places: Places of the columns in the payload, with their forms.
        payload: <uint8>[...] whole payload.
    """

    schema: Schema
    segments: int
    places: Places
    payload: NDArray[np.uint8]

    def decode(self, into: Columns) -> int:
        """Decodes the columns to others for the same number of segments.

        Returns:
            The number of segments' columns that could not be decoded. Those are replaced as in `compression.void`.
        """
        failed: list[tuple[int, int]] = []
        segments = self.segments
        assert self.places.forms is not None
        for position, (offset, size) in enumerate(zip(self.places.offsets, self.places.sizes, strict=True)):
            content = self.payload[offset : offset + size]
            wanted = into.arrays[position].reshape(segments, -1).view(np.uint8)
            if position not in self.places.starts:
                wanted[...] = content.reshape(wanted.shape)
                continue
            forms = self.places.forms[:, encodable(self.schema).index(position)].tolist()
            starts = self.places.starts[position].tolist()
            for segment in range(segments):
                piece = content[starts[segment] : starts[segment + 1]]
                if not compression.decode(forms[segment], piece, wanted[segment]):
                    failed.append((position, segment))
        # Last, because it also changes a column that may follow.
        compression.void(into, failed)
        return len(failed)


class BlockReader:
    """Reader of successive blocks, which checks their parts against the schema and against one another."""

    def __init__(self, max_bytes: int, segments: int | None = None) -> None:
        """Limits payloads to `max_bytes` bytes, and blocks to exactly `segments` segments unless it is None."""
        self._max_bytes, self._segments = max_bytes, segments
        self._head: block_pb2.Block | None = None
        self._schema: Schema | None
        self._places = Places((), (), 0)
        self._filled = 0
        self._known, self._schema, self._whole = b"", None, block_pb2.Block()

    def add(self, schema: Schema, message: bytes | memoryview, staged: NDArray[np.uint8] | None = None) -> BlockPart:
        """Takes the next serialised block. Part 0 starts a new block, even if the last one is incomplete.

        `staged` is the <uint8>[...] staging slot that begins with the payload, if the message has none. Raises
        `InvalidSegment` if the block does not fit the schema or the part is not the expected one, and `Overloaded`
        above `max_bytes`.
        """
        head_bytes, payload = split_final(message)
        # Successive raw blocks of one part have equal heads.
        is_known = head_bytes == self._known and schema is self._schema
        head = self._whole if is_known else block_pb2.Block.FromString(head_bytes)
        if staged is not None:
            if payload is not None:
                raise _malformed("a staged block has a payload")
            data = staged[: head.total_bytes]
        else:
            data = np.frombuffer(payload if payload is not None else b"", np.uint8)
        if head.part == 0:
            if not is_known:
                self._places = self._checked(schema, head)
                if head.parts == 1 and not head.forms:
                    self._known, self._schema, self._whole = head_bytes, schema, head
                else:
                    self._known = b""
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
        return BlockPart(schema, head.segments, self._places, head.part == 0, last, start, data)

    def _check_follows(self, head: block_pb2.Block) -> None:
        former = self._head
        due = former.part + 1 if former is not None else 0
        if former is None or head.part != due:
            raise _malformed(f"got part {head.part} of a block, expected part {due}")
        if any(getattr(former, field) != getattr(head, field) for field in _LAYOUT):
            raise _malformed(f"part {head.part} differs from the part before")

    def _checked(self, schema: Schema, block: block_pb2.Block) -> Places:
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
        forms = _forms_in(schema, block)
        if forms is not None and (decoded := layout(schema, block.segments)[1]) > self._max_bytes:
            raise Overloaded(f"a payload that decodes to {decoded} bytes; the maximum is {self._max_bytes}")
        packed = places(schema, block.segments, forms)
        filled = 0
        for column, size, offset in zip(schema.columns, packed.sizes, block.column_offsets, strict=True):
            end = offset + size
            if offset % COLUMN_ALIGNMENT or not filled <= offset <= end <= block.total_bytes:
                raise _malformed(
                    f"column {column.name} of {block.segments} segments covers bytes {offset} to {end} of"
                    f" {block.total_bytes}, after {filled}"
                )
            filled = end
        return Places(tuple(block.column_offsets), packed.sizes, block.total_bytes, packed.forms, packed.starts)


def _forms_in(schema: Schema, block: block_pb2.Block) -> Forms | None:
    """Returns the forms of a block's columns; None if all are raw. Raises `InvalidSegment` for impossible ones."""
    if not block.forms:
        return None
    columns = encodable(schema)
    if len(block.forms) != 4 * block.segments * len(columns):
        raise _malformed(
            f"the block has {len(block.forms)} bytes of forms for {block.segments} segments with {len(columns)} columns"
            " that may be encoded"
        )
    forms = np.frombuffer(block.forms, "<u4").astype(np.uint32).reshape(block.segments, len(columns))
    if not possible(schema, forms):
        raise _impossible(schema, forms)
    return forms


def _impossible(schema: Schema, forms: Forms) -> InvalidSegment:
    """Returns the reason why forms are not `possible`."""
    numbers, sizes = codec_numbers(forms), form_sizes(forms)
    for index, position in enumerate(encodable(schema)):
        name, width = schema.columns[position].name, schema.column_bytes[position]
        encoded = forms[:, index] != 0
        unknown = ~np.isin(numbers[encoded, index], [codec for codec in Codec if codec != Codec.RAW])
        if unknown.any():
            known = ", ".join(f"{codec.name.lower()} ({codec.value})" for codec in Codec)
            return _malformed(
                f"column {name} has codec {numbers[encoded, index][unknown][0]}, and this side reads {known}; send it"
                " in one of these"
            )
        if not ((sizes[encoded, index] > 0) & (sizes[encoded, index] < width)).all():
            return _malformed(f"column {name} of {width} bytes is encoded to none, or to as many or more")
    raise AssertionError("these forms are possible")


class BlockAssembler:
    """Assembler of successive blocks' parts into columns. Holds at most one payload of `max_bytes`."""

    def __init__(self, max_bytes: int, pool: PayloadPool | None = None) -> None:
        """Limits payloads to `max_bytes` bytes. Those of several parts are assembled in memory of the `pool`.

        One of a single part is a view of its message, unless the pool must hold all. Encoded ones are decoded to memory
        of a pool later, so they may lie anywhere.
        """
        self._reader, self._pool, self._encoded = BlockReader(max_bytes), pool or PayloadPool(), PayloadPool()
        self._payload: NDArray[np.uint8] = np.zeros(0, np.uint8)

    def add(self, schema: Schema, message: bytes | memoryview) -> Columns | EncodedColumns | None:
        """Takes the next serialised block. Returns the columns once it is complete. Raises as `BlockReader.add`."""
        part = self._reader.add(schema, message)
        if part.first and part.last and (part.places.forms is not None or not self._pool.holds_all):
            return _assembled(part, part.data)
        if part.first:
            self._payload = self._memory_for(part.places)
        self._payload[part.start : part.start + part.data.size] = part.data
        if not part.last:
            return None
        payload, self._payload = self._payload, np.zeros(0, np.uint8)
        return _assembled(part, payload)

    def _memory_for(self, where: Places) -> NDArray[np.uint8]:
        if where.forms is None:
            return self._pool.take(where.total_bytes)
        # Sizes of encoded payloads vary. Memory of whole parts can be reused, and takes none from the raw payloads.
        parts = -(-where.total_bytes // MAX_PART_BYTES)
        return self._encoded.take(parts * MAX_PART_BYTES)[: where.total_bytes]


def _assembled(part: BlockPart, payload: NDArray[np.uint8]) -> Columns | EncodedColumns:
    if part.places.forms is not None:
        return EncodedColumns(part.schema, part.segments, part.places, payload)
    return views(part.schema, part.segments, part.places.offsets, payload)


def _malformed(reason: str) -> InvalidSegment:
    return InvalidSegment(f"malformed message: {reason}")
