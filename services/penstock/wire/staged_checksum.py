"""The checksum of a staged window, which its actor sends and the service verifies.

Each column's bytes are padded with zeros to words of 64 bits, and the words are summed modulo 2**64: word i of a column
is added to sum i % SUMS. The checksum is the CRC-32 (zlib's) of the sums; gaps between columns don't count. So any
change of one word is found, as are pages that are zeros or older. Pages that are swapped are found too, since a page
holds no multiple of SUMS words. Sums read memory at ten times the pace of a CRC, and the service takes them while it
copies.
"""

import zlib

import numpy as np
from numpy.typing import NDArray

from penstock.types import Columns

SUMS = 509


def staged_checksum(columns: Columns) -> int:
    """The checksum of a window's columns, C-ordered. Releases the interpreter's lock."""
    sums = np.zeros(SUMS, np.uint64)
    for array in columns.arrays:
        _add(array.reshape(-1).view(np.uint8), sums)
    return checksum_of(sums)


def checksum_of(sums: NDArray[np.uint64]) -> int:
    """The checksum of a window with these <uint64>[SUMS]."""
    return zlib.crc32(sums.data)


def _add(data: NDArray[np.uint8], sums: NDArray[np.uint64]) -> None:
    """Adds the words of a column's <uint8>[...]."""
    rest = data.size % 8
    words = data[: data.size - rest].view(np.uint64)
    turns, last = divmod(words.size, SUMS)
    if turns:
        sums += np.add.reduce(words[: turns * SUMS].reshape(turns, SUMS), axis=0)
    sums[:last] += words[turns * SUMS :]
    if rest:
        sums[last] += np.uint64(int.from_bytes(data[-rest:].tobytes(), "little"))
