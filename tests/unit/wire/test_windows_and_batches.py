from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np
import pytest

from penstock.errors import InvalidSegment, Overloaded
from penstock.types.block import Column, Extent, Schema
from penstock.types.payloads import places
from penstock.types.replay import Batch, BatchHead, Grant, Mass, SamplingPlan, StoreCounts, Window, WindowHead
from penstock.v1 import replay_pb2
from penstock.wire import block
from penstock.wire.batches import (
    BatchAssembler,
    batch_messages,
    decode_counts,
    decode_plan,
    encode_plan,
    read_sample_response,
)
from penstock.wire.fields import encoded
from penstock.wire.windows import (
    WindowReader,
    decode_append_request,
    encode_append_response,
    encode_window,
    read_append_request,
)
from tests.support.segments.segments import PLAN, SCHEMA, assert_same_columns, make_columns, make_window

IMAGES = Schema(4, (Column("observation", "uint8", (500, 501), Extent.STEP_AND_NEXT), Column("reward", "float32")))
COUNTS = StoreCounts(capacity=9, stored=8, unseen=7, leased=6, granted=5, inserted=4, late=3, refused=2, refunded=1)


def parse_windows(messages: list[bytes]) -> list[replay_pb2.Window]:
    requests = [replay_pb2.AppendSegmentsRequest.FromString(message) for message in messages]
    assert {request.WhichOneof("message") for request in requests} == {"window"}
    return [request.window for request in requests]


def decode_window(messages: list[replay_pb2.Window], schema: Schema, segments: int) -> Window | None:
    return read_windows([message.SerializeToString() for message in messages], schema, segments)


def read_windows(messages: list[bytes], schema: Schema, segments: int) -> Window | None:
    reader = WindowReader(schema=schema, slot=3, incarnation=2, window_segments=segments)
    window, columns = None, schema.empty(segments)
    for message in messages:
        assert window is None
        part = reader.add(memoryview(message))
        for fragment in part.fragments:
            content = columns.arrays[fragment.column].reshape(-1).view(np.uint8)
            content[fragment.offset : fragment.offset + fragment.data.size] = fragment.data
        if part.last:
            window = Window(part.head, columns)
    return window


def assert_same_window(decoded: Window | None, expected: Window) -> None:
    assert decoded is not None
    for field in fields(WindowHead):
        np.testing.assert_array_equal(getattr(decoded.head, field.name), getattr(expected.head, field.name))
    assert_same_columns(decoded.columns, expected.columns)


@pytest.mark.parametrize(
    ("schema", "segments", "parts"), [(SCHEMA, 1, 1), (SCHEMA, 5, 1), (IMAGES, 4, 2), (IMAGES, 7, 3)]
)
def test_a_window_survives_encoding_and_decoding(schema: Schema, segments: int, parts: int) -> None:
    window = make_window(11, segments=segments, slot=3, incarnation=2, version=6, schema=schema)
    messages = list(encode_window(window))
    assert len(messages) == parts
    assert all(len(message) < 4 * 2**20 for message in messages)
    assert_same_window(decode_window(parse_windows(messages), schema, segments), window)


def test_messages_that_protobuf_serialises_again_are_decoded_to_the_same_columns() -> None:
    window = make_window(11, segments=4, slot=3, incarnation=2, version=6, schema=IMAGES)
    serialised_again = []
    for message in encode_window(window):
        request = replay_pb2.AppendSegmentsRequest()
        request.ParseFromString(message)
        assert request.SerializeToString(deterministic=True) == message
        serialised_again.append(request.SerializeToString())
    assert_same_window(decode_window(parse_windows(serialised_again), IMAGES, 4), window)


def test_a_payload_before_its_head_is_decoded_to_the_same_columns() -> None:
    window = make_window(11, segments=4, slot=3, incarnation=2, version=6)
    ((head, part),) = block.heads(SCHEMA, 4)
    payload_alone, payload = block.blank_message([b""], part.stop)
    block.clear_gaps(places(SCHEMA, 4), 0, payload)
    block.pack(window.columns.contents, places(window.columns.schema, window.head.segments), 0, payload)
    reversed_block = payload_alone + head.SerializeToString()
    message, content = block.blank_message([b""], len(reversed_block))
    content[:] = np.frombuffer(reversed_block, np.uint8)
    head_of_window = replay_pb2.Window(first_sequence=11, version=6, environments=window.head.environments.tolist())
    assert_same_window(read_windows([message + head_of_window.SerializeToString()], SCHEMA, 4), window)


def test_requests_and_responses_are_parsed_without_their_payload() -> None:
    (message,) = encode_window(make_window(segments=4, slot=3, incarnation=2))
    request = read_append_request(message)
    assert request.window is not None
    assert replay_pb2.Window.FromString(bytes(request.window)) == good_message()
    assert request.message == replay_pb2.AppendSegmentsRequest()
    heartbeat = replay_pb2.AppendSegmentsRequest(heartbeat=replay_pb2.Heartbeat())
    assert read_append_request(heartbeat.SerializeToString()).message == heartbeat


