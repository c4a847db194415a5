"""Columns that shrink travel encoded between actor, service and learner, and stay so in the store."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grpc import StatusCode

from penstock.errors import PlaceLost
from penstock.machine import compression
from penstock.rpc import methods
from penstock.rpc.clients import segment_sink
from penstock.types.codecs import Codec, Forms, codec_numbers, encoded_sizes, form
from penstock.types.replay import Batch
from penstock.v1 import block_pb2, replay_pb2
from penstock.wire.batches import BatchAssembler, read_sample_response
from penstock.wire.encoding import EncodedWindow, WindowEncoder
from penstock.wire.windows import (
    encode_append_response,
    encode_encoded_window,
    encode_staged_window,
    encode_window,
)
from tests.support.machine.timing import PATIENCE_S
from tests.support.segments.game_frames import FRAMES, frame_window
from tests.support.segments.segments import assert_same_columns
from tests.support.services.servers import Loopback, open_request, plan_request, plan_with, sample, until

OBSERVATION, SPEEDS, NOISE = 0, 1, 2
"""Columns of FRAMES that may be encoded, in the order of their forms."""


def encoded_window(**options: int) -> EncodedWindow:
    encoded = WindowEncoder(FRAMES).encode(frame_window(**options), (Codec.LZ4,))
    assert encoded is not None
    return encoded


@pytest.mark.parametrize("reads", ["messages", "mapped store"])
def test_windows_sent_encoded_arrive_as_they_were(loopback: Loopback, tmp_path: Path, reads: str) -> None:
    folder = tmp_path if reads == "mapped store" else None
    server = loopback.replay(folder=folder, schema=FRAMES, rows=30, staging_bytes=0)
    source = loopback.source(server, plan_with(batch_segments=4, fresh_segments=4), schema=FRAMES)
    sink = loopback.sink(0, server, schema=FRAMES, segments=4)
    received = sample("penstock_replay_received_bytes_total"), sample("penstock_replay_received_raw_bytes_total")
    sent = sample("penstock_replay_sent_bytes_total"), sample("penstock_replay_sent_raw_bytes_total")
    # The ring turns over twice.
    for number in range(15):
        until(lambda: sink.next_grant(0.5), "a grant")
        window = frame_window(1 + 4 * number, segments=4, version=number)
        sink.send(window)
        batch = until(lambda: source.next(0.5), "a batch")
        assert_same_columns(batch.columns, window.columns)
        source.commit(batch, np.ones(4)).result(PATIENCE_S)
    assert source.reads == reads
    store = server.store
    newest = codec_numbers(store.forms[store.rows(batch.keys)])
    assert (newest == [Codec.LZ4, Codec.LZ4, Codec.RAW]).all()
    raw = 60 * FRAMES.segment_bytes
    wire, decoded = (
        sample("penstock_replay_received_bytes_total") - received[0],
        sample("penstock_replay_received_raw_bytes_total") - received[1],
    )
    assert decoded == raw and wire < 0.6 * raw
    if reads == "messages":
        assert sample("penstock_replay_sent_raw_bytes_total") - sent[1] == raw
        assert sample("penstock_replay_sent_bytes_total") - sent[0] < 0.6 * raw


@pytest.mark.parametrize("codecs", [(Codec.LZ4,), ()], ids=["encoded", "raw, for a service of an older release"])
def test_windows_in_shared_memory_arrive_as_they_were(
    loopback: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codecs: tuple[Codec, ...]
) -> None:
    def answer(*arguments: Any) -> replay_pb2.AppendSegmentsResponse:
        response = encode_append_response(*arguments)
        if not codecs:
            response.ClearField("staged_codecs")
        return response

    monkeypatch.setattr("penstock.rpc.servicers.append.wire.encode_append_response", answer)
    server = loopback.replay(folder=tmp_path, schema=FRAMES, rows=30, staging_bytes=2**27)
    source = loopback.source(server, plan_with(batch_segments=2, fresh_segments=2), schema=FRAMES)
    sink = loopback.sink(0, server, schema=FRAMES)
    until(lambda: sink._staging is not None, "the staging area")
    # More windows than slots and rows, so that each is used again.
    for number in range(20):
        until(lambda: sink.next_grant(0.5), "a grant")
        window = frame_window(1 + 2 * number, version=number)
        sink.send(window)
        batch = until(lambda: source.next(0.5), "a batch")
        assert_same_columns(batch.columns, window.columns)
        stored = codec_numbers(server.store.forms[server.store.rows(batch.keys)])
        assert (stored == ([Codec.LZ4, Codec.LZ4, Codec.RAW] if codecs else Codec.RAW)).all()
        source.commit(batch, np.ones(2)).result(PATIENCE_S)
    assert sample("penstock_actor_stages_windows") == 1


def test_an_encoded_window_in_shared_memory_with_one_flipped_bit_is_refused(
    loopback: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode_and_flip(window: EncodedWindow, slot: int, checksum: int) -> bytes:
        window.contents[OBSERVATION][-1] ^= 1
        return encode_staged_window(window, slot, checksum)

    monkeypatch.setattr("penstock.rpc.clients.segment_sink.wire.encode_staged_window", encode_and_flip)
    server = loopback.replay(folder=tmp_path, schema=FRAMES, rows=30, staging_bytes=2**27)
    loopback.source(server, plan_with(batch_segments=2, fresh_segments=2), schema=FRAMES)
    sink = loopback.sink(0, server, schema=FRAMES)
    until(lambda: sink._staging is not None, "the staging area")
    until(lambda: sink.next_grant(0.5), "a grant")
    sink.send(frame_window())
    # The actor's own check finds the flipped bit too, before it sends the window again.
    with pytest.raises(PlaceLost, match="changed in its staging area"):
        until(lambda: sink.next_grant(0.5) and False, "the sink fails")
    assert loopback.replay_status(server).counts.refused == 2
    assert server.store.headers["key"].max() == 0


def test_encoded_windows_of_a_broken_stream_move_from_shared_memory_to_messages(
    loopback: Loopback, tmp_path: Path
) -> None:
    server = loopback.replay(folder=tmp_path, schema=FRAMES, rows=30, staging_bytes=2**27)
    plan = plan_with(batch_segments=2, fresh_segments=2)
    source = loopback.source(server, plan, schema=FRAMES)
    sink = loopback.sink(0, server, schema=FRAMES)
    until(lambda: sink._staging is not None and sink.next_grant(0.5), "a grant, and a staging area")
    server.kill()
    window = frame_window()
    sink.send(window)
    assert sink._pending[0].is_in(sink._staging)
    loopback.replay(folder=tmp_path, port=server.port, schema=FRAMES, rows=30, staging_bytes=0)
    assert_same_columns(until(lambda: source.next(0.5), "a batch").columns, window.columns)


def test_a_batch_mixes_encoded_and_raw_segments(loopback: Loopback) -> None:
    server = loopback.replay(schema=FRAMES, rows=30)
    source = loopback.source(server, plan_with(batch_segments=4, fresh_segments=4), schema=FRAMES)
    messages = [encode_encoded_window(encoded_window(slot=0)), encode_window(frame_window(slot=1))]
    for slot, window in enumerate(messages):
        actor = loopback.plain(server, methods.APPEND_SEGMENTS)
        actor.send(open_request(slot, schema=FRAMES))
        while not actor.receive().grants:
            pass
        actor.send(*window)
    batch = until(lambda: source.next(0.5), "a batch")
    for position in range(len(FRAMES.columns)):
        sent = np.concatenate([frame_window(slot=slot).columns.arrays[position] for slot in (0, 1)])
        np.testing.assert_array_equal(batch.columns.arrays[position], sent)
    assert server.store.forms[server.store.rows(batch.keys)].any(axis=1).tolist() == [True, True, False, False]


@pytest.mark.parametrize("part_bytes", [2**22, 10_000])
def test_a_learner_that_names_no_codec_gets_raw_columns(
    loopback: Loopback, monkeypatch: pytest.MonkeyPatch, part_bytes: int
) -> None:
    monkeypatch.setattr("penstock.wire.block.MAX_PART_BYTES", part_bytes)
    server = loopback.replay(schema=FRAMES, rows=30)
    learner = loopback.plain(server, methods.SAMPLE_BATCHES)
    learner.send(plan_request(plan_with(batch_segments=2, fresh_segments=2)))
    sink = loopback.sink(0, server, schema=FRAMES)
    until(lambda: sink.next_grant(0.5), "a grant")
    window = frame_window()
    sink.send(window)
    learner.send(replay_pb2.SampleBatchesRequest(batch=replay_pb2.BatchRequest(batch=0)))
    assembler, batch = BatchAssembler(2**30), None
    while batch is None:
        response = learner.receive()
        if response.HasField("block"):
            assert not response.block.forms
            batch = assembler.add(FRAMES, read_sample_response(response.SerializeToString()))
    assert isinstance(batch, Batch)
    assert_same_columns(batch.columns, window.columns)
    assert server.store.forms.any()


def test_an_actor_of_an_older_service_sends_raw_columns(loopback: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    server = loopback.replay(schema=FRAMES, rows=30)
    source = loopback.source(server, plan_with(batch_segments=2, fresh_segments=2), schema=FRAMES)
    monkeypatch.setattr("penstock.rpc.servicers.append.ENCODINGS", ())
    sink = loopback.sink(0, server, schema=FRAMES)
    until(lambda: sink.next_grant(0.5), "a grant")
    window = frame_window()
    sink.send(window)
    assert_same_columns(until(lambda: source.next(0.5), "a batch").columns, window.columns)
    assert not server.store.forms.any()


def test_an_encoded_window_is_sent_raw_to_an_older_service() -> None:
    window = frame_window()
    pending = segment_sink._Pending(window, None, 0, WindowEncoder(FRAMES), (Codec.LZ4,))
    assert pending.messages(None, (Codec.LZ4,)) == list(encode_encoded_window(encoded_window()))
    assert pending.messages(None, ()) == list(encode_window(window))
    # Once decoded, it stays raw.
    assert pending.messages(None, (Codec.LZ4,)) == list(encode_window(window))


def forms_of(encoded: EncodedWindow) -> Forms:
    assert encoded.forms is not None
    return encoded.forms


def damaged_content(encoded: EncodedWindow) -> EncodedWindow:
    first, second = encoded_sizes(FRAMES, forms_of(encoded))[:, OBSERVATION]
    content = encoded.contents[0].copy()
    content[first + second // 2 :] = 0
    return replace(encoded, contents=(content, *encoded.contents[1:]))


def fewer_bytes(encoded: EncodedWindow) -> EncodedWindow:
    """A valid block of one byte less than the column has."""
    raw = np.zeros(FRAMES.column_bytes[0] - 1, np.uint8)
    return with_observation(encoded, compression.encode(Codec.LZ4, raw))


def more_bytes(encoded: EncodedWindow) -> EncodedWindow:
    """A valid block of a thousand times the bytes of the column."""
    raw = np.zeros(1000 * FRAMES.column_bytes[0], np.uint8)
    return with_observation(encoded, compression.encode(Codec.LZ4, raw)[: FRAMES.column_bytes[0] - 1])


def with_observation(encoded: EncodedWindow, content: bytes) -> EncodedWindow:
    forms = forms_of(encoded).copy()
    first = encoded.contents[0][: encoded_sizes(FRAMES, forms)[0, OBSERVATION]]
    forms[1, OBSERVATION] = form(Codec.LZ4, len(content))
    observation = np.concatenate([first, np.frombuffer(content, np.uint8)])
    return replace(encoded, forms=forms, contents=(observation, *encoded.contents[1:]))


def infinite_speed(encoded: EncodedWindow) -> EncodedWindow:
    columns = frame_window().columns
    columns.arrays[1][1, 3, 7] = np.inf
    encoded_again = WindowEncoder(FRAMES).encode(replace(frame_window(), columns=columns), (Codec.LZ4,))
    assert encoded_again is not None
    return encoded_again


@pytest.mark.parametrize(
    ("forge", "reason"),
    [
        (damaged_content, "column observation has .* bytes of lz4 that don't decode to"),
        (fewer_bytes, "column observation has .* bytes of lz4 that don't decode to"),
        (more_bytes, "column observation has .* bytes of lz4 that don't decode to"),
        (infinite_speed, "column speeds has values that are not finite"),
    ],
)
def test_malformed_content_is_refused_and_never_reaches_a_learner(
    loopback: Loopback, forge: Callable[[EncodedWindow], EncodedWindow], reason: str
) -> None:
    server = loopback.replay(schema=FRAMES, rows=30)
    source = loopback.source(server, plan_with(batch_segments=2, fresh_segments=2), schema=FRAMES)
    actor = loopback.plain(server, methods.APPEND_SEGMENTS)
    actor.send(open_request(schema=FRAMES))
    while not actor.receive().grants:
        pass
    actor.send(*encode_encoded_window(forge(encoded_window())))
    code, details = actor.status()
    assert code == StatusCode.INVALID_ARGUMENT
    assert re.search(reason, details), details
    assert loopback.replay_status(server).counts.refused == 2
    # The service goes on, and the same rows take a good window.
    sink = loopback.sink(0, server, schema=FRAMES)
    until(lambda: sink.next_grant(0.5), "a grant")
    window = frame_window()
    sink.send(window)
    assert_same_columns(until(lambda: source.next(0.5), "a batch").columns, window.columns)


def other_codec(block: block_pb2.Block) -> None:
    set_form(block, 9 << 28 | 100)


def no_bytes(block: block_pb2.Block) -> None:
    set_form(block, 1 << 28)


def too_many_bytes(block: block_pb2.Block) -> None:
    set_form(block, form(Codec.LZ4, FRAMES.column_bytes[0]))


def too_few_forms(block: block_pb2.Block) -> None:
    block.forms = block.forms[:-4]


def beyond_the_payload(block: block_pb2.Block) -> None:
    set_form(block, form(Codec.LZ4, FRAMES.column_bytes[0] - 1))


def set_form(block: block_pb2.Block, value: int) -> None:
    forms = np.frombuffer(block.forms, "<u4").copy()
    forms[0] = value
    block.forms = forms.tobytes()


@pytest.mark.parametrize(
    ("forge", "reason"),
    [
        (other_codec, "column observation has codec 9, and this side reads raw"),
        (no_bytes, "column observation of 19200 bytes is encoded to none, or to as many or more"),
        (too_many_bytes, "column observation of 19200 bytes is encoded to none, or to as many or more"),
        (too_few_forms, "20 bytes of forms for 2 segments with 3 columns"),
        (beyond_the_payload, "covers bytes"),
    ],
)
def test_malformed_forms_are_refused(loopback: Loopback, forge: Callable[[block_pb2.Block], None], reason: str) -> None:
    server = loopback.replay(schema=FRAMES, rows=30)
    loopback.source(server, plan_with(batch_segments=2, fresh_segments=2), schema=FRAMES)
    actor = loopback.plain(server, methods.APPEND_SEGMENTS)
    actor.send(open_request(schema=FRAMES))
    while not actor.receive().grants:
        pass
    (message,) = encode_encoded_window(encoded_window())
    request = replay_pb2.AppendSegmentsRequest.FromString(message)
    forge(request.window.block)
    actor.send(request)
    code, details = actor.status()
    assert code == StatusCode.INVALID_ARGUMENT and reason in details, details
    assert loopback.replay_status(server).counts.stored == 0


@pytest.mark.parametrize("reads", ["messages", "mapped store"])
def test_a_learner_masks_a_segment_that_a_fault_has_damaged(loopback: Loopback, tmp_path: Path, reads: str) -> None:
    folder = tmp_path if reads == "mapped store" else None
    server = loopback.replay(folder=folder, schema=FRAMES, rows=30, staging_bytes=0)
    sink = loopback.sink(0, server, schema=FRAMES)
    first = loopback.source(server, plan_with(batch_segments=2, fresh_segments=2), schema=FRAMES)
    until(lambda: sink.next_grant(0.5), "a grant")
    window = frame_window()
    sink.send(window)
    batch = until(lambda: first.next(0.5), "a batch")
    first.close()
    row = server.store.rows(batch.keys)[1]
    server.store.columns[0][row, :400] = 255
    before = sample("penstock_learner_damaged_columns_total")
    again = loopback.source(server, plan_with(batch_segments=2, fresh_segments=2), schema=FRAMES)
    batch = until(lambda: again.next(0.5), "the same batch")
    assert sample("penstock_learner_damaged_columns_total") == before + 1
    assert not batch.columns.column("observation")[1].any() and not batch.columns.column("valid")[1].any()
    for name in ("observation", "speeds", "action", "valid", "noise"):
        np.testing.assert_array_equal(batch.columns.column(name)[0], window.columns.column(name)[0])
