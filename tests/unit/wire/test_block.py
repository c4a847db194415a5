import copy
import hashlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidSegment, Overloaded
from penstock.types.block import DATA_TYPES, Column, Columns, Extent, Schema
from penstock.types.payloads import layout, places
from penstock.v1 import block_pb2, replay_pb2
from penstock.wire.block import (
    MAX_PART_BYTES,
    BlockAssembler,
    BlockReader,
    EncodedColumns,
    blank_message,
    clear_gaps,
    heads,
    pack,
    split_final,
)
from penstock.wire.schema import decode_schema, encode_schema
from tests.support.segments.segments import SCHEMA, assert_same_columns, make_columns

IMAGES = Schema(4, (Column("observation", "uint8", (500, 501), Extent.STEP_AND_NEXT), Column("reward", "float32")))
"""Schema of which four segments have 5.01 MB and need two parts."""

NAMES = [(0, 1, sequence) for sequence in (1, 2, 3, 4)]


def encode(columns: Columns) -> list[bytes]:
    messages = []
    for head, part in heads(columns.schema, columns.segments):
        message, payload = blank_message([head.SerializeToString()], part.stop - part.start)
        payload[:] = 0xEE
        clear_gaps(places(columns.schema, columns.segments), part.start, payload)
        pack(columns.contents, places(columns.schema, columns.segments), part.start, payload)
        messages.append(message)
    return messages


def payload_of(columns: Columns) -> bytes:
    return b"".join(block_pb2.Block.FromString(message).payload for message in encode(columns))


def decode(schema: Schema, parts: list[block_pb2.Block], max_bytes: int = 2**30) -> Columns | None:
    assembler, columns = BlockAssembler(max_bytes), None
    for part in parts:
        assert columns is None
        received = assembler.add(schema, part.SerializeToString())
        assert not isinstance(received, EncodedColumns)
        columns = received
    return columns


def parse(parts: list[bytes]) -> list[block_pb2.Block]:
    return [block_pb2.Block.FromString(part) for part in parts]


def round_trip(columns: Columns) -> Columns:
    decoded = decode(columns.schema, parse(encode(columns)))
    assert decoded is not None
    return decoded


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    columns = st.builds(
        Column,
        name=st.uuids().map(lambda name: f"c{name.hex}"),
        dtype=st.sampled_from(DATA_TYPES),
        shape=st.lists(st.integers(1, 4), max_size=3).map(tuple),
        extent=st.sampled_from(Extent),
        lead=st.integers(0, 2),
    )
    return Schema(draw(st.integers(1, 5)), tuple(draw(st.lists(columns, min_size=1, max_size=5))))


@given(schema=schemas(), segments=st.integers(1, 5))
def test_columns_of_any_schema_survive_encoding_and_decoding(schema: Schema, segments: int) -> None:
    columns = make_columns([(0, 1, sequence) for sequence in range(1, segments + 1)], schema)
    assert_same_columns(round_trip(columns), columns)
    assert decode_schema(block_pb2.Schema.FromString(encode_schema(schema).SerializeToString())) == schema


@given(schema=schemas(), segments=st.integers(1, 5))
def test_columns_begin_at_multiples_of_eight_with_zeros_between(schema: Schema, segments: int) -> None:
    offsets, total = layout(schema, segments)
    columns = make_columns([(0, 1, sequence) for sequence in range(1, segments + 1)], schema)
    content, position = b"", 0
    for offset, array in zip(offsets, columns.arrays, strict=True):
        assert offset == position
        content += array.tobytes() + bytes(-array.nbytes % 8)
        position = len(content)
    assert (content, total) == (payload_of(columns), position)


def test_a_large_payload_is_split_into_parts_that_fit_a_message() -> None:
    columns = make_columns(NAMES, IMAGES)
    parts = encode(columns)
    assert len(parts) == 2
    assert all(len(part) < 4 * 2**20 for part in parts)
    assert [len(part.payload) for part in parse(parts)] == [MAX_PART_BYTES, layout(IMAGES, 4)[1] - MAX_PART_BYTES]
    assert_same_columns(round_trip(columns), columns)


def test_one_assembler_takes_successive_blocks() -> None:
    assembler = BlockAssembler(2**30)
    for names in (NAMES, NAMES[::-1]):
        columns = make_columns(names, IMAGES)
        first, second = encode(columns)
        assert assembler.add(IMAGES, first) is None
        whole = assembler.add(IMAGES, second)
        assert isinstance(whole, Columns)
        assert_same_columns(whole, columns)


@pytest.mark.parametrize(("schema", "names"), [(SCHEMA, NAMES), (IMAGES, NAMES)])
def test_assembled_bytes_equal_those_of_protobuf(schema: Schema, names: list[tuple[int, int, int]]) -> None:
    columns = make_columns(names, schema)
    payload, ready = payload_of(columns), encode(columns)
    for (head, part), message in zip(heads(schema, len(names)), ready, strict=True):
        head.payload = payload[part]
        plain = block_pb2.Block()
        plain.ParseFromString(message)
        assert plain == head
        assert message == head.SerializeToString(deterministic=True)


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16383, 16384, 2_100_000])
def test_payloads_of_every_length_are_framed_correctly(size: int) -> None:
    content = np.arange(size, dtype=np.uint64).astype(np.uint8)
    outer = replay_pb2.Window(version=5).SerializeToString()
    message, payload = blank_message([b"", outer, block_pb2.Block(segments=3).SerializeToString()], size)
    payload[:] = content
    window = replay_pb2.AppendSegmentsRequest.FromString(message).window
    assert (window.version, window.block.segments, window.block.payload) == (5, 3, content.tobytes())


