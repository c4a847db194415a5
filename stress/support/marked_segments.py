"""Segments that identify themselves: each contains its sender and a checksum of its contents.

A receiver can therefore check a segment without knowledge of what was sent.
"""

import functools
import zlib

import numpy as np
from numpy.typing import NDArray

from penstock.types.block import Column, Columns, Extent, Schema
from penstock.types.replay import Window, WindowHead

SCHEMA = Schema(
    64,
    (
        Column("observation", "float32", (8,), Extent.STEP_AND_NEXT),
        Column("action", "int64"),
        Column("reward", "float32"),
        Column("terminated", "bool"),
        Column("behaviour_log_prob", "float32"),
        Column("mark", "int64", (3,), Extent.SEGMENT),
    ),
)
"""T = 64 steps of 8 float32 observations: 3.2 kB. A mark is (slot, sequence, checksum)."""

_KINDS = 64
_MARK = SCHEMA.index("mark")


class MarkedWindows:
    """Creates the windows of one actor. Contents are reused for speed; marks are unique."""

    def __init__(self, slot: int, segments: int, *, incarnation: int = 1) -> None:
        self._slot, self._segments, self._incarnation = slot, segments, incarnation
        self._contents, self._checksums = _contents(segments)
        self.sequence = 1

    def next(self, version: int) -> Window:
        """Returns the next window, collected with this version."""
        first, size = int(self.sequence) % _KINDS, self._segments
        arrays = [array[first : first + size] for array in self._contents]
        sequences = np.arange(self.sequence, self.sequence + size, dtype=np.int64)
        mark = np.stack([np.full(size, self._slot), sequences, self._checksums[first : first + size]], axis=1)
        mark[:, 2] ^= _salt(mark)
        arrays[_MARK] = np.ascontiguousarray(mark.reshape(size, 1, 3))
        environments = np.arange(self._slot * size, (self._slot + 1) * size, dtype=np.uint32)
        window = Window(
            WindowHead(self._slot, self._incarnation, self.sequence, version, environments),
            Columns(SCHEMA, tuple(arrays)),
        )
        self.sequence += size
        return window


@functools.cache
def _contents(segments: int) -> tuple[tuple[NDArray[np.generic], ...], NDArray[np.int64]]:
    """Returns random columns from which windows of this number of segments are cut, and their checksums."""
    random, columns = np.random.default_rng(1), SCHEMA.empty(_KINDS + segments)
    for column, array in zip(SCHEMA.columns, columns.arrays, strict=True):
        array[...] = random.integers(0, 2 if column.dtype == "bool" else 1000, array.shape)
    return columns.arrays, _checksums(columns.arrays)


def damaged(columns: Columns) -> int:
    """Returns the number of segments that differ from those sent under their marks."""
    mark = np.ascontiguousarray(columns.arrays[_MARK].reshape(-1, 3)).astype(np.int64)
    return int(np.count_nonzero((mark[:, 2] ^ _salt(mark)) != _checksums(columns.arrays)))


def _salt(mark: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns <int64>[B] values that make the checksum depend on the mark, so that swapped contents are detected."""
    return mark[:, 0] * 1_000_003 + mark[:, 1] * 7_919


def _checksums(arrays: "tuple[NDArray[np.generic], ...]") -> NDArray[np.int64]:
    """Returns <int64>[B] CRC-32 checksums of all columns except the mark."""
    sums = np.zeros(len(arrays[0]), np.int64)
    others = [np.ascontiguousarray(array) for index, array in enumerate(arrays) if index != _MARK]
    for row in range(sums.size):
        total = 0
        for array in others:
            total = zlib.crc32(array[row].data, total)
        sums[row] = total
    return sums
