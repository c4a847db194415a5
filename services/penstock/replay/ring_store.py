"""The store: a ring of rows in one mapped file, a segment a row, that survives the death of any process.

The file is allocated at its full size when the service starts. The first schema divides it into regions: headers, then
one a column. Segment `key` lies in row `key % capacity`; keys count insertions from 1 and are never used again. A row's
key is zeroed before the row is overwritten and written last, so that a torn row has no key. Without a folder the same
layout lies in anonymous memory.

Refuses: a file that can't be allocated, a store of another format, schema or size. Called by `replay.buffer`, which
owns the lock; `gather` alone is safe without it, if the keys are checked again afterwards.
"""

import enum
import json
import mmap
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigurationError, InvalidSegment, Overloaded, SchemaMismatch
from penstock.types import Column, Columns, Extent, Schema, Window

FORMAT = 1
MAX_SLOTS = 4096
_PAGE = 4096
_RECOVERY_CHUNK = 256
"""Rows checked at once when a store is opened; each costs a copy of its payload."""

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
_WATERMARK = np.dtype([("incarnation", "<u8"), ("sequence", "<u8")])
_SESSION = np.dtype(
    [("session", "<u8"), ("next_batch", "<i8"), ("version", "<i8"), ("inserted", "<u8"), ("late", "<u8")]
)


