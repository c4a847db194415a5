from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Overloaded
from penstock.types.block import Columns
from penstock.types.codecs import Codec, codec_numbers, encodable
from penstock.types.replay import Window
from penstock.v1 import block_pb2
from penstock.wire import block
from penstock.wire.block import BlockAssembler, EncodedColumns
from penstock.wire.encoding import PROBE_WINDOWS, WindowEncoder
from penstock.wire.windows import (
    WindowReader,
    decoded_window,
    encode_encoded_window,
    encode_window,
    read_append_request,
)
from tests.support.segments.game_frames import FRAMES, frame_columns, frame_window
from tests.support.segments.random_segments import VECTOR, random_columns
from tests.support.segments.segments import assert_same_columns

LZ4 = (Codec.LZ4,)


def with_observation(window: Window, random: bool) -> Window:
    """Returns the window with observations that shrink or that don't."""
    observation = window.columns.arrays[0].copy()
    if random:
        observation[...] = np.random.default_rng(window.head.first_sequence).integers(0, 256, observation.shape)
    return replace(window, columns=Columns(FRAMES, (observation, *window.columns.arrays[1:])))


def codecs_of(encoder: WindowEncoder, window: Window) -> list[Codec]:
    """Returns the codec of each column that may be encoded, in the encoder's next window."""
    encoded = encoder.encode(window, LZ4)
    if encoded is None or encoded.forms is None:
        return [Codec.RAW] * len(encodable(FRAMES))
    return [Codec(int(number)) for number in codec_numbers(encoded.forms).max(axis=0)]


def test_the_first_window_decides_which_columns_are_encoded() -> None:
    assert codecs_of(WindowEncoder(FRAMES), frame_window()) == [Codec.LZ4, Codec.LZ4, Codec.RAW]


def test_columns_that_stop_shrinking_are_sent_raw_and_probed_again() -> None:
    encoder, window = WindowEncoder(FRAMES), frame_window()
    windows = [with_observation(window, random=3 <= number < 10) for number in range(2 * PROBE_WINDOWS)]
    seen = [codecs_of(encoder, each)[0] for each in windows]
    # The window in which it stops shrinking is encoded, and its segments that became longer are raw.
    shrinks = [True] * 3 + [False] * (PROBE_WINDOWS - 3) + [True] * PROBE_WINDOWS
    assert seen == [Codec.LZ4 if shrank else Codec.RAW for shrank in shrinks]


def test_nothing_is_encoded_for_a_receiver_without_codecs_or_without_large_columns() -> None:
    assert WindowEncoder(FRAMES).encode(frame_window(), ()) is None
    vectors = replace(frame_window(), columns=random_columns(VECTOR, 2, seed=0))
    assert WindowEncoder(VECTOR).encode(vectors, LZ4) is None


def test_windows_that_do_not_shrink_are_not_encoded() -> None:
    columns = frame_columns(2)
    for array in columns.arrays[:2]:
        array.reshape(-1).view(np.uint8)[...] = np.random.default_rng(0).integers(0, 100, array.nbytes)
    assert WindowEncoder(FRAMES).encode(replace(frame_window(), columns=columns), LZ4) is None


@given(segments=st.integers(1, 5), part_bytes=st.integers(500, 60_000), noisy=st.booleans())
def test_an_encoded_window_survives_any_division_into_parts(segments: int, part_bytes: int, noisy: bool) -> None:
    window, encoder = frame_window(segments=segments), WindowEncoder(FRAMES)
    encoder.encode(window, LZ4)
    encoded = encoder.encode(with_observation(window, random=noisy), LZ4)
    assert encoded is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block, "MAX_PART_BYTES", part_bytes)
        messages = list(encode_encoded_window(encoded))
        reader = WindowReader(schema=FRAMES, slot=0, incarnation=1, window_segments=segments)
        received = [np.zeros(segments * size, np.uint8) for size in FRAMES.column_bytes]
        for message in messages:
            content = read_append_request(message).window
            assert content is not None
            part = reader.add(content)
            np.testing.assert_array_equal(part.head.forms, encoded.forms)
            for fragment in part.fragments:
                received[fragment.column][fragment.offset : fragment.offset + fragment.data.size] = fragment.data
        for position, sent in enumerate(encoded.contents):
            np.testing.assert_array_equal(received[position][: sent.size], sent)
        decoded = decoded_window(window.head, FRAMES, messages)
    assert_same_columns(decoded.columns, with_observation(window, random=noisy).columns)


def assembled(payload_limit: int) -> EncodedColumns | Columns | None:
    encoded = WindowEncoder(FRAMES).encode(frame_window(segments=3), LZ4)
    assert encoded is not None
    (message,) = encode_encoded_window(encoded)
    window = read_append_request(message).window
    assert window is not None
    content = block.split_final(window)[1]
    assert content is not None
    return BlockAssembler(payload_limit).add(FRAMES, content)


def test_a_payload_that_decodes_to_more_than_the_limit_is_refused() -> None:
    raw = sum(len(request) for request in encode_window(frame_window(segments=3)))
    assert isinstance(assembled(raw), EncodedColumns)
    with pytest.raises(Overloaded, match="a payload that decodes to"):
        assembled(int(0.9 * raw))


def test_forms_are_little_endian_numbers_of_part_0_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block, "MAX_PART_BYTES", 20_000)
    encoded = WindowEncoder(FRAMES).encode(frame_window(), LZ4)
    assert encoded is not None and encoded.forms is not None
    blocks = []
    for message in encode_encoded_window(encoded):
        window = read_append_request(message).window
        assert window is not None
        blocks.append(block_pb2.Block.FromString(bytes(block.split_final(window)[1] or b"")))
    assert len(blocks) > 1
    assert blocks[0].forms == b"".join(int(one).to_bytes(4, "little") for one in encoded.forms.reshape(-1))
    assert not any(later.forms for later in blocks[1:])
