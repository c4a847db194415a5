"""Conversion of schemas to messages and back."""

import re

from penstock.errors import InvalidSegment
from penstock.types.block import DATA_TYPES, MAX_COLUMN_NAME, Column, Extent, Schema
from penstock.v1 import block_pb2

MAX_SEGMENT_BYTES = 2**30
MAX_COLUMNS, MAX_DIMENSIONS = 1024, 32
"""Limits without which computing a segment's size could take minutes. NumPy allows 64 dimensions, of which Penstock
uses some."""

_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[A-Za-z0-9_]+)*(-[0-9]+)?")
"""Pattern of a column's name: `types.spaces.Tree.columns` adds the parts with dots and the number."""


def encode_schema(schema: Schema) -> block_pb2.Schema:
    """Encodes a schema."""
    return block_pb2.Schema(
        unroll_length=schema.unroll_length,
        columns=[
            block_pb2.Column(
                name=column.name,
                data_type=DATA_TYPES.index(column.dtype) + 1,  # type: ignore[arg-type]
                shape=column.shape,
                extent=int(column.extent),  # type: ignore[arg-type]
                lead=column.lead,
            )
            for column in schema.columns
        ],
    )


def decode_schema(message: block_pb2.Schema) -> Schema:
    """Decodes a schema. Raises `InvalidSegment` if it can't describe segments."""
    if message.unroll_length < 1 or not message.columns:
        raise InvalidSegment(
            f"a schema needs steps and columns, got {message.unroll_length} steps and {len(message.columns)} columns"
        )
    if len(message.columns) > MAX_COLUMNS:
        raise InvalidSegment(f"a schema has {len(message.columns)} columns; the maximum is {MAX_COLUMNS}")
    schema = Schema(message.unroll_length, tuple(_decode_column(column) for column in message.columns))
    if len({column.name for column in schema.columns}) != len(schema.columns):
        raise InvalidSegment("a schema has two columns of the same name")
    if schema.segment_bytes > MAX_SEGMENT_BYTES:
        raise InvalidSegment(f"segments have {schema.segment_bytes} bytes; the maximum is {MAX_SEGMENT_BYTES}")
    return schema


def _decode_column(message: block_pb2.Column) -> Column:
    if len(message.name) > MAX_COLUMN_NAME or not _NAME.fullmatch(message.name):
        raise InvalidSegment(
            f"a column's name must be lower_snake_case, with dots before the parts of a nested space, of at most"
            f" {MAX_COLUMN_NAME} characters; got {message.name[:80]!r}"
        )
    if not 1 <= message.data_type <= len(DATA_TYPES) or int(message.extent) not in tuple(Extent):
        raise InvalidSegment(
            f"column {message.name} has data type {message.data_type} and extent {message.extent}; both must be known"
        )
    if len(message.shape) > MAX_DIMENSIONS or 0 in message.shape:
        raise InvalidSegment(
            f"column {message.name} has {len(message.shape)} dimensions; the maximum is {MAX_DIMENSIONS}, and"
            " none may be 0"
        )
    return Column(
        name=message.name,
        dtype=DATA_TYPES[message.data_type - 1],
        shape=tuple(message.shape),
        extent=Extent(message.extent),
        lead=message.lead,
    )
