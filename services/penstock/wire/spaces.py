"""Conversion of spaces and environment specs to messages and back."""

import math
from typing import assert_never

import numpy as np

from penstock.errors import InvalidSegment
from penstock.types.block import DATA_TYPES
from penstock.types.spaces import BoxSpace, DiscreteSpace, EnvironmentSpec, Space
from penstock.v1 import run_pb2


def encode_environment(spec: EnvironmentSpec) -> run_pb2.EnvironmentSpec:
    """Encodes an environment's spec."""
    return run_pb2.EnvironmentSpec(
        id=spec.id, observation=_encode_space(spec.observation), action=_encode_space(spec.action), frames=spec.frames
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
    match space:
        case DiscreteSpace():
            return run_pb2.Space(discrete=run_pb2.DiscreteSpace(n=space.n, start=space.start))
        case BoxSpace():
            box = run_pb2.BoxSpace(
                data_type=DATA_TYPES.index(space.dtype) + 1,  # type: ignore[arg-type]
                shape=space.shape,
                low=space.low,
                high=space.high,
            )
            return run_pb2.Space(box=box)
        case _:
            assert_never(space)


def _decode_space(message: run_pb2.Space) -> Space:
    match message.WhichOneof("kind"):
        case "discrete":
            if message.discrete.n < 1:
                raise InvalidSegment("a discrete space without elements")
            return DiscreteSpace(message.discrete.n, message.discrete.start)
        case "box":
            return _decode_box(message.box)
        case _:
            raise InvalidSegment("a space of no known kind")


def _decode_box(message: run_pb2.BoxSpace) -> BoxSpace:
    size = math.prod(message.shape)
    if not 1 <= message.data_type <= len(DATA_TYPES) or not {len(message.low), len(message.high)} <= {1, size}:
        raise InvalidSegment(
            f"a box of shape {tuple(message.shape)} needs a known data type and 1 or {size} bounds on each side"
        )
    if np.isnan(message.low).any() or np.isnan(message.high).any():
        raise InvalidSegment("a box's bounds must be numbers")
    return BoxSpace(DATA_TYPES[message.data_type - 1], tuple(message.shape), tuple(message.low), tuple(message.high))