def good_message() -> replay_pb2.Window:
    (message,) = parse_windows(list(encode_window(make_window(segments=4, slot=3, incarnation=2))))
    return message


@pytest.mark.parametrize(("field", "value"), [("first_sequence", 0), ("version", -1)])
def test_a_window_with_numbers_out_of_range_is_refused(field: str, value: int) -> None:
    message = good_message()
    setattr(message, field, value)
    with pytest.raises(InvalidSegment, match="sequences start at 1 and versions at 0"):
        decode_window([message], SCHEMA, 4)


@pytest.mark.parametrize("announced", [3, 5])
def test_a_window_of_another_size_than_announced_is_refused(announced: int) -> None:
    with pytest.raises(InvalidSegment, match=f"4 segments, but {announced} were announced"):
        decode_window([good_message()], SCHEMA, announced)


def test_a_window_with_too_few_environments_is_refused() -> None:
    message = good_message()
    del message.environments[-1]
    with pytest.raises(InvalidSegment, match="4 segments and 3 environments"):
        decode_window([message], SCHEMA, 4)


def test_a_window_without_a_block_is_refused() -> None:
    with pytest.raises(InvalidSegment, match="0 segments"):
        decode_window([replay_pb2.Window(first_sequence=1)], SCHEMA, 4)


@pytest.mark.parametrize(("kind", "staged"), [("open", True), ("open", False), ("staging", False), ("", True)])
def test_a_message_that_may_not_follow_the_opening_is_refused(kind: str, staged: bool) -> None:
    request = replay_pb2.AppendSegmentsRequest()
    if kind:
        getattr(request, kind).SetInParent()
    with pytest.raises(InvalidSegment, match="after `open`, an append stream carries"):
        decode_append_request(read_append_request(request.SerializeToString()), staged=staged)


def test_parts_of_a_window_out_of_order_are_refused() -> None:
    first, second = parse_windows(list(encode_window(make_window(segments=4, slot=3, schema=IMAGES))))
    for parts in ([second], [second, first]):
        with pytest.raises(InvalidSegment):
            decode_window(parts, IMAGES, 4)


def test_a_window_that_claims_more_bytes_than_it_can_have_is_refused() -> None:
    message = good_message()
    message.block.total_bytes += 2**40
    with pytest.raises(Overloaded):
        decode_window([message], SCHEMA, 4)


def make_batch(schema: Schema, segments: int) -> Batch:
    columns = make_columns([(0, 1, sequence) for sequence in range(1, segments + 1)], schema)
    return Batch(
        BatchHead(
            number=2**40,
            fresh_segments=1,
            keys=np.arange(segments, dtype=np.uint64) + np.uint64(2**63),
            versions=np.arange(segments, dtype=np.int64) + 2**40,
            priorities=np.linspace(0.0, 1e9, segments),
            probabilities=np.linspace(1.0, 1e-9, segments),
            counts=COUNTS,
            mass=Mass(0.75, 2**41),
            slots=np.array([2**32 - 1], np.uint32),
            skipped=np.arange(segments, dtype=np.int64) * 2**39,
        ),
        columns,
    )


def encode_batch(batch: Batch) -> list[bytes]:
    messages = []
    for message, start, payload in batch_messages(batch.head, batch.columns.schema):
        block.pack(batch.columns.contents, places(batch.columns.schema, batch.columns.segments), start, payload)
        messages.append(message)
    return messages


@pytest.mark.parametrize(("schema", "segments", "parts"), [(SCHEMA, 6, 1), (IMAGES, 7, 3)])
def test_a_batch_survives_encoding_and_decoding(schema: Schema, segments: int, parts: int) -> None:
    batch = make_batch(schema, segments)
    messages = encode_batch(batch)
    parsed = [replay_pb2.SampleBatchesResponse.FromString(message) for message in messages]
    assert len(messages) == parts
    assert {message.batch for message in parsed} == {2**40}
    assembler = BatchAssembler(2**30)
    *none, decoded = [assembler.add(schema, read_sample_response(message)) for message in messages]
    assert none == [None] * (parts - 1)
    assert isinstance(decoded, Batch)
    assert (decoded.number, decoded.fresh_segments, decoded.counts) == (batch.number, batch.fresh_segments, COUNTS)
    assert decoded.head.mass == batch.head.mass
    for field in ("keys", "versions", "priorities", "probabilities", "slots", "skipped"):
        np.testing.assert_array_equal(getattr(decoded.head, field), getattr(batch.head, field), strict=True)
    assert_same_columns(decoded.columns, batch.columns)


