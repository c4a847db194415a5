"""Check of LZ4 blocks without decoding them: it reads their few bytes instead of writing the many that they stand for.

The rules come from LZ4's block format and its end-of-block conditions (github.com/lz4/lz4, lz4_Block_format.md), as
LZ4_decompress_safe enforces them. This suffices for columns whose values are not checked.
"""

import numba
import numpy as np


@numba.njit("boolean(uint8[::1], int64)", nogil=True, cache=True)
def _is_sound(block, raw):  # type: ignore[no-untyped-def]
    place, end, written = np.int64(0), np.int64(block.size), np.int64(0)
    while place < end:
        token = np.int64(block[place])
        place += 1
        literals = token >> 4
        if literals == 15:
            more = np.int64(255)
            while more == 255:
                if place >= end:
                    return False
                more = np.int64(block[place])
                place += 1
                literals += more
        if literals > end - place or literals > raw - written:
            return False
        place += literals
        written += literals
        if place == end:
            return written == raw
        # A sequence with a match is followed by another, whose literals end the block. It has room for both.
        if place > end - 8 or written > raw - 12:
            return False
        offset = np.int64(block[place]) + 256 * np.int64(block[place + 1])
        place += 2
        if offset == 0 or offset > written:
            return False
        length = 4 + (token & 15)
        if length == 19:
            more = np.int64(255)
            while more == 255:
                if place >= end:
                    return False
                more = np.int64(block[place])
                place += 1
                length += more
        written += length
        # The last five bytes are literals.
        if written > raw - 5:
            return False
    return False


@numba.njit("int64(uint8[::1], int64[::1], int64[::1], int64)", nogil=True, cache=True)
def first_malformed(data, starts, sizes, raw):  # type: ignore[no-untyped-def]
    """Returns the index of the first of the blocks in `data` that does not decode to `raw` bytes; -1 without one."""
    for index in range(starts.size):
        if not _is_sound(data[starts[index] : starts[index] + sizes[index]], raw):
            return index
    return -1