def test_the_fragments_of_all_parts_form_the_columns() -> None:
    columns, reader = make_columns(NAMES, IMAGES), BlockReader(2**30)
    assembled = [np.full(array.nbytes, 0xEE, np.uint8) for array in columns.arrays]
    for message in encode(columns):
        for fragment in reader.add(IMAGES, message).fragments():
            assembled[fragment.column][fragment.offset : fragment.offset + fragment.data.size] = fragment.data
    for array, content in zip(columns.arrays, assembled, strict=True):
        assert array.tobytes() == content.tobytes()


def test_a_part_0_starts_a_new_block() -> None:
    columns, assembler = make_columns(NAMES, IMAGES), BlockAssembler(2**30)
    first, second = encode(columns)
    assert [assembler.add(IMAGES, first) for _ in range(2)] == [None, None]
    assembled = assembler.add(IMAGES, second)
    assert isinstance(assembled, Columns)
    assert_same_columns(assembled, columns)


# The final field


@given(
    number=st.integers(0, 2**64 - 1),
    text=st.text(max_size=20),
    keys=st.binary(max_size=40),
    content=st.none() | st.binary(max_size=300),
    order=st.permutations(range(4)),
)
def test_the_final_field_is_extracted_from_any_position(
    number: int, text: str, keys: bytes, content: bytes | None, order: list[int]
) -> None:
    response = replay_pb2.SampleBatchesResponse
    fields = [
        response(batch=number - 2**63).SerializeToString(),
        response(waiting=text, keys=keys).SerializeToString(),
        replay_pb2.SamplingPlan(session=number, alpha=0.5).SerializeToString(),
        b"" if content is None else block_pb2.Block(payload=content).SerializeToString() or b"\x7a\x00",
    ]
    head, final = split_final(b"".join(fields[position] for position in order))
    assert head == b"".join(fields[position] for position in order if position != 3)
    assert (None if final is None else bytes(final)) == content


@given(st.binary(max_size=60))
def test_any_bytes_are_either_split_or_refused(data: bytes) -> None:
    try:
        split_final(data)
    except InvalidSegment:
        return


def test_a_message_truncated_within_its_payload_is_refused() -> None:
    (message,) = encode(make_columns(NAMES))
    _, final = split_final(message)
    assert final is not None
    begin = len(message) - len(final)
    for end in range(begin - 1, len(message)):
        with pytest.raises(InvalidSegment, match="ends within"):
            split_final(message[:end])


@pytest.mark.parametrize("data", [b"\x7a\x00\x7a\x00", b"\x08" + b"\xff" * 10, b"\x0b\x0c", b"\x0f"])
def test_two_blocks_long_numbers_and_groups_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidSegment, match="malformed message"):
        split_final(data)


def test_the_schema_hash_is_the_one_of_the_contract() -> None:
    schema = Schema(
        16,
        (
            Column("observation", "float32", (4,), Extent.STEP_AND_NEXT),
            Column("frame", "uint8", (84, 84), Extent.STEP_AND_NEXT, lead=3),
            Column("memory", "float64", (), Extent.SEGMENT),
        ),
    )
    text = "penstock.v1\n16\nobservation 7 4 2 0\nframe 2 84,84 2 3\nmemory 8  3 0\n"
    assert schema.hash == int(hashlib.sha256(text.encode()).hexdigest()[:16], 16)


def test_equal_schemas_have_equal_hashes() -> None:
    column = Column("frame", "uint8", (84, 84), Extent.STEP_AND_NEXT, lead=3)
    one, same = Schema(16, (column,)), copy.deepcopy(Schema(16, (column,)))
    assert one == same and hash(one) == hash(same) and {one: 1}[same] == 1
    others = [Schema(17, (column,)), Schema(16, (column, column)), Schema(16, (replace(column, lead=2),))]
    assert all(one != other and hash(one) != hash(other) for other in others)


# Refused messages


def set_offset(column: int, offset: int) -> Callable[[block_pb2.Block], None]:
    def change(block: block_pb2.Block) -> None:
        block.column_offsets[column] = offset

    return change


def set_field(name: str, value: int | bytes) -> Callable[[block_pb2.Block], None]:
    return lambda block: setattr(block, name, value)


WHOLE = payload_of(make_columns(NAMES))


