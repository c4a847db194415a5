"""Rows whose columns are in forms of different sizes: where their bytes are, and their decoding.

A row may be overwritten while it is read. The caller then finds that its key has changed and drops the data. The module
compiles nothing, because learners and actors import it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.machine import compression
from penstock.types.codecs import Forms, form_sizes


@dataclass(frozen=True, slots=True)
class Pieces:
    """Bytes of a column in several rows.

    Attributes:
        data: <uint8>[...] contiguous memory that has them.
        starts: <int64>[rows] offset of each row's bytes.
        sizes: <int64>[rows] size of each row's bytes.
        width: Size of every row's bytes if they are equal and follow one another; None if they don't.
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    width: int | None = None

    @classmethod
    def of_rows(cls, rows: NDArray[np.uint8], sizes: NDArray[np.int64] | None = None) -> "Pieces":
        """Returns the first bytes of rows <uint8>[rows, width], which are adjacent in memory; without sizes, all."""
        count, width = rows.shape
        starts = np.arange(count, dtype=np.int64) * width
        if sizes is None:
            return cls(rows.reshape(-1), starts, np.full(count, width, np.int64), width)
        return cls(rows.reshape(-1), starts, sizes.copy())

    @classmethod
    def packed(cls, data: NDArray[np.uint8], sizes: NDArray[np.int64], width: int | None = None) -> "Pieces":
        """Returns rows of these sizes that follow one another in `data`; `width` is their size if all are equal."""
        return cls(data, np.cumsum(sizes) - sizes, sizes, width)

    @property
    def rows(self) -> NDArray[np.uint8] | None:
        """<uint8>[rows, width] view of rows of one width; None if their sizes differ."""
        if self.width is None or not self.starts.size:
            return None
        first = int(self.starts[0])
        return self.data[first : first + self.starts.size * self.width].reshape(-1, self.width)

    @property
    def total_bytes(self) -> int:
        """Size of all rows together."""
        return int(self.sizes.sum())

    def part(self, start: int, stop: int) -> "Pieces":
        """Returns the rows from `start` to before `stop`."""
        return Pieces(self.data, self.starts[start:stop], self.sizes[start:stop], self.width)


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
