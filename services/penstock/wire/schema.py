"""Conversion of schemas, spaces and environment specs to messages and back."""

import math
import re

import numpy as np

from penstock.errors import InvalidSegment
from penstock.types import DATA_TYPES, BoxSpace, Column, DiscreteSpace, EnvironmentSpec, Extent, Schema, Space
from penstock.v1 import block_pb2, run_pb2

MAX_SEGMENT_BYTES = 2**30
MAX_COLUMNS, MAX_DIMENSIONS = 1024, 32
"""Limits without which computing a segment's size could take minutes. NumPy allows 64 dimensions, of which Penstock
uses some."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


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
        raise InvalidSegment(f"a schema of {len(message.columns)} columns; at most {MAX_COLUMNS} are possible")
    schema = Schema(message.unroll_length, tuple(_decode_column(column) for column in message.columns))
    if len({column.name for column in schema.columns}) != len(schema.columns):
        raise InvalidSegment("a schema names two columns alike")
    if schema.segment_bytes > MAX_SEGMENT_BYTES:
        raise InvalidSegment(f"segments of {schema.segment_bytes} bytes; at most {MAX_SEGMENT_BYTES} are possible")
    return schema


def _decode_column(message: block_pb2.Column) -> Column:
    if not _NAME.fullmatch(message.name):
        raise InvalidSegment(
            f"a column's name must be lower_snake_case of at most 64 characters, got {message.name[:80]!r}"
        )
    if not 1 <= message.data_type <= len(DATA_TYPES) or int(message.extent) not in tuple(Extent):
        raise InvalidSegment(
            f"column {message.name} has data type {message.data_type} and extent {message.extent}; both must be known"
        )
    if len(message.shape) > MAX_DIMENSIONS or 0 in message.shape:
        raise InvalidSegment(
            f"column {message.name} has {len(message.shape)} dimensions; at most {MAX_DIMENSIONS} are possible, and"
            " none of them 0"
        )
    return Column(
        name=message.name,
        dtype=DATA_TYPES[message.data_type - 1],
        shape=tuple(message.shape),
        extent=Extent(message.extent),
        lead=message.lead,
    )


def encode_environment(spec: EnvironmentSpec) -> run_pb2.EnvironmentSpec:
    """Encodes an environment's spec."""
    return run_pb2.EnvironmentSpec(
        id=spec.id,
        observation=_encode_space(spec.observation),
        action=_encode_space(spec.action),
        frames=spec.frames,
    )


def decode_environment(message: run_pb2.EnvironmentSpec) -> EnvironmentSpec:
    """Decodes an environment's spec. Raises `InvalidSegment` for an invalid space or number of frames."""
    observation, action = _decode_space(message.observation), _decode_space(message.action)
    frames = message.frames or 1
    if frames > 1 and not (
        isinstance(observation, BoxSpace) and observation.shape and not observation.shape[0] % frames
    ):
        raise InvalidSegment(f"{frames} frames can't be stacked along the first axis of the observations")
    return EnvironmentSpec(message.id, observation, action, frames)


def _encode_space(space: Space) -> run_pb2.Space:
    if isinstance(space, DiscreteSpace):
        return run_pb2.Space(discrete=run_pb2.DiscreteSpace(n=space.n, start=space.start))
    box = run_pb2.BoxSpace(
        data_type=DATA_TYPES.index(space.dtype) + 1,  # type: ignore[arg-type]
        shape=space.shape,
        low=space.low,
        high=space.high,
    )
    return run_pb2.Space(box=box)


def _decode_space(message: run_pb2.Space) -> Space:
    kind = message.WhichOneof("kind")
    if kind == "discrete":
        if message.discrete.n < 1:
            raise InvalidSegment("a discrete space without elements")
        return DiscreteSpace(message.discrete.n, message.discrete.start)
    if kind == "box":
        box = message.box
        size = math.prod(box.shape)
        if not 1 <= box.data_type <= len(DATA_TYPES) or not {len(box.low), len(box.high)} <= {1, size}:
            raise InvalidSegment(
                f"a box of shape {tuple(box.shape)} needs a known data type and 1 or {size} bounds on each side"
            )
        if np.isnan(box.low).any() or np.isnan(box.high).any():
            raise InvalidSegment("a box's bounds must be numbers")
        return BoxSpace(DATA_TYPES[box.data_type - 1], tuple(box.shape), tuple(box.low), tuple(box.high))
    raise InvalidSegment("a space of no known kind")
