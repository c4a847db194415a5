"""A chunk: a file with the segments of a range of keys, copied from a store that goes on changing.

First the keys, <uint64>[rows], then the rows' bytes column by column. A key of 0 marks a row that was overwritten, or
whose bytes were not those that had been stored, while it was copied. Written once, never changed.

Called by `snapshots`, which writes them in a thread of its own, and by `restoring`.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.replay.ring_store import RingStore
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


def write_chunk(path: Path, store: RingStore, headers: NDArray[Any], spend: Callable[[int], None]) -> Copied:
    """Copies rows into a new file, lastingly. Without the buffer's lock: rows may be overwritten meanwhile.

    Args:
        path: Of the file.
        store: Where the rows lie.
        headers: <HEADER>[rows] of the segments as they were, by ascending key.
        spend: Called with the size of each piece before it is copied; waits until its turn has come.

    Returns:
        What became of the rows.

    Raises:
        OSError: The file can't be written.
    """
    keys = np.ascontiguousarray(headers["key"])
    rows, checksums = store.rows(keys), headers["checksum"]
    present, sound = np.zeros(keys.size, np.bool_), np.zeros(keys.size, np.bool_)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        width = sum(region.shape[1] for region in store.columns)
        for start, stop in _pieces(rows, max(1, PIECE_BYTES // width)):
            # Waited for now: once they were looked at, rows are to be copied before they are overwritten.
            spend((stop - start) * width)
            # Looked at first, so that the bytes are in the processor's cache when the kernel copies them.
            sound[start:stop] = store.checksums(rows[start:stop]) == checksums[start:stop]
            offset = keys.size * KEY_BYTES
            for region in store.columns:
                content = region[rows[start] : rows[stop - 1] + 1].reshape(-1)
                _write(descriptor, content, offset + start * region.shape[1])
                offset += keys.size * region.shape[1]
            # A key that stands there still stood there all the time: it is zeroed before its row is touched.
            present[start:stop] = store.present(keys[start:stop])
        keys[~(present & sound)] = 0
        _write(descriptor, keys.view(np.uint8), 0)
        os.fdatasync(descriptor)
        # What nobody will read soon must not drive the store's own pages out of memory.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    return Copied(present, sound | ~present)


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


def write_file(path: Path, content: NDArray[np.uint8], spend: Callable[[int], None]) -> None:
    """Writes a file as slowly as a chunk, lastingly. Raises `OSError`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        for start in range(0, content.size, PIECE_BYTES):
            piece = content[start : start + PIECE_BYTES]
            spend(piece.size)
            _write(descriptor, piece, start)
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def _pieces(rows: NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """Where rows that lie side by side begin and end, at most so many."""
    ends = [*(np.flatnonzero(np.diff(rows) != 1) + 1).tolist(), rows.size]
    for begin, end in zip([0, *ends], ends, strict=False):
        for start in range(begin, end, most):
            yield start, min(start + most, end)


def _write(descriptor: int, content: NDArray[np.uint8], offset: int) -> None:
    done = 0
    while done < content.size:
        # Straight from the mapped rows: the system call copies them, without the interpreter's lock.
        done += os.pwrite(descriptor, content[done : done + PIECE_BYTES].data, offset + done)
