"""Rows whose columns are in forms of different sizes: where their bytes are, and their decoding.

A row may be overwritten while it is read. The caller then finds that its key has changed and drops what it got.
`layout`, `ring_store` and `snapshots.chunk_files` use it. It compiles nothing, because learners and actors import it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock import compression
from penstock.types.codecs import Forms, form_sizes


@dataclass(frozen=True, slots=True)
class Pieces:
    """Bytes of a column in several rows.

    Attributes:
        data: <uint8>[...] contiguous memory that has them.
        starts: <int64>[rows] offset of each row's bytes.
        sizes: <int64>[rows] size of each row's bytes.
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @classmethod
    def of_rows(cls, rows: NDArray[np.uint8], sizes: NDArray[np.int64] | None = None) -> "Pieces":
        """Returns the first bytes of rows <uint8>[rows, width], which are adjacent in memory; without sizes, all."""
        count, width = rows.shape
        starts = np.arange(count, dtype=np.int64) * width
        return cls(rows.reshape(-1), starts, np.full(count, width, np.int64) if sizes is None else sizes.copy())

    @classmethod
    def packed(cls, data: NDArray[np.uint8], sizes: NDArray[np.int64]) -> "Pieces":
        """Returns rows of these sizes that follow one another in `data`."""
        return cls(data, np.cumsum(sizes) - sizes, sizes)

    @property
    def total_bytes(self) -> int:
        """Size of all rows together."""
        return int(self.sizes.sum())

    def part(self, start: int, stop: int) -> "Pieces":
        """Returns the rows from `start` to before `stop`."""
        return Pieces(self.data, self.starts[start:stop], self.sizes[start:stop])


def decode_rows(region: NDArray[np.uint8], rows: NDArray[np.int64], forms: Forms, into: NDArray[np.uint8]) -> list[int]:
    """Decodes rows <int64>[B] of a region <uint8>[capacity, width], whose forms are <uint32>[B], to <uint8>[B, width].

    Returns:
        The indices of the rows that can't be decoded. Their bytes in `into` are arbitrary.
    """
    width, failed = region.shape[1], []
    sizes = np.where(forms == 0, width, np.minimum(form_sizes(forms), width)).tolist()
    for index, (row, form) in enumerate(zip(rows.tolist(), forms.tolist(), strict=True)):
        if not compression.decode(form, region[row, : sizes[index]], into[index]):
            failed.append(index)
    return failed
