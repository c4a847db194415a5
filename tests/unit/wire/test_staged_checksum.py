"""The checksum of a staged window equals that of the contract and detects differences between two views of a slot."""

import zlib

import numpy as np
import pytest

from penstock.types.block import Column, Columns, Schema
from penstock.wire.staged_checksum import staged_checksum
from tests.support.segments.segments import SCHEMA, make_window

PAGE = 4096
BYTES = Schema(1, (Column("byte", "uint8"),))


def of_bytes(size: int) -> Columns:
    """Returns one column of random bytes."""
    return Columns(BYTES, (np.random.default_rng(size).integers(0, 256, (size, 1), dtype=np.uint8),))


def reference_checksum(columns: Columns) -> int:
    """Returns the checksum as the contract defines it."""
    sums = [0] * 509
    for array in columns.arrays:
        data = array.tobytes()
        for word in range(-(-len(data) // 8)):
            sums[word % 509] += int.from_bytes(data[8 * word : 8 * word + 8].ljust(8, bytes(1)), "little")
    return zlib.crc32(b"".join((value % 2**64).to_bytes(8, "little") for value in sums))


@pytest.mark.parametrize("size", [1, 7, 8, 9, 4071, 4072, 4073, 3 * 4072, 5 * 4072 + 1001])
def test_the_checksum_is_the_one_of_the_contract(size: int) -> None:
    assert staged_checksum(of_bytes(size).contents) == reference_checksum(of_bytes(size))


def test_the_checksum_covers_all_columns() -> None:
    columns = make_window(segments=300).columns
    assert columns.schema is SCHEMA
    assert staged_checksum(columns.contents) == reference_checksum(columns)


def test_every_flipped_bit_is_detected() -> None:
    for columns in (of_bytes(4072 + 65), make_window(segments=2).columns):
        sound = staged_checksum(columns.contents)
        for array in columns.arrays:
            data = array.reshape(-1).view(np.uint8)
            for bit in range(8 * data.size):
                data[bit // 8] ^= 1 << bit % 8
                assert staged_checksum(columns.contents) != sound, f"bit {bit}"
                data[bit // 8] ^= 1 << bit % 8
        assert staged_checksum(columns.contents) == sound


def test_zeroed_older_and_swapped_pages_are_detected() -> None:
    columns, older = of_bytes(8 * PAGE), of_bytes(8 * PAGE + 1).arrays[0][1:]
    sound, data = staged_checksum(columns.contents), columns.arrays[0]
    pages = [slice(first, first + PAGE) for first in range(0, data.size, PAGE)]
    for page in pages:
        kept = data[page].copy()
        for replacement in (np.zeros_like(kept), older[page]):
            data[page] = replacement
            assert staged_checksum(columns.contents) != sound
        for other in pages[: pages.index(page)]:
            data[page], data[other] = data[other], kept
            assert staged_checksum(columns.contents) != sound
            data[other] = data[page]
        data[page] = kept
    assert staged_checksum(columns.contents) == sound
