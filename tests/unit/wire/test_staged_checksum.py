"""The checksum of a staged window: what it is, and which differences between two views of a slot it finds."""

import zlib

import numpy as np
import pytest

from helpers.segments import SCHEMA, make_window
from penstock.types.block import Column, Columns, Schema
from penstock.wire.staged_checksum import staged_checksum

PAGE = 4096
BYTES = Schema(1, (Column("byte", "uint8"),))


def of_bytes(size: int) -> Columns:
    """One column of random bytes."""
    return Columns(BYTES, (np.random.default_rng(size).integers(0, 256, (size, 1), dtype=np.uint8),))


def described(columns: Columns) -> int:
    """The checksum by the words of the protocol."""
    sums = [0] * 509
    for array in columns.arrays:
        data = array.tobytes()
        for word in range(-(-len(data) // 8)):
            sums[word % 509] += int.from_bytes(data[8 * word : 8 * word + 8].ljust(8, bytes(1)), "little")
    return zlib.crc32(b"".join((value % 2**64).to_bytes(8, "little") for value in sums))


@pytest.mark.parametrize("size", [1, 7, 8, 9, 4071, 4072, 4073, 3 * 4072, 5 * 4072 + 1001])
def test_the_checksum_is_the_one_of_the_contract(size: int) -> None:
    assert staged_checksum(of_bytes(size)) == described(of_bytes(size))


def test_the_checksum_covers_all_columns() -> None:
    columns = make_window(segments=300).columns
    assert columns.schema is SCHEMA
    assert staged_checksum(columns) == described(columns)


def test_every_flipped_bit_is_found() -> None:
    for columns in (of_bytes(4072 + 65), make_window(segments=2).columns):
        sound = staged_checksum(columns)
        for array in columns.arrays:
            data = array.reshape(-1).view(np.uint8)
            for bit in range(8 * data.size):
                data[bit // 8] ^= 1 << bit % 8
                assert staged_checksum(columns) != sound, f"bit {bit}"
                data[bit // 8] ^= 1 << bit % 8
        assert staged_checksum(columns) == sound


def test_pages_that_are_zeros_or_older_or_swapped_are_found() -> None:
    columns, older = of_bytes(8 * PAGE), of_bytes(8 * PAGE + 1).arrays[0][1:]
    sound, data = staged_checksum(columns), columns.arrays[0]
    pages = [slice(first, first + PAGE) for first in range(0, data.size, PAGE)]
    for page in pages:
        kept = data[page].copy()
        for instead in (np.zeros_like(kept), older[page]):
            data[page] = instead
            assert staged_checksum(columns) != sound
        for other in pages[: pages.index(page)]:
            data[page], data[other] = data[other], kept
            assert staged_checksum(columns) != sound
            data[other] = data[page]
        data[page] = kept
    assert staged_checksum(columns) == sound
