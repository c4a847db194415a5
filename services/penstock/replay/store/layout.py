"""Memory layout of a store. One file holds headers and columns; another holds watermarks, the session record and ages.

The layout is the same in mapped files, in anonymous memory, and in other processes that map the files.
"""

import enum
import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigurationError
from penstock.replay.store.encoded_rows import Pieces, decode_rows
from penstock.types.block import Columns, Schema
from penstock.types.codecs import Forms, encodable, encoded_sizes
from penstock.types.extents import StoreSize
from penstock.types.replay import MAX_SLOTS

PAGE = 4096
"""Page size in bytes. It is part of the format and so the same on every machine."""

SEGMENTS_FILE, RECORDS_FILE = "segments.bin", "records.bin"

HEADER = np.dtype(
    [
        ("key", "<u8"),
        ("sequence", "<u8"),
        ("version", "<i8"),
        ("batch", "<i8"),
        ("priority", "<f8"),
        ("checksum", "<u8"),
        ("slot", "<u4"),
        ("incarnation", "<u4"),
        ("environment", "<u4"),
        ("state", "<u4"),
    ]
)
WATERMARK = np.dtype([("incarnation", "<u4"), ("checksum", "<u4"), ("sequence", "<u8")])
SESSION = np.dtype(
    [
        ("checksum", "<u8"),
        ("sequence", "<u8"),
        ("session", "<u8"),
        ("next_batch", "<i8"),
        ("version", "<i8"),
        ("next_key", "<u8"),
        ("inserted", "<u8"),
        ("late", "<u8"),
        ("identity", "<u8"),
        ("next_lease", "<i8"),
    ]
)

MAX_GAPS = 64
"""Maximum number of gaps in the age clock. A store rarely holds segments of that many sessions."""

AGES = np.dtype(
    [
        ("checksum", "<u8"),
        ("sequence", "<u8"),
        ("lag", "<i8"),
        ("degree", "<i8"),
        ("former_lag", "<i8"),
        ("former_until", "<i8"),
        ("gaps", "<u8"),
        ("starts", "<i8", MAX_GAPS),
        ("ends", "<i8", MAX_GAPS),
    ]
)
"""Record of `ages`: the gaps, and the bounds past which unseen segments are late."""

_FORM = np.dtype("<u4")
_NO_FORMS: Forms = np.zeros(0, np.uint32)

_WATERMARKS_END = MAX_SLOTS * WATERMARK.itemsize
_SESSION_END = _WATERMARKS_END + SESSION.itemsize

RECORDS_BYTES = 2 * (_WATERMARKS_END + PAGE)
"""Size of the records file. It has two copies of all watermarks, followed by the session record and the ages."""


class State(enum.IntEnum):
    """State of a row, as stored in its header.

    Every code has an odd number of set bits, so one flipped bit never turns a code into another.
    """

    UNSEEN = 1
    LEASED = 2
    SEEN = 4
    WRITING = 7
    """The row has no key: a window is being written to it."""
    RELEASED = 8
    """The row has no key: its segment was removed, or its window was never completed."""


SEGMENT_STATES = (State.UNSEEN, State.LEASED, State.SEEN)
"""States of rows that have a key."""