class State(enum.IntEnum):
    """What has become of a segment; stored in its header."""

    UNSEEN = 1
    LEASED = 2
    SEEN = 3


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a scan of an existing store found.

    Attributes:
        segments: Rows that are whole.
        damaged: Rows that had a key but another checksum, or lay in the wrong place; dropped.
    """

    segments: int
    damaged: int


@numba.njit("void(uint8[:, ::1], uint64[::1])", nogil=True, cache=True)
def _mix_rows(rows, checksums):  # type: ignore[no-untyped-def]
    """Folds each row's bytes into its checksum, 32 bytes a round in four lanes (after xxHash64's rounds)."""
    prime_a, prime_b = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F)
    left, right = np.uint64(31), np.uint64(33)
    size = rows.shape[1]
    for index in range(rows.shape[0]):
        row = rows[index]
        words = row[: size - size % 32].view(np.uint64)
        seed = checksums[index]
        lane_a, lane_b, lane_c, lane_d = seed, seed ^ prime_a, seed ^ prime_b, seed + prime_a
        for word in range(0, words.size, 4):
            lane_a = (lane_a ^ words[word]) * prime_a
            lane_b = (lane_b ^ words[word + 1]) * prime_a
            lane_c = (lane_c ^ words[word + 2]) * prime_a
            lane_d = (lane_d ^ words[word + 3]) * prime_a
            lane_a = (lane_a << left) | (lane_a >> right)
            lane_b = (lane_b << left) | (lane_b >> right)
            lane_c = (lane_c << left) | (lane_c >> right)
            lane_d = (lane_d << left) | (lane_d >> right)
        mixed = ((lane_a * prime_b ^ lane_b) * prime_b ^ lane_c) * prime_b ^ lane_d
        for byte in range(size - size % 32, size):
            mixed = (mixed ^ np.uint64(row[byte])) * prime_a
        checksums[index] = mixed ^ (mixed >> right)


class RingStore:
    """Rows of segments with their headers, watermarks and session record.

    Attributes:
        capacity: Rows; 0 before the schema is known.
        headers: <HEADER>[capacity] the mapped headers.
        session: <_SESSION>[1] the mapped record of the learner's session and the counters.
    """

    def __init__(self, folder: Path | None, capacity_bytes: int) -> None:
        """Allocates the file, or opens the one that is there.

        Raises:
            ConfigurationError: The folder can't be written, the disk is too full, or the store there has another size
                or format.
        """
        self._folder = folder
        self._capacity_bytes = capacity_bytes
        self._memory = _allocate(folder, "segments.bin", capacity_bytes)
        self._records = _allocate(folder, "records.bin", MAX_SLOTS * _WATERMARK.itemsize + _PAGE)
        self._watermarks = np.frombuffer(self._records, _WATERMARK, MAX_SLOTS)
        self.session = np.frombuffer(self._records, _SESSION, 1, MAX_SLOTS * _WATERMARK.itemsize)
        self.schema: Schema | None = None
        self.capacity = 0
        self.headers: NDArray[Any] = np.zeros(0, HEADER)
        self._columns: tuple[NDArray[np.generic], ...] = ()
        self.recovery = Recovery(0, 0)
        if folder is not None and (folder / "store.json").exists():
            self._lay_out(_read_description(folder / "store.json"))
            self.recovery = self._recover()

    def adopt(self, schema: Schema) -> None:
        """Lays the columns out for the first schema; checks every later one against it.

        Raises:
            SchemaMismatch: The store holds segments of another schema.
            ConfigurationError: Not even two segments fit.
        """
        if self.schema is not None:
            if schema != self.schema:
                raise SchemaMismatch(
                    f"this store holds segments of schema {self.schema.hash:016x}, and an actor brought"
                    f" {schema.hash:016x};"
                    " start a new run for another environment or unroll length"
                )
            return
        self._lay_out(schema)
        if self._folder is not None:
            _write_description(self._folder / "store.json", schema, self._capacity_bytes)

    def _lay_out(self, schema: Schema) -> None:
        regions = len(schema.columns) + 1
        capacity = (self._capacity_bytes - regions * _PAGE) // (HEADER.itemsize + schema.segment_bytes)
        if capacity < 2:
            raise ConfigurationError(
                f"replay.capacity_bytes {self._capacity_bytes} holds {max(capacity, 0)} segments of"
                f" {schema.segment_bytes} bytes; raise it"
            )
        offset = 0

        def region(dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> NDArray[np.generic]:
            nonlocal offset
            count = int(np.prod(shape))
            array = np.frombuffer(self._memory, dtype, count, offset).reshape(shape)
            offset += -(-count * dtype.itemsize // _PAGE) * _PAGE
            return array

        self.headers = region(HEADER, (capacity,))
        self._columns = tuple(
            region(np.dtype(column.dtype), (capacity, *column.segment_shape(schema.unroll_length)))
            for column in schema.columns
        )
        self.schema, self.capacity = schema, capacity

    def _recover(self) -> Recovery:
        keys = self.headers["key"]
        rows = np.flatnonzero(keys)
        sound = keys[rows] % np.uint64(self.capacity) == rows
        for start in range(0, rows.size, _RECOVERY_CHUNK):
            chunk = slice(start, start + _RECOVERY_CHUNK)
            sound[chunk] &= self._checksums(rows[chunk]) == self.headers["checksum"][rows[chunk]]
        self.headers["key"][rows[~sound]] = 0
        whole = self.headers[rows[sound]]
        for slot in np.unique(whole["slot"]):
            mine = whole[whole["slot"] == slot]
            newest = mine[mine["incarnation"] == mine["incarnation"].max()]
            self._raise_watermark(int(slot), int(newest["incarnation"][0]), int(newest["sequence"].max()))
        return Recovery(int(sound.sum()), int((~sound).sum()))

    def watermark(self, slot: int, incarnation: int) -> int:
        """The last sequence stored for this slot and incarnation; 0: none.

        Raises:
            InvalidSegment: The slot is out of range.
            SchemaMismatch: A later incarnation has taken the slot.
        """
        if not 0 <= slot < MAX_SLOTS:
            raise InvalidSegment(f"slot must be below {MAX_SLOTS}, got {slot}")
        mark = self._watermarks[slot]
        if mark["incarnation"] > incarnation:
            raise SchemaMismatch(
                f"incarnation {incarnation} of slot {slot} is over: {mark['incarnation']} has taken it; join again"
            )
        return int(mark["sequence"]) if mark["incarnation"] == incarnation else 0

    def _raise_watermark(self, slot: int, incarnation: int, sequence: int) -> None:
        mark = self._watermarks[slot]
        if (incarnation, sequence) > (int(mark["incarnation"]), int(mark["sequence"])):
            # A kill between the two writes must not leave the old sequence under the new incarnation.
            self._watermarks["sequence"][slot] = 0
            self._watermarks["incarnation"][slot] = incarnation
            self._watermarks["sequence"][slot] = sequence

    def rows(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """<int64>[B] where the segments of these keys lie, or lay."""
        return (keys % np.uint64(self.capacity)).astype(np.int64)

    def present(self, keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """<bool>[B] which of these segments are still there."""
        # Rows without a segment have key 0, which is nobody's.
        result: NDArray[np.bool_] = (self.headers["key"][self.rows(keys)] == keys) & (keys != 0)
        return result

    def write(self, keys: NDArray[np.uint64], window: Window, first: int) -> None:
        """Stores the window's segments from number `first` on under these consecutive keys, as unseen.

        Raises:
            Overloaded: A row to overwrite is unseen or leased.
        """
        rows, last = self.rows(keys), window.columns.segments
        taken = (self.headers["key"][rows] != 0) & (self.headers["state"][rows] != State.SEEN)
        if taken.any():
            raise Overloaded(
                f"the store's {self.capacity} rows are full of segments that were not trained yet; raise"
                " replay.capacity_bytes"
            )
        self.headers["key"][rows] = 0
        for stored, sent in zip(self._columns, window.columns.arrays, strict=True):
            for to, source in _runs(rows, first):
                stored[to] = sent[source]
        header = np.zeros(rows.size, HEADER)
        header["sequence"] = np.arange(window.first_sequence + first, window.first_sequence + last)
        header["version"], header["batch"] = window.version, -1
        header["slot"], header["incarnation"] = window.slot, window.incarnation
        header["environment"], header["state"] = window.environments[first:], State.UNSEEN
        self.headers[rows] = header
        self.headers["checksum"][rows] = self._checksums(rows, keys)
        self.headers["key"][rows] = keys
        self._raise_watermark(window.slot, window.incarnation, window.first_sequence + last - 1)

    def gather(self, rows: NDArray[np.int64], into: Columns) -> None:
        """Copies these rows' columns, in this order, into columns of as many segments."""
        for stored, wanted in zip(self._columns, into.arrays, strict=True):
            np.take(stored, rows, axis=0, out=wanted, mode="clip")

    def _checksums(self, rows: NDArray[np.int64], keys: NDArray[np.uint64] | None = None) -> NDArray[np.uint64]:
        """Checksums of what never changes in these rows: identity, version and payload."""
        header = self.headers[rows]
        identity = np.empty((rows.size, 6), np.uint64)
        identity[:, 0] = header["key"] if keys is None else keys
        for position, field in enumerate(("sequence", "slot", "incarnation", "environment"), start=1):
            identity[:, position] = header[field]
        identity[:, 5] = header["version"].view(np.uint64)
        checksums = np.zeros(rows.size, np.uint64)
        _mix_rows(identity.view(np.uint8), checksums)
        for stored in self._columns:
            content = np.ascontiguousarray(stored[rows]).reshape(rows.size, -1)
            _mix_rows(content.view(np.uint8), checksums)
        return checksums

    def flush(self) -> None:
        """Has the kernel write the mapped pages to disk (a clean stop; not needed to survive a kill)."""
        if self._folder is not None:
            self._memory.flush()
            self._records.flush()


