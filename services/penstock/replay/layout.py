"""How a store lies in memory: headers and columns in one file; watermarks, the session's record and ages in another.

What lies where is the same in the mapped files, in anonymous memory, and for whoever maps them from another process.
Called by `ring_store`, `store_reader`, and by all that read headers.
"""

import enum
import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigurationError
from penstock.types import MAX_SLOTS, Columns, Schema

PAGE = 4096
"""Bytes; the same on every machine, since it is part of the format."""

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
"""Gaps that the age clock knows apart: a store rarely holds segments of so many sessions."""

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
"""What `ages` keeps: the gaps, and by which bounds fresh segments are late."""

_WATERMARKS_END = MAX_SLOTS * WATERMARK.itemsize
_SESSION_END = _WATERMARKS_END + SESSION.itemsize

RECORDS_BYTES = 2 * (_WATERMARKS_END + PAGE)
"""The size of the records file: two copies, each of all watermarks, then the session record and what `ages` keeps."""


class State(enum.IntEnum):
    """What has become of a row; stored in its header.

    Each code has an odd number of bits that are set, so that no flipped bit makes one code another.
    """

    UNSEEN = 1
    LEASED = 2
    SEEN = 4
    WRITING = 7
    """The row has no key: a window is on its way into it."""
    RELEASED = 8
    """The row has no key: its segment was removed, or its window never became whole."""


SEGMENT_STATES = (State.UNSEEN, State.LEASED, State.SEEN)
"""Those of rows with a key."""


def whole_pages(size: int) -> int:
    """So many bytes, rounded up to whole pages."""
    return -(-size // PAGE) * PAGE


def rows_within(capacity_bytes: int, schema: Schema) -> int:
    """How many rows a store of this size has. Raises `ConfigurationError` if not even two segments fit."""
    capacity = (capacity_bytes - (len(schema.columns) + 1) * PAGE) // (HEADER.itemsize + schema.segment_bytes)
    if capacity < 2:
        raise ConfigurationError(
            f"replay.capacity_bytes {capacity_bytes} holds {max(capacity, 0)} segments of"
            f" {schema.segment_bytes} bytes; raise it"
        )
    return capacity


class Regions:
    """How a schema divides a store's memory: headers, then a region a column, each from a page's begin on.

    Attributes:
        capacity: Rows.
        headers: <HEADER>[capacity].
        columns: <uint8>[capacity, bytes of a segment's column], one a column.
        proof: <uint64>[1] where the service writes what a reader must find.
    """

    def __init__(self, memory: mmap.mmap, schema: Schema, capacity_bytes: int) -> None:
        """Lays the regions out. Raises `ConfigurationError` if not even two segments fit."""
        self.capacity, self._memory, self._end = rows_within(capacity_bytes, schema), memory, 0
        self.headers = self._region(HEADER.itemsize).reshape(-1).view(HEADER)
        after_headers, columns_start = self.headers.nbytes, self._end
        self.columns = tuple(self._region(column.segment_bytes(schema.unroll_length)) for column in schema.columns)
        # Headers that fill whole pages leave one at the end: `rows_within` counts a spare page for each region.
        self.proof = np.frombuffer(memory, "<u8", 1, after_headers if after_headers < columns_start else self._end)

    def _region(self, width: int) -> NDArray[np.uint8]:
        size = self.capacity * width
        array = np.frombuffer(self._memory, np.uint8, size, self._end).reshape(self.capacity, width)
        self._end += whole_pages(size)
        return array

    def rows(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """<int64>[B] where the segments of these keys lie, or lay."""
        return (keys % np.uint64(self.capacity)).astype(np.int64)

    def gather(self, rows: NDArray[np.int64], into: Columns) -> None:
        """Copies these rows' columns, in this order, into columns of as many segments."""
        if not rows.size:
            return
        for region, wanted in zip(self.columns, into.arrays, strict=True):
            np.take(region, rows, axis=0, out=wanted.reshape(rows.size, -1).view(np.uint8), mode="clip")


def runs(rows: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Where among these rows those begin and end that lie side by side in the store."""
    return spans(np.diff(rows) != 1, rows.size)


def spans(breaks: NDArray[np.bool_], size: int) -> Iterator[tuple[int, int]]:
    """Where the parts of an array of this size begin and end, if it is divided after each element that says so.

    Args:
        breaks: <bool>[size - 1].
        size: May be 0.
    """
    ends = [*(np.flatnonzero(breaks) + 1).tolist(), size]
    for start, stop in zip([0, *ends], ends, strict=False):
        if start < stop:
            yield start, stop


def session_copies(records: NDArray[np.uint8]) -> NDArray[Any]:
    """<SESSION>[2] both copies of the session record in <uint8>[RECORDS_BYTES]; a view."""
    return _copies(records, _WATERMARKS_END, SESSION)


def ages_copies(records: NDArray[np.uint8]) -> NDArray[Any]:
    """<AGES>[2] both copies of what `ages` keeps in <uint8>[RECORDS_BYTES]; a view."""
    return _copies(records, _SESSION_END, AGES)


def watermark_copies(records: NDArray[np.uint8]) -> NDArray[Any]:
    """<WATERMARK>[2, MAX_SLOTS] both copies of the watermarks in <uint8>[RECORDS_BYTES]; a view."""
    return records.reshape(2, -1)[:, :_WATERMARKS_END].view(WATERMARK)


def _copies(records: NDArray[np.uint8], start: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    return records.reshape(2, -1)[:, start : start + dtype.itemsize].view(dtype)[:, 0]
