"""Chunk files: the segments of a range of keys, copied from a store that keeps changing.

A chunk begins with the keys, <uint64>[rows], and the forms, <uint32>[rows, encodable columns]. The rows' bytes follow,
column by column, as they are stored. Key 0 marks a row that was overwritten during the copy, or whose bytes did not
match their checksum. A chunk is written once and never changed.
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

from penstock.machine.files import open_new, sync_data
from penstock.replay.store.encoded_rows import Pieces
from penstock.replay.store.layout import runs, spans, whole_pages
from penstock.replay.store.ring_store import RingStore
from penstock.replay.store.row_checks import checksums_of
from penstock.replay.store.segment_rows import copy_pieces
from penstock.types.block import Schema
from penstock.types.codecs import Forms, encodable, encoded_sizes

PIECE_BYTES = 2**20
"""Bytes copied at once. Larger pieces only lengthen the disk's queue and the pauses between pieces."""

KEY_BYTES = 8
_FORM_BYTES = 4


class ChunkWriter:
    """Writer of one snapshot's files, one after another, through one buffer.

    Rows are copied into the buffer, checked there, and written to disk past the page cache. Otherwise data that is not
    read soon would evict the store's own pages, and allocating fresh pages is slow on a busy machine.

    Attributes:
        written_bytes: Bytes written to all files so far.
    """

    def __init__(self, store: RingStore, most_rows: int, spend: Callable[[int], None]) -> None:
        """Allocates the buffer.

        Args:
            store: Store whose rows are copied without the buffer's lock, so they may be overwritten meanwhile.
            most_rows: Maximum number of rows in a chunk.
            spend: Called with half the number of bytes before they are copied, and again before they are written. It
                blocks until the rate limit permits them.
        """
        self._store, self._spend, self.written_bytes = store, spend, 0
        self._width = sum(region.shape[1] for region in store.columns)
        self._lead = KEY_BYTES + _FORM_BYTES * store.forms.shape[1]
        # O_DIRECT needs a page-aligned buffer, and anonymous mappings begin at a page.
        self._buffer = np.frombuffer(mmap.mmap(-1, whole_pages(most_rows * (self._lead + self._width))), np.uint8)

    def write_chunk(self, path: Path, headers: NDArray[Any]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Copies the segments of these earlier headers <HEADER>[rows], by ascending key, to a new file and syncs it.

        Returns:
            <bool>[rows] whether each was present until it had been copied, and <bool>[rows] whether its copy matches
            its checksum or it was not present.

        Raises:
            OSError: The file can't be written.
        """
        present, sound, size = self._copy(headers)
        keys = self._buffer[: headers.size * KEY_BYTES].view(np.uint64)
        keys[:] = headers["key"]
        keys[~(present & sound)] = 0
        with _opened(path) as descriptor:
            self._write(descriptor, 0, size)
            os.ftruncate(descriptor, size)
            sync_data(descriptor)
        return present, sound

    def write_file(self, path: Path, content: NDArray[np.uint8]) -> None:
        """Writes these bytes to a new file and syncs it. Raises `OSError`."""
        with _opened(path) as descriptor:
            for start in range(0, content.size, self._buffer.size):
                part = content[start : start + self._buffer.size]
                self._spend(part.size // 2)
                self._buffer[: part.size] = part
                self._write(descriptor, start, part.size)
            os.ftruncate(descriptor, content.size)
            sync_data(descriptor)

    def _copy(self, headers: NDArray[Any]) -> tuple[NDArray[np.bool_], NDArray[np.bool_], int]:
        """Copies forms and rows. Returns as `write_chunk`, and the size of the chunk in bytes."""
        keys = np.ascontiguousarray(headers["key"])
        rows, schema = self._store.rows(keys), self._store.schema
        assert schema is not None
        present, sound = np.zeros(keys.size, np.bool_), np.zeros(keys.size, np.bool_)
        # The forms of a row that is overwritten from here on may be any, but they decide where the bytes are.
        forms = self._buffer[keys.size * KEY_BYTES : keys.size * self._lead].view(np.uint32).reshape(keys.size, -1)
        forms[...] = self._store.forms[rows]
        columns, size = _columns_in(schema, self._buffer, keys.size * self._lead, forms)
        for start, stop in _pieces(rows, max(1, PIECE_BYTES // self._width)):
            self._spend(sum(int(column.sizes[start:stop].sum()) for column in columns) // 2)
            contents = [column.part(start, stop) for column in columns]
            for region, content in zip(self._store.columns, contents, strict=True):
                mine = region[rows[start] : rows[stop - 1] + 1]
                places = np.arange(stop - start, dtype=np.int64) * mine.shape[1]
                copy_pieces(mine.reshape(-1), places, content.data, content.starts, content.sizes)
            # A key that is still present was present all the time, because it is zeroed before its row is modified.
            present[start:stop] = self._store.present(keys[start:stop])
            # The checksums are of the copy, which will be written.
            copied = checksums_of(headers[start:stop], forms[start:stop], contents)
            sound[start:stop] = copied == headers["checksum"][start:stop]
        return present, sound | ~present, size

    def _write(self, descriptor: int, offset: int, size: int) -> None:
        """Writes the buffer's first `size` bytes, and the bytes after them up to a whole page."""
        for start in range(0, size, PIECE_BYTES):
            piece = self._buffer[start : min(start + PIECE_BYTES, whole_pages(size))]
            self._spend(min(piece.size, size - start) // 2)
            if os.pwrite(descriptor, piece.data, offset + start) != piece.size:
                # A short write means a full disk. Another attempt would fail with this error.
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.written_bytes += size


def chunk_ranges(keys: NDArray[np.uint64], chunk_keys: int) -> Iterator[tuple[int, int, int]]:
    """Yields each chunk's first key, and the start and stop of its segments among these ascending keys."""
    numbers = keys // np.uint64(chunk_keys)
    for start, stop in spans(np.diff(numbers) != 0, keys.size):
        yield int(numbers[start]) * chunk_keys, start, stop


@dataclass(frozen=True, slots=True)
class ChunkRows:
    """Rows of a chunk.

    Attributes:
        keys: <uint64>[rows] keys; 0 for a row without a sound copy.
        forms: Forms of the columns that may be encoded.
        columns: Bytes of each column in the rows.
    """

    keys: NDArray[np.uint64]
    forms: Forms
    columns: tuple[Pieces, ...]


def read_chunk(path: Path, schema: Schema, rows: int) -> ChunkRows:
    """Reads a file of `write_chunk`.

    Raises:
        OSError: The file can't be read, or its size is not the expected one.
    """
    content, encoded = np.fromfile(path, np.uint8), len(encodable(schema))
    lead = rows * (KEY_BYTES + _FORM_BYTES * encoded)
    if content.size < lead:
        raise OSError(0, f"it has {content.size} bytes", str(path))
    forms = content[rows * KEY_BYTES : lead].view(np.uint32).reshape(rows, encoded)
    columns, size = _columns_in(schema, content, lead, forms)
    if content.size != size:
        raise OSError(0, f"it has {content.size} bytes", str(path))
    return ChunkRows(content[: rows * KEY_BYTES].view(np.uint64), forms, columns)


def _columns_in(schema: Schema, content: NDArray[np.uint8], lead: int, forms: Forms) -> tuple[tuple[Pieces, ...], int]:
    """Returns the places of rows with these forms in a chunk's bytes after `lead`, and the size of the chunk."""
    sizes, columns, offset = encoded_sizes(schema, forms), [], lead
    for position, width in enumerate(schema.column_bytes):
        if position in encodable(schema):
            mine = np.ascontiguousarray(sizes[:, encodable(schema).index(position)])
            pieces = Pieces.packed(content[offset:], mine)
        else:
            pieces = Pieces.packed(content[offset:], np.full(len(forms), width, np.int64), width)
        columns.append(pieces)
        offset += pieces.total_bytes
    return tuple(columns), offset


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Yields the descriptor of a new file that bypasses the page cache if the file system supports it."""
    try:
        descriptor = open_new(path, os.O_WRONLY | getattr(os, "O_DIRECT", 0))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        descriptor = open_new(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _pieces(rows: NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """Yields start and stop of runs of adjacent rows, at most `most` rows each."""
    for begin, end in runs(rows):
        for start in range(begin, end, most):
            yield start, min(start + most, end)