@pytest.mark.parametrize(
    "change",
    [
        set_offset(1, layout(SCHEMA, 4)[0][1] + 4),
        set_offset(4, layout(SCHEMA, 4)[0][4] + 8),
        set_offset(0, 2**63),
        lambda block: block.column_offsets.append(0),
        lambda block: block.ClearField("column_offsets"),
        set_field("segments", 5),
        set_field("segments", 2**32 - 1),
        set_field("total_bytes", len(WHOLE) - 8),
        set_field("total_bytes", len(WHOLE) + 8),
        set_field("payload", WHOLE[:-1]),
        set_field("payload", WHOLE + b"\0"),
        set_field("payload", b""),
        set_field("schema_hash", 12345),
        set_field("parts", 0),
        set_field("parts", 2**32 - 1),
        set_field("part", 1),
        set_field("part_offset", 8),
    ],
)
def test_a_block_that_does_not_fit_its_schema_is_refused(change: Callable[[block_pb2.Block], None]) -> None:
    (block,) = parse(encode(make_columns(NAMES)))
    change(block)
    assembler = BlockAssembler(2**30)
    with pytest.raises(InvalidSegment):
        assembler.add(SCHEMA, block.SerializeToString())


def test_parts_out_of_order_are_refused() -> None:
    first, second = parse(encode(make_columns(NAMES, IMAGES)))
    for parts in ([second], [second, first]):
        with pytest.raises(InvalidSegment, match=r"got part . of a block, expected part"):
            decode(IMAGES, parts)


@pytest.mark.parametrize(
    "change",
    [
        set_field("schema_hash", 1),
        set_field("segments", 3),
        set_field("segments", 5),
        set_field("parts", 1),
        set_field("parts", 3),
        set_field("total_bytes", 2**29),
        set_field("part_offset", 0),
        set_field("part_offset", MAX_PART_BYTES + 8),
        set_field("payload", b"too short"),
        set_offset(0, 3),
        set_offset(1, 2**40),
        lambda block: block.ClearField("column_offsets"),
    ],
)
def test_a_part_that_differs_from_the_first_is_refused(change: Callable[[block_pb2.Block], None]) -> None:
    first, second = parse(encode(make_columns(NAMES, IMAGES)))
    change(second)
    with pytest.raises(InvalidSegment):
        decode(IMAGES, [first, second])


def test_a_payload_above_the_limit_is_refused_before_it_is_allocated() -> None:
    parts = parse(encode(make_columns(NAMES, IMAGES)))
    parts[0].total_bytes = 2**60
    with pytest.raises(Overloaded, match=str(2**60)):
        decode(IMAGES, parts)
    with pytest.raises(Overloaded):
        decode(SCHEMA, parse(encode(make_columns(NAMES))), max_bytes=len(WHOLE) - 1)
    assert decode(SCHEMA, parse(encode(make_columns(NAMES))), max_bytes=len(WHOLE)) is not None


@pytest.mark.parametrize(
    "schema",
    [
        Schema(0, SCHEMA.columns),
        Schema(3, ()),
        Schema(3, (SCHEMA.columns[0], SCHEMA.columns[0])),
        Schema(3, (Column("Capital", "bool"),)),
        Schema(3, (Column("", "bool"),)),
        Schema(3, (Column("x" * 65, "bool"),)),
        Schema(3, (Column("large", "float64", (2**16, 2**16)),)),
    ],
)
def test_a_schema_that_cannot_describe_segments_is_refused(schema: Schema) -> None:
    with pytest.raises(InvalidSegment):
        decode_schema(encode_schema(schema))


@pytest.mark.parametrize(("field", "value"), [("data_type", 0), ("data_type", 9), ("extent", 0), ("extent", 4)])
def test_a_column_of_unknown_type_or_extent_is_refused(field: str, value: int) -> None:
    message = encode_schema(SCHEMA)
    setattr(message.columns[1], field, value)
    with pytest.raises(InvalidSegment, match="column action"):
        decode_schema(message)


TWO_BYTES = Schema(1, (Column("first", "uint8"), Column("second", "uint8")))


@pytest.mark.parametrize(
    ("offsets", "total"),
    [
        ((0, 12), 16),  # not aligned
        ((0, 0), 8),  # overlapping
        ((8, 0), 16),  # in the wrong order
        ((0, 16), 16),  # beyond the end
    ],
)
def test_columns_that_are_not_aligned_overlap_or_end_outside_are_refused(offsets: tuple[int, int], total: int) -> None:
    block = block_pb2.Block(
        schema_hash=TWO_BYTES.hash,
        segments=4,
        column_offsets=offsets,
        total_bytes=total,
        parts=1,
        payload=bytes(total),
    )
    with pytest.raises(InvalidSegment, match=r"column (first|second) of 4 segments covers bytes"):
        BlockReader(2**20).add(TWO_BYTES, block.SerializeToString())


def test_a_part_that_names_another_number_of_parts_is_refused() -> None:
    columns, reader = make_columns([(0, 1, sequence) for sequence in range(1, 8)], IMAGES), BlockReader(2**30)
    first, second, third = parse(encode(columns))
    second.parts = 4
    reader.add(IMAGES, first.SerializeToString())
    with pytest.raises(InvalidSegment, match="part 1 differs from the part before"):
        reader.add(IMAGES, second.SerializeToString())
    assert third.part == 2
