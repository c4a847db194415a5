import hashlib
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from helpers.segments import SCHEMA, assert_same_columns, make_columns
from penstock.errors import InvalidSegment, Overloaded
from penstock.types import DATA_TYPES, Column, Columns, Extent, Schema
from penstock.v1 import block_pb2
from penstock.wire.block import (
    MAX_PART_BYTES,
    BlockAssembler,
    allocate,
    append_payload,
    check_values,
    heads,
    layout,
    pack,
)
from penstock.wire.schema import decode_schema, encode_schema

IMAGES = Schema(4, (Column("observation", "uint8", (500, 501), Extent.STEP_AND_NEXT), Column("reward", "float32")))
"""Four segments are 5.01 MB: two parts."""

NAMES = [(0, 1, sequence) for sequence in (1, 2, 3, 4)]


def encode(columns: Columns) -> list[bytes]:
    payload = pack(columns)
    return [
        append_payload([head.SerializeToString()], payload[part])
        for head, part in heads(columns.schema, columns.segments)
    ]


def decode(schema: Schema, parts: list[block_pb2.Block], max_bytes: int = 2**30) -> Columns | None:
    assembler, columns = BlockAssembler(max_bytes), None
    for part in parts:
        assert columns is None
        columns = assembler.add(schema, part)
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
@settings(max_examples=60, deadline=None)
def test_columns_of_any_schema_come_back_as_they_went(schema: Schema, segments: int) -> None:
    columns = make_columns([(0, 1, sequence) for sequence in range(1, segments + 1)], schema)
    assert_same_columns(round_trip(columns), columns)
    assert decode_schema(block_pb2.Schema.FromString(encode_schema(schema).SerializeToString())) == schema


@given(schema=schemas(), segments=st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_columns_begin_at_multiples_of_eight_with_zeros_between(schema: Schema, segments: int) -> None:
    offsets, total = layout(schema, segments)
    columns = make_columns([(0, 1, sequence) for sequence in range(1, segments + 1)], schema)
    content, position = b"", 0
    for offset, array in zip(offsets, columns.arrays, strict=True):
        assert offset == position
        content += array.tobytes() + bytes(-array.nbytes % 8)
        position = len(content)
    assert (content, total) == (pack(columns).tobytes(), position)


def test_a_large_payload_goes_in_parts_that_fit_a_message() -> None:
    columns = make_columns(NAMES, IMAGES)
    parts = encode(columns)
    assert len(parts) == 2
    assert all(len(part) < 4 * 2**20 for part in parts)
    assert [len(part.payload) for part in parse(parts)] == [MAX_PART_BYTES, layout(IMAGES, 4)[1] - MAX_PART_BYTES]
    assert_same_columns(round_trip(columns), columns)


def test_one_block_after_another_goes_through_one_assembler() -> None:
    assembler = BlockAssembler(2**30)
    for names in (NAMES, NAMES[::-1]):
        columns = make_columns(names, IMAGES)
        first, second = parse(encode(columns))
        assert assembler.add(IMAGES, first) is None
        whole = assembler.add(IMAGES, second)
        assert whole is not None
        assert_same_columns(whole, columns)


@pytest.mark.parametrize(("schema", "names"), [(SCHEMA, NAMES), (IMAGES, NAMES)])
def test_ready_bytes_are_what_protobuf_would_have_written(schema: Schema, names: list[tuple[int, int, int]]) -> None:
    columns = make_columns(names, schema)
    payload, ready = pack(columns), encode(columns)
    for (head, part), message in zip(heads(schema, len(names)), ready, strict=True):
        head.payload = payload[part].tobytes()
        plain = block_pb2.Block()
        plain.ParseFromString(message)
        assert plain == head
        assert message == head.SerializeToString(deterministic=True)


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16383, 16384, 2_100_000])
def test_payloads_of_every_length_are_framed_right(size: int) -> None:
    payload = np.arange(size, dtype=np.uint64).astype(np.uint8)
    message = block_pb2.Block.FromString(append_payload([block_pb2.Block(segments=3).SerializeToString()], payload))
    assert (message.segments, message.payload) == (3, payload.tobytes())


def test_allocated_columns_are_views_of_the_payload() -> None:
    payload, columns = allocate(SCHEMA, 4)
    for array, sent in zip(columns.arrays, make_columns(NAMES).arrays, strict=True):
        array[...] = sent
    np.testing.assert_array_equal(payload, pack(make_columns(NAMES)))


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


# What is refused


def set_offset(column: int, offset: int) -> Callable[[block_pb2.Block], None]:
    def change(block: block_pb2.Block) -> None:
        block.column_offsets[column] = offset

    return change


def set_field(name: str, value: int | bytes) -> Callable[[block_pb2.Block], None]:
    return lambda block: setattr(block, name, value)


WHOLE = pack(make_columns(NAMES)).tobytes()


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
        # One that claims to be the first of many is refused with the next.
        assert assembler.add(SCHEMA, block) is None
        assembler.add(SCHEMA, block)


def test_parts_out_of_order_are_refused() -> None:
    first, second = parse(encode(make_columns(NAMES, IMAGES)))
    for parts in ([second], [first, first], [second, first]):
        with pytest.raises(InvalidSegment, match="was due"):
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


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(dtype: str, value: float) -> None:
    columns = Schema(3, (Column("reward", dtype),)).empty(2)
    check_values(columns)
    columns.arrays[0][1, 2] = value
    with pytest.raises(InvalidSegment, match="reward has values that are not finite"):
        check_values(columns)


def test_booleans_above_one_are_refused() -> None:
    columns = Schema(3, (Column("terminated", "bool"),)).empty(2)
    raw: NDArray[np.uint8] = columns.arrays[0].view(np.uint8)
    raw[1, 1] = 1
    check_values(columns)
    raw[1, 1] = 2
    with pytest.raises(InvalidSegment, match="terminated has bytes above 1"):
        check_values(columns)


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
def test_a_schema_that_describes_no_segments_is_refused(schema: Schema) -> None:
    with pytest.raises(InvalidSegment):
        decode_schema(encode_schema(schema))


@pytest.mark.parametrize(("field", "value"), [("data_type", 0), ("data_type", 9), ("extent", 0), ("extent", 4)])
def test_a_column_of_unknown_type_or_extent_is_refused(field: str, value: int) -> None:
    message = encode_schema(SCHEMA)
    setattr(message.columns[1], field, value)
    with pytest.raises(InvalidSegment, match="column action"):
        decode_schema(message)
