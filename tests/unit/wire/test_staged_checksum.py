"""The checksum of a staged window: what it is, and which differences between two views of a slot it finds."""

import zlib

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.wire.replay import staged_checksum

WORDS = 509
ROW, PAGE = 8 * WORDS, 4096


def payload_of(size: int) -> NDArray[np.uint8]:
    return np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)


@pytest.mark.parametrize("size", [0, 64, ROW - 64, ROW, ROW + 64, 3 * ROW, 5 * ROW + 1000])
def test_it_is_what_the_protocol_says(size: int) -> None:
    data = payload_of(size).tobytes()
    rows = [data[at : at + ROW] for at in range(0, size - ROW + 1, ROW)]
    words = [[int.from_bytes(row[at : at + 8], "little") for at in range(0, ROW, 8)] for row in rows]
    columns = list(zip(*words, strict=True)) or [()] * WORDS
    sums = [sum(column) % 2**64 for column in columns]
    hashed = b"".join(value.to_bytes(8, "little") for value in sums) + data[len(rows) * ROW :]
    assert staged_checksum(payload_of(size)) == zlib.crc32(hashed)


def test_every_flipped_bit_is_found() -> None:
    payload = payload_of(ROW + 64)
    sound = staged_checksum(payload)
    for bit in range(8 * payload.size):
        payload[bit // 8] ^= 1 << bit % 8
        assert staged_checksum(payload) != sound, f"bit {bit}"
        payload[bit // 8] ^= 1 << bit % 8
    assert staged_checksum(payload) == sound


def test_pages_that_are_zeros_or_older_or_swapped_are_found() -> None:
    payload = payload_of(8 * PAGE)
    sound, older = staged_checksum(payload), payload_of(8 * PAGE + 64)
    for first in range(0, payload.size, PAGE):
        for changed in (np.zeros(PAGE, np.uint8), older[first : first + PAGE]):
            other = payload.copy()
            other[first : first + PAGE] = changed
            assert staged_checksum(other) != sound
        for second in range(0, first, PAGE):
            other = payload.copy()
            other[first : first + PAGE] = payload[second : second + PAGE]
            other[second : second + PAGE] = payload[first : first + PAGE]
            assert staged_checksum(other) != sound


def test_words_that_are_swapped_of_which_two_are_swapped_within_a_row_are_found() -> None:
    payload = payload_of(4 * ROW)
    sound, words = staged_checksum(payload), payload.view(np.uint64)
    for first, second in ((0, 1), (0, WORDS - 1), (WORDS - 1, WORDS), (WORDS + 7, WORDS + 9)):
        words[[first, second]] = words[[second, first]]
        assert staged_checksum(payload) != sound
        words[[first, second]] = words[[second, first]]
