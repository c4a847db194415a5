"""Columns survive encoding, and no bytes of a peer make decoding fail, write too much or claim to be valid wrongly."""

import lz4.block
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.machine import compression
from penstock.types.codecs import Codec, form
from tests.support.segments.game_frames import FRAMES, frame_columns

DECODERS = [compression._lz4_through_bytes, compression._lz4_in_place()]
ENCODERS = [compression._lz4_rows_through_bytes, compression._lz4_rows_in_place()]


def guarded(size: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Returns memory to decode to, and the whole with 64 bytes of 0xEE on both sides."""
    whole = np.full(size + 128, 0xEE, np.uint8)
    return whole[64 : 64 + size], whole


def assert_guarded(whole: NDArray[np.uint8]) -> None:
    assert (whole[:64] == 0xEE).all() and (whole[-64:] == 0xEE).all()


contents = st.one_of(
    st.binary(min_size=1, max_size=300),
    st.builds(lambda piece, times: piece * times, st.binary(min_size=1, max_size=40), st.integers(1, 200)),
)


@pytest.mark.parametrize("decoder", DECODERS)
@given(content=contents)
def test_content_survives_encoding(decoder: compression.Decoder, content: bytes) -> None:
    encoded = compression.encode(Codec.LZ4, np.frombuffer(content, np.uint8))
    into, whole = guarded(len(content))
    assert decoder(np.frombuffer(encoded, np.uint8), into)
    assert into.tobytes() == content
    assert_guarded(whole)


@pytest.mark.parametrize("encoder", ENCODERS)
@given(rows=st.lists(contents, min_size=1, max_size=4), width=st.integers(1, 3000))
def test_rows_are_encoded_one_after_another_or_copied(
    encoder: compression.RowsEncoder, rows: list[bytes], width: int
) -> None:
    content = np.array([np.resize(np.frombuffer(row, np.uint8), width) for row in rows])
    into, whole = guarded(content.size)
    sizes = encoder(content, into)
    assert_guarded(whole)
    end = 0
    for row, size in zip(content, sizes.tolist(), strict=True):
        # As the package encodes the row alone. LZ4 may find no room although some dozen bytes would have been left.
        alone = compression.encode(Codec.LZ4, row)
        assert size == len(alone) < width or size == width < len(alone) + 40
        assert into[end : end + size].tobytes() == (alone if size < width else row.tobytes())
        end += size


@pytest.mark.parametrize("decoder", DECODERS)
@given(content=contents, size=st.integers(1, 9000))
def test_content_of_another_size_is_not_valid(decoder: compression.Decoder, content: bytes, size: int) -> None:
    encoded = compression.encode(Codec.LZ4, np.frombuffer(content, np.uint8))
    into, whole = guarded(size)
    assert decoder(np.frombuffer(encoded, np.uint8), into) == (size == len(content))
    assert_guarded(whole)


@pytest.mark.parametrize("decoder", DECODERS)
@given(content=contents, position=st.integers(0, 10**6), value=st.integers(0, 255), data=st.data())
def test_damaged_bytes_are_refused_or_decode_as_for_any_reader(
    decoder: compression.Decoder, content: bytes, position: int, value: int, data: st.DataObject
) -> None:
    damaged = bytearray(compression.encode(Codec.LZ4, np.frombuffer(content, np.uint8)))
    damaged[position % len(damaged)] = value
    damaged = damaged[: data.draw(st.integers(0, len(damaged)))]
    into, whole = guarded(len(content))
    valid = decoder(np.frombuffer(damaged, np.uint8), into)
    assert_guarded(whole)
    try:
        expected = lz4.block.decompress(bytes(damaged), uncompressed_size=len(content))
    except (lz4.block.LZ4BlockError, ValueError):
        expected = b""
    assert valid == (len(expected) == len(content))
    if valid:
        assert into.tobytes() == expected


@pytest.mark.parametrize("codec", [0, 2, 9, 15])
def test_bytes_of_another_codec_are_not_decoded(codec: int) -> None:
    encoded = np.frombuffer(compression.encode(Codec.LZ4, np.zeros(100, np.uint8)), np.uint8)
    assert not compression.decode(codec << 28 | encoded.size, encoded, np.empty(100, np.uint8))
    assert compression.decode(form(Codec.LZ4, encoded.size), encoded, np.empty(100, np.uint8))


def test_raw_bytes_are_copied_if_they_have_the_size() -> None:
    raw, into = np.arange(50, dtype=np.uint8), np.zeros(50, np.uint8)
    assert compression.decode(0, raw, into)
    np.testing.assert_array_equal(into, raw)
    assert not compression.decode(0, raw[:49], into)


def test_the_library_works_without_copies_on_this_platform() -> None:
    assert compression._lz4_in_place() is not None and compression._lz4_rows_in_place() is not None
    assert compression._decode_lz4 is not compression._lz4_through_bytes
    assert compression._encode_lz4_rows is not compression._lz4_rows_through_bytes


def test_what_cannot_be_decoded_is_zeros_of_which_nothing_is_learned() -> None:
    columns, before = frame_columns(3), frame_columns(3)
    compression.void(columns, [(0, 1)])
    assert not columns.column("observation")[1].any() and not columns.column("valid")[1].any()
    for position, column in enumerate(FRAMES.columns):
        others = [0, 2] if column.name in ("observation", "valid") else [0, 1, 2]
        np.testing.assert_array_equal(columns.arrays[position][others], before.arrays[position][others])