def whole_pages(size: int) -> int:
    """Returns `size` in bytes, rounded up to whole pages."""
    return -(-size // PAGE) * PAGE


def rows_within(capacity_bytes: int, schema: Schema) -> int:
    """Returns the capacity in rows of a store of this size. Raises `ConfigurationError` if it is below two."""
    capacity = (capacity_bytes - bytes_for(0, schema)) // _row_bytes(schema)
    if capacity < 2:
        raise ConfigurationError(
            f"replay.capacity_bytes {capacity_bytes} holds {max(capacity, 0)} segments of"
            f" {schema.segment_bytes} bytes; raise it"
        )
    return capacity


def bytes_for(rows: int, schema: Schema) -> int:
    """Returns the least size in bytes of a store with this many rows."""
    regions = len(schema.columns) + 1 + bool(encodable(schema))
    return regions * PAGE + rows * _row_bytes(schema)


def _row_bytes(schema: Schema) -> int:
    return HEADER.itemsize + schema.segment_bytes + _FORM.itemsize * len(encodable(schema))


def bytes_of(size: StoreSize, schema: Schema) -> int:
    """Returns the size in bytes of a store of this configured size."""
    segments = size.segments(schema.unroll_length)
    return size.amount if segments is None else bytes_for(segments, schema)


class Regions:
    """Division of a store's memory into page-aligned regions: the headers, one region per column, and the forms.

    A row has room for the raw bytes of each column. Encoded ones fill the beginning of it.

    Attributes:
        capacity: Number of rows.
        headers: <HEADER>[capacity].
        columns: <uint8>[capacity, bytes of a segment's column], one per column.
        forms: Forms of the rows' columns. Without columns that may be encoded it has no region.
        memory: <uint8>[...] all of it.
        offsets: Offset of each column's region in the memory, in bytes.
        proof: <uint64>[1] number written by the service, with which a reader proves that it sees the same memory.
    """

    def __init__(self, memory: mmap.mmap, schema: Schema, capacity_bytes: int) -> None:
        """Creates the views of the regions. Raises `ConfigurationError` if fewer than two segments fit."""
        self.capacity, self._memory, self._end = rows_within(capacity_bytes, schema), memory, 0
        self._schema, self._encodable = schema, encodable(schema)
        self.memory = np.frombuffer(memory, np.uint8)
        self.headers = self._region(HEADER.itemsize).reshape(-1).view(HEADER)
        after_headers, columns_start = self.headers.nbytes, self._end
        offsets, columns = [], []
        for width in schema.column_bytes:
            offsets.append(self._end)
            columns.append(self._region(width))
        self.offsets, self.columns = tuple(offsets), tuple(columns)
        forms = (
            self._region(_FORM.itemsize * len(self._encodable))
            if self._encodable
            else np.zeros((self.capacity, 0), np.uint8)
        )
        self.forms: Forms = forms.view(_FORM)
        # The proof follows the headers in their last page. If they fill it, the spare page at the end that
        # `rows_within` counts for each region is used.
        self.proof = np.frombuffer(memory, "<u8", 1, after_headers if after_headers < columns_start else self._end)

    def _region(self, width: int) -> NDArray[np.uint8]:
        size = self.capacity * width
        array = np.frombuffer(self._memory, np.uint8, size, self._end).reshape(self.capacity, width)
        self._end += whole_pages(size)
        return array

    def rows(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Returns the rows <int64>[B] to which these keys are assigned. Their segments need not be present any more."""
        return (keys % np.uint64(self.capacity)).astype(np.int64)

    def pieces(self, rows: slice) -> list[Pieces | NDArray[np.uint8]]:
        """Returns the bytes of each column in adjacent rows as views: pieces, or whole rows if all of them are raw."""
        contents: list[Pieces | NDArray[np.uint8]] = [region[rows] for region in self.columns]
        forms = self.forms[rows]
        if forms.any():
            sizes = encoded_sizes(self._schema, forms)
            for index, position in enumerate(self._encodable):
                contents[position] = Pieces.of_rows(self.columns[position][rows], sizes[:, index])
        return contents

    def gather(self, rows: NDArray[np.int64], into: Columns) -> list[tuple[int, int]]:
        """Copies the columns of these rows, in this order, decoded, to columns for the same number of segments.

        Returns:
            Position of the column and index of the row for everything that can't be decoded.
        """
        failed: list[tuple[int, int]] = []
        if not rows.size:
            return failed
        forms = self.forms[rows]
        for position, (region, array) in enumerate(zip(self.columns, into.arrays, strict=True)):
            wanted = array.reshape(rows.size, -1).view(np.uint8)
            mine = forms[:, self._encodable.index(position)] if position in self._encodable else _NO_FORMS
            if mine.any():
                failed += [(position, index) for index in decode_rows(region, rows, mine, wanted)]
            else:
                np.take(region, rows, axis=0, out=wanted, mode="clip")
        return failed


def runs(rows: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yields start and stop of the runs of these rows that are adjacent in the store."""
    return spans(np.diff(rows) != 1, rows.size)


def spans(breaks: NDArray[np.bool_], size: int) -> Iterator[tuple[int, int]]:
    """Yields start and stop of the parts of an array of `size` elements, which is divided after each marked element.

    The marks are <bool>[size - 1]; `size` may be 0.
    """
    ends = [*(np.flatnonzero(breaks) + 1).tolist(), size]
    for start, stop in zip([0, *ends], ends, strict=False):
        if start < stop:
            yield start, stop


def session_copies(records: NDArray[np.uint8]) -> NDArray[Any]:
    """Returns a view <SESSION>[2] of both copies of the session record in <uint8>[RECORDS_BYTES]."""
    return _copies(records, _WATERMARKS_END, SESSION)


def ages_copies(records: NDArray[np.uint8]) -> NDArray[Any]:
    """Returns a view <AGES>[2] of both copies of the record of `ages` in <uint8>[RECORDS_BYTES]."""
    return _copies(records, _SESSION_END, AGES)


def watermark_copies(records: NDArray[np.uint8]) -> NDArray[Any]:
    """Returns a view <WATERMARK>[2, MAX_SLOTS] of both copies of the watermarks in <uint8>[RECORDS_BYTES]."""
    return records.reshape(2, -1)[:, :_WATERMARKS_END].view(WATERMARK)


def _copies(records: NDArray[np.uint8], start: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    return records.reshape(2, -1)[:, start : start + dtype.itemsize].view(dtype)[:, 0]