@pytest.mark.parametrize("field", ["keys", "versions", "priorities", "probabilities"])
def test_a_batch_whose_heads_differ_in_length_is_refused(field: str) -> None:
    (data,) = encode_batch(make_batch(SCHEMA, 6))
    message = replay_pb2.SampleBatchesResponse.FromString(data)
    setattr(message, field, getattr(message, field)[:-8])
    with pytest.raises(InvalidSegment, match="different lengths"):
        BatchAssembler(2**30).add(SCHEMA, read_sample_response(message.SerializeToString()))
    setattr(message, field, getattr(message, field)[:-1])
    with pytest.raises(InvalidSegment, match="not a multiple"):
        BatchAssembler(2**30).add(SCHEMA, read_sample_response(message.SerializeToString()))


def test_plans_and_counts_survive_encoding_and_decoding() -> None:
    plan = SamplingPlan(
        *(2**64 - 1, 2**40, 512, 256, 3, 2, 0.6, 1e-3, 2.5, 64, 2**33, 2**64 - 1),
        slot_weights=(0.0, 1e100, 3.0),
        least_share=0.25,
    )
    decoded = decode_plan(replay_pb2.SamplingPlan.FromString(encode_plan(plan).SerializeToString()))
    assert asdict(decoded) == asdict(plan)
    assert decode_counts(encoded(replay_pb2.StoreCounts, COUNTS)) == COUNTS


@pytest.mark.parametrize(
    "change",
    [
        {"session": 0},
        {"next_batch": -1},
        {"fresh_segments": 5},
        {"batch_segments": 0, "fresh_segments": 0},
        {"batch_segments": 2**16 + 1},
        {"publish_interval": 0},
        {"alpha": -0.1},
        {"alpha": float("nan")},
        {"epsilon": 0.0},
        {"half_life": 0.0},
        {"half_life": float("nan")},
        {"slot_weights": (1.0, -0.5)},
        {"slot_weights": (1.0, float("nan"))},
        {"slot_weights": (1.0, float("inf"))},
        {"slot_weights": (0.0, 0.0)},
        {"slot_weights": (1.0,) * 4097},
    ],
)
def test_an_invalid_plan_is_refused(change: dict[str, Any]) -> None:
    plan = replace(PLAN, **change)
    with pytest.raises(InvalidSegment):
        decode_plan(encode_plan(plan))


def test_a_plan_of_an_older_learner_has_no_weights() -> None:
    message = encode_plan(PLAN)
    message.ClearField("least_share")
    plan = decode_plan(replay_pb2.SamplingPlan.FromString(message.SerializeToString()))
    assert plan.slot_weights == ()
    assert plan.relative_shares(range(3)) == [1.0, 1.0, 1.0]


def test_an_acknowledgement_contains_the_grants() -> None:
    message = encode_append_response(17, [Grant(4, 2), Grant(5, 2)])
    assert message.stored_sequence == 17
    assert [(grant.batch, grant.minimum_version) for grant in message.grants] == [(4, 2), (5, 2)]


def test_a_head_whose_segments_differ_from_its_block_is_refused() -> None:
    (four,), (three,) = (encode_batch(make_batch(SCHEMA, segments)) for segments in (4, 3))
    mixed, other = (replay_pb2.SampleBatchesResponse.FromString(data) for data in (four, three))
    mixed.block.CopyFrom(other.block)
    with pytest.raises(InvalidSegment, match="3 segments, but"):
        BatchAssembler(2**30).add(SCHEMA, read_sample_response(mixed.SerializeToString()))


@pytest.mark.parametrize(
    ("field", "size", "message_text"),
    [
        ("skipped", 8, "5 skips for 6 segments"),
        ("environments", -8, "2 environments for 1 fresh segments"),
        ("slots", -4, "2 slots for 1 fresh segments"),
    ],
)
def test_a_head_with_too_few_skips_or_too_many_environments_or_slots_is_refused(
    field: str, size: int, message_text: str
) -> None:
    (data,) = encode_batch(make_batch(SCHEMA, 6))
    message = replay_pb2.SampleBatchesResponse.FromString(data)
    column = getattr(message, field)
    setattr(message, field, column[:-size] if size > 0 else column + bytes(-size))
    with pytest.raises(InvalidSegment, match=message_text):
        BatchAssembler(2**30).add(SCHEMA, read_sample_response(message.SerializeToString()))


def test_an_oversized_head_is_refused_before_it_is_parsed() -> None:
    for size, taken in ((2**18 - 1_000, True), (2**18, False)):
        request = replay_pb2.AppendSegmentsRequest()
        request.open.schema.columns.add(name="x" * size)
        if taken:
            assert read_append_request(request.SerializeToString()).message == request
        else:
            with pytest.raises(InvalidSegment, match="bytes besides the payload"):
                read_append_request(request.SerializeToString())


def test_the_largest_valid_plan_is_accepted_and_a_larger_alpha_is_refused() -> None:
    largest = replace(PLAN, batch_segments=2**16, alpha=100.0)
    assert decode_plan(encode_plan(largest)) == largest
    with pytest.raises(InvalidSegment, match="alpha must be from 0 to 100"):
        decode_plan(encode_plan(replace(PLAN, alpha=100.5)))
