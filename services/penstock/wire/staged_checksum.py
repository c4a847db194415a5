"""Checksum of a staged window, which its actor sends and the service verifies.

Each column's bytes, in the forms in which they are staged, are padded with zeros to 64-bit words. Word i of a column is
added to sum i % SUMS, modulo 2**64. The checksum is the CRC-32 (zlib's) of the sums. Gaps between columns are not
included.

Any change of one word is detected, as are zeroed and outdated pages. Swapped pages are detected too, because the words
of a page are not a multiple of SUMS. Sums read memory ten times as fast as a CRC, and the service computes them while
it copies.
"""

import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SUMS = 509


def staged_checksum(contents: Sequence[NDArray[np.uint8]]) -> int:
    """Returns the checksum of a window with these contents of columns, <uint8>[...]. Releases the interpreter lock."""
    sums = np.zeros(SUMS, np.uint64)
    for content in contents:
        _add(content, sums)
    return checksum_of(sums)


def checksum_of(sums: NDArray[np.uint64]) -> int:
    """Returns the checksum of a window with these <uint64>[SUMS] sums."""
    return zlib.crc32(sums.data)


def _add(data: NDArray[np.uint8], sums: NDArray[np.uint64]) -> None:
    """Adds the words of a column's <uint8>[...] bytes to the <uint64>[SUMS] sums."""
    rest = data.size % 8
    words = data[: data.size - rest].view(np.uint64)
    turns, last = divmod(words.size, SUMS)
    if turns:
        sums += np.add.reduce(words[: turns * SUMS].reshape(turns, SUMS), axis=0)
    sums[:last] += words[turns * SUMS :]
    if rest:
        # A slice, because NumPy warns of an overflow in sums of scalars, and not of arrays.
        sums[last : last + 1] += np.uint64(int.from_bytes(data[-rest:].tobytes(), "little"))