def _runs(rows: NDArray[np.int64], first: int) -> list[tuple[slice, slice]]:
    """Slices of the ring and of a window's segments from `first` on, in pairs: one pair, or two where the ring ends."""
    wrap = int(np.argmin(rows)) if rows[0] > rows[-1] else rows.size
    pieces = [(0, wrap), (wrap, rows.size)] if wrap < rows.size else [(0, rows.size)]
    return [
        (slice(int(rows[start]), int(rows[start]) + end - start), slice(first + start, first + end))
        for start, end in pieces
    ]


def _allocate(folder: Path | None, name: str, size: int) -> mmap.mmap:
    if folder is None:
        return mmap.mmap(-1, size)
    path = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            present = os.fstat(descriptor).st_size
            if present not in (0, size):
                raise ConfigurationError(
                    f"{path} is a store of {present} bytes, and {size} are configured; set replay.capacity_bytes as it"
                    " was, or"
                    " choose another replay.folder"
                )
            # A mapped file with holes would meet a full disk as a bus error, in the middle of a run.
            os.posix_fallocate(descriptor, 0, size)
            return mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ConfigurationError(
            f"can't allocate {size} bytes for the replay store at {path}: {error.strerror}; free space, lower"
            " replay.capacity_bytes, or choose another replay.folder"
        ) from None


def _write_description(path: Path, schema: Schema, capacity_bytes: int) -> None:
    description = {
        "format": FORMAT,
        "capacity_bytes": capacity_bytes,
        "schema_hash": f"{schema.hash:016x}",
        "unroll_length": schema.unroll_length,
        "columns": [[c.name, c.dtype, list(c.shape), int(c.extent), c.lead] for c in schema.columns],
    }
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        json.dump(description, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    Path(file.name).replace(path)


def _read_description(path: Path) -> Schema:
    try:
        description = json.loads(path.read_text())
        if description["format"] != FORMAT:
            raise ConfigurationError(
                f"{path} is a store of format {description['format']}, and this version reads {FORMAT}; choose another"
                " replay.folder"
            )
        columns = tuple(
            Column(name, dtype, tuple(shape), Extent(extent), lead)
            for name, dtype, shape, extent, lead in description["columns"]
        )
        return Schema(description["unroll_length"], columns)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{path} does not describe a store ({error}); choose another replay.folder") from None
