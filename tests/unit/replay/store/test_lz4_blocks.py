"""The check of LZ4 blocks accepts what encoders make, and nothing that LZ4 itself does not decode to the size."""

import lz4.block
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.machine import compression
from penstock.replay.store.lz4_blocks import first_malformed
from penstock.types.codecs import Codec, form

contents = st.one_of(
    st.binary(min_size=1, max_size=300),
    st.builds(lambda piece, times: piece * times, st.binary(min_size=1, max_size=40), st.integers(1, 200)),
)


def is_sound(block: bytes, raw: int) -> bool:
    data = np.frombuffer(block, np.uint8).copy()
    return bool(first_malformed(data, np.zeros(1, np.int64), np.array([data.size]), raw) == -1)


def decodes(block: bytes, raw: int) -> bool:
    data = np.frombuffer(block, np.uint8)
    return compression.decode(form(Codec.LZ4, data.size), data, np.empty(raw, np.uint8))


@given(content=contents, size=st.integers(1, 9000))
def test_blocks_of_exactly_the_size_are_sound(content: bytes, size: int) -> None:
    for mode in ("fast", "high_compression"):
        block = lz4.block.compress(content, mode=mode, store_size=False)
        assert is_sound(block, len(content))
        assert is_sound(block, size) == (size == len(content))


@given(
    content=contents,
    changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, 10),
    more=st.binary(max_size=5),
    larger=st.integers(-1, 1),
)
def test_whatever_is_sound_is_decoded(
    content: bytes, changes: list[tuple[int, int]], cut: int, more: bytes, larger: int
) -> None:
    block = bytearray(compression.encode(Codec.LZ4, np.frombuffer(content, np.uint8)))
    for position, value in changes:
        block[position % len(block)] = value
    forged = bytes(block[: len(block) - cut]) + more
    raw = max(1, len(content) + larger)
    if is_sound(forged, raw):
        assert decodes(forged, raw)


SOUND = compression.encode(Codec.LZ4, np.frombuffer(b"0123456789" * 30, np.uint8))
"""Ten literals, a match of offset 10, and the last five literals."""


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"\x00",
        SOUND[:-1],
        SOUND + b"\x00",
        # Lengths whose numbers have no end.
        b"\xf0" + b"\xff" * 1000,
        b"\xf0\xff",
        SOUND.replace(b"\x0a\x00", b"\x00\x00"),  # offset 0, which the format forbids and the library reads
        SOUND.replace(b"\x0a\x00", b"\x0b\x00"),  # before the first byte
    ],
)
def test_malformed_blocks_are_not_sound(block: bytes) -> None:
    assert is_sound(SOUND, 300) and b"\x0a\x00" in SOUND
    assert not is_sound(block, 300)


def test_the_first_malformed_of_several_blocks_is_found() -> None:
    data = np.frombuffer(SOUND + SOUND[:-1] + SOUND + b"\x00", np.uint8).copy()
    sizes = np.array([len(SOUND), len(SOUND) - 1, len(SOUND), 1])
    starts = np.cumsum(sizes) - sizes
    assert first_malformed(data, starts, sizes, 300) == 1
    assert first_malformed(data, starts[[0, 2, 3]], sizes[[0, 2, 3]], 300) == 2
    assert first_malformed(data, starts[[0, 2]], sizes[[0, 2]], 300) == -1
