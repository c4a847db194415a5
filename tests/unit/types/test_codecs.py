import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.types.block import Column, Schema
from penstock.types.codecs import (
    ENCODINGS,
    Codec,
    codec_number,
    codec_numbers,
    encodable,
    encoded_sizes,
    form,
    form_sizes,
    possible,
    readable,
)
from penstock.types.payloads import places
from penstock.v1 import block_pb2
from tests.support.segments.game_frames import FRAMES
from tests.support.segments.random_segments import VECTOR


def test_codecs_have_the_numbers_of_the_contract() -> None:
    assert {f"CODEC_{codec.name}": codec.value for codec in Codec} == dict(block_pb2.Codec.items())
    assert set(ENCODINGS) == set(Codec) - {Codec.RAW}


def test_only_columns_of_4_kib_to_256_mib_may_be_encoded() -> None:
    widths = [4095, 4096, 2**28 - 1, 2**28]
    schema = Schema(1, tuple(Column(f"column_{width}", "uint8", (width,)) for width in widths))
    assert encodable(schema) == (1, 2)
    assert encodable(FRAMES) == (0, 1, 4)
    assert encodable(VECTOR) == ()


def test_a_form_has_codec_and_size() -> None:
    forms = np.array([[0, form(Codec.LZ4, 5000), form(Codec.LZ4, 1)]], np.uint32)
    assert codec_numbers(forms).tolist() == [[0, 1, 1]]
    assert codec_number(form(Codec.LZ4, 2**28 - 1)) == Codec.LZ4
    assert encoded_sizes(FRAMES, forms).tolist() == [[FRAMES.column_bytes[0], 5000, 1]]


def test_sizes_that_were_read_while_they_were_written_stay_within_the_row() -> None:
    forms = np.full((2, 3), 2**32 - 1, np.uint32)
    assert encoded_sizes(FRAMES, forms).tolist() == [[FRAMES.column_bytes[position] for position in (0, 1, 4)]] * 2


@pytest.mark.parametrize(("number", "codecs", "expected"), [(0, (), True), (1, (), False), (1, ENCODINGS, True)])
def test_forms_are_readable_by_peers_that_read_their_codecs(
    number: int, codecs: tuple[Codec, ...], expected: bool
) -> None:
    assert readable(np.array([[0, number << 28 | 7]], np.uint32), codecs) == expected


def test_encoded_columns_follow_one_another_at_multiples_of_8() -> None:
    forms = np.array([[form(Codec.LZ4, 101), 0, 0], [form(Codec.LZ4, 50), 0, form(Codec.LZ4, 3)]], np.uint32)
    where = places(FRAMES, 2, forms)
    observation, speeds, action, valid, noise = FRAMES.column_bytes
    assert where.sizes == (151, 2 * speeds, 2 * action, 2 * valid, noise + 3)
    assert where.offsets == (0, 152, 152 + 2 * speeds, 152 + 2 * (speeds + action), 152 + 2 * (speeds + action + valid))
    assert where.total_bytes == where.offsets[-1] + -(-(noise + 3) // 8) * 8
    assert {position: starts.tolist() for position, starts in where.starts.items()} == {
        0: [0, 101, 151],
        1: [0, speeds, 2 * speeds],
        4: [0, noise, noise + 3],
    }
    assert places(FRAMES, 2).sizes == tuple(2 * width for width in FRAMES.column_bytes) and observation == 19_200


@given(
    codecs=st.lists(st.sampled_from([0, 1, 1, 2, 15]), min_size=3, max_size=3),
    sizes=st.lists(st.sampled_from([0, 1, 4095, 2**28 - 1]), min_size=3, max_size=3),
    fitted=st.booleans(),
)
def test_possible_forms_have_a_known_codec_and_fewer_bytes_than_the_raw_column(
    codecs: list[int], sizes: list[int], fitted: bool
) -> None:
    widths = [FRAMES.column_bytes[position] for position in encodable(FRAMES)]
    if fitted:
        # Around the bound of each column.
        sizes = [width - 1 + (size == 0) for width, size in zip(widths, sizes, strict=True)]
    forms = np.array([[0, 0, 0], [codec << 28 | size for codec, size in zip(codecs, sizes, strict=True)]], np.uint32)
    wanted = all(
        one == 0 or (int(number) in set(Codec) - {Codec.RAW} and 0 < int(size) < width)
        for one, number, size, width in zip(
            forms[1], codec_numbers(forms)[1], form_sizes(forms)[1], widths, strict=True
        )
    )
    assert possible(FRAMES, forms) == wanted
