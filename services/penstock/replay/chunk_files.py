"""A chunk: a file with the segments of a range of keys, copied from a store that goes on changing.

First the keys, <uint64>[rows], then the rows' bytes column by column. A key of 0 marks a row that was overwritten, or
whose bytes were not those that had been stored, while it was copied. Written once, never changed.

Called by `snapshots`, which writes them in a thread of its own, and by `restoring`.
"""

import errno
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.replay.layout import runs, spans, whole_pages
from penstock.replay.ring_store import RingStore
from penstock.replay.row_checks import checksums_of
from penstock.types import Schema

PIECE_BYTES = 2**20
"""Copied at once. Larger ones only make the disk's queue, and the pauses between them, longer."""

KEY_BYTES = 8


@dataclass(frozen=True, slots=True)
class Copied:
    """What became of the rows of a chunk.

    Attributes:
        present: <bool>[rows] which were not overwritten before they had been copied.
        sound: <bool>[rows] which of these had the bytes that had once been stored.
    """

    present: NDArray[np.bool_]
    sound: NDArray[np.bool_]


class ChunkWriter:
    """Writes the files of one snapshot, one after another, through one buffer.

    Rows are copied into the buffer, checked there, and go to the disk past the kernel's cache: what nobody will read
    soon must not drive the store's own pages out of memory, and fresh pages are what a busy machine waits for.

    Attributes:
        written_bytes: In all files so far.
    """

    def __init__(self, store: RingStore, most_rows: int, spend: Callable[[int], None]) -> None:
        """Args:
        store: Whose rows are copied, without the buffer's lock: they may be overwritten meanwhile.
        most_rows: Of a chunk.
        spend: Called before bytes are copied, with half their number, and again before they are written; waits until
            their turn has come.
        """
        self._store, self._spend, self.written_bytes = store, spend, 0
        self._width = sum(region.shape[1] for region in store.columns)
        # Anonymous memory begins at a page, as writing past the cache asks for.
        self._buffer = np.frombuffer(mmap.mmap(-1, whole_pages(most_rows * (KEY_BYTES + self._width))), np.uint8)

    def write_chunk(self, path: Path, headers: NDArray[Any]) -> Copied:
        """Copies rows into a new file, lastingly.

        Args:
            path: Of the file.
            headers: <HEADER>[rows] of the segments as they were, by ascending key.

        Returns:
            What became of the rows.

        Raises:
            OSError: The file can't be written.
        """
        copied = self._copy(headers)
        keys = self._buffer[: headers.size * KEY_BYTES].view(np.uint64)
        keys[:] = headers["key"]
        keys[~(copied.present & copied.sound)] = 0
        with _opened(path) as descriptor:
            size = headers.size * (KEY_BYTES + self._width)
            self._write(descriptor, 0, size)
            os.ftruncate(descriptor, size)
            os.fdatasync(descriptor)
        return copied

    def write_file(self, path: Path, content: NDArray[np.uint8]) -> None:
        """Writes a new file with these bytes, lastingly. Raises `OSError`."""
        with _opened(path) as descriptor:
            for start in range(0, content.size, self._buffer.size):
                part = content[start : start + self._buffer.size]
                self._spend(part.size // 2)
                self._buffer[: part.size] = part
                self._write(descriptor, start, part.size)
            os.ftruncate(descriptor, content.size)
            os.fdatasync(descriptor)

    def _copy(self, headers: NDArray[Any]) -> Copied:
        keys = np.ascontiguousarray(headers["key"])
        rows = self._store.rows(keys)
        present, sound = np.zeros(keys.size, np.bool_), np.zeros(keys.size, np.bool_)
        for start, stop in _pieces(rows, max(1, PIECE_BYTES // self._width)):
            self._spend((stop - start) * self._width // 2)
            contents, offset = [], keys.size * KEY_BYTES
            for region in self._store.columns:
                width = region.shape[1]
                content = self._buffer[offset + start * width : offset + stop * width].reshape(-1, width)
                content[...] = region[rows[start] : rows[stop - 1] + 1]
                contents.append(content)
                offset += keys.size * width
            # A key that stands there still stood there all the time: it is zeroed before its row is touched.
            present[start:stop] = self._store.present(keys[start:stop])
            # Of the copy: what is found sound is what will be written.
            sound[start:stop] = checksums_of(headers[start:stop], contents) == headers["checksum"][start:stop]
        return Copied(present, sound | ~present)

    def _write(self, descriptor: int, offset: int, size: int) -> None:
        """Writes the buffer's first bytes, and what there is behind them to the end of a page."""
        for start in range(0, size, PIECE_BYTES):
            piece = self._buffer[start : min(start + PIECE_BYTES, whole_pages(size))]
            self._spend(min(piece.size, size - start) // 2)
            if os.pwrite(descriptor, piece.data, offset + start) != piece.size:
                # A disk that is full takes a part; the next attempt says so.
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.written_bytes += size


def chunk_ranges(keys: NDArray[np.uint64], chunk_keys: int) -> Iterator[tuple[int, int, int]]:
    """The first key of each chunk's range, and where its segments begin and end among these ascending keys."""
    numbers = keys // np.uint64(chunk_keys)
    for start, stop in spans(np.diff(numbers) != 0, keys.size):
        yield int(numbers[start]) * chunk_keys, start, stop


def read_chunk(path: Path, schema: Schema, rows: int) -> tuple[NDArray[np.uint64], tuple[NDArray[np.uint8], ...]]:
    """What `write_chunk` wrote.

    Returns:
        <uint64>[rows] keys, and <uint8>[rows, bytes of a segment's column] for each column.

    Raises:
        OSError: The file can't be read, or has another size.
    """
    content = np.fromfile(path, np.uint8)
    if content.size != rows * (KEY_BYTES + schema.segment_bytes):
        raise OSError(0, f"it has {content.size} bytes", str(path))
    columns, offset = [], rows * KEY_BYTES
    for column in schema.columns:
        width = column.segment_bytes(schema.unroll_length)
        columns.append(content[offset : offset + rows * width].reshape(rows, width))
        offset += rows * width
    return content[: rows * KEY_BYTES].view(np.uint64), tuple(columns)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """The descriptor of a new file, which is written past the kernel's cache where the file system can."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        descriptor = os.open(path, flags | os.O_DIRECT, 0o644)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        descriptor = os.open(path, flags, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _pieces(rows: NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """Where rows that lie side by side begin and end, at most so many."""
    for begin, end in runs(rows):
        for start in range(begin, end, most):
            yield start, min(start + most, end)
