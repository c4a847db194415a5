"""Converts Gymnasium's spaces to specs and columns, and a policy's actions to those of the environment."""

from typing import Literal, assert_never

import gymnasium
import numpy as np
from numpy.typing import NDArray

from penstock.acting import faults
from penstock.algo.spaces import SUPPORTED_OBSERVATIONS, bounded, bounds
from penstock.errors import ConfigurationError
from penstock.types.block import DATA_TYPES, Column, Extent, Schema
from penstock.types.spaces import BoxSpace, DiscreteSpace, EnvironmentSpec, Space, is_image

_Role = Literal["observation", "action"]

_SUPPORTED: dict[_Role, str] = {
    "observation": SUPPORTED_OBSERVATIONS,
    "action": "Discrete and Box of floats are supported",
}
_STORED_AS = {"float64": "float32", "int16": "int32", "uint16": "int32", "uint32": "int64"}
"""Element types that replace wider or rarer ones in segments."""


def describe(env_id: str, observation: gymnasium.Space[object], action: gymnasium.Space[object]) -> EnvironmentSpec:
    """Returns the spec of an environment's single spaces. Raises `ConfigurationError` for unsupported spaces."""
    return EnvironmentSpec(env_id, _described(env_id, "observation", observation), _described(env_id, "action", action))


def _described(env_id: str, role: _Role, space: gymnasium.Space[object]) -> Space:
    if isinstance(space, gymnasium.spaces.Discrete):
        return DiscreteSpace(int(space.n), int(space.start))
    if isinstance(space, gymnasium.spaces.Box):
        dtype = _STORED_AS.get(space.dtype.name, space.dtype.name)
        if dtype in DATA_TYPES:
            low, high = space.low.astype(float).ravel().tolist(), space.high.astype(float).ravel().tolist()
            return BoxSpace(dtype, tuple(space.shape), tuple(low), tuple(high))
    raise ConfigurationError(f"{env_id} has the {role} space {faults.shortened(str(space))}; {_SUPPORTED[role]}")


def stacked(space: BoxSpace, frames: int) -> BoxSpace:
    """Returns the space of `frames` observations stacked along the first axis. Images have channels first."""
    shape, low, high = space.shape, space.low * frames, space.high * frames
    if is_image(space):
        shape = channels_first(np.empty((1, *shape), np.bool_)).shape[1:]
        # One pair of bounds replaces thousands of equal ones, which every version of the policy would carry.
        low, high = (min(space.low),), (max(space.high),)
    return BoxSpace(space.dtype, (frames * shape[0], *shape[1:]), low, high)


def channels_first(images: NDArray[np.generic]) -> NDArray[np.generic]:
    """Returns [N, H, W] or [N, H, W, C] images as a view [N, C, H, W]; others are assumed to be channels first.

    The last axis is the channels if it is shorter than the second one.
    """
    if images.ndim == 3:
        return images[:, None]
    return np.moveaxis(images, 3, 1) if images.shape[3] < images.shape[1] else images


def segment_schema(spec: EnvironmentSpec, unroll_length: int) -> Schema:
    """Returns the columns of a segment of this environment. Raises `ConfigurationError` if observations are not a Box.

    Where frames are stacked, a segment holds each frame once, including those before its first step, and the age of
    every row: how many of the stacked frames before it belong to its episode.
    """
    if not isinstance(spec.observation, BoxSpace):
        raise ConfigurationError(f"{spec.id} has the observation space {spec.observation.shown()}; wrap it to be a Box")
    shape, before = spec.observation.shape, spec.frames - 1
    if before:
        shape = (shape[0] // spec.frames, *shape[1:])
    return Schema(
        unroll_length,
        (
            Column("observation", spec.observation.dtype, shape, Extent.STEP_AND_NEXT, before),
            Column("action", *spec.action.action_array),
            Column("reward", "float32"),
            Column("terminated", "bool"),
            Column("truncated", "bool"),
            Column("valid", "bool"),
            Column("behaviour_log_prob", "float32"),
            Column("discounted_return", "float32"),
            *([Column("frame_age", "uint8", (), Extent.STEP_AND_NEXT)] if before else []),
        ),
    )


class ActionMap:
    """Maps a policy's actions to the environment's, which are always in its space.

    Discrete actions are shifted to the space's start. Elements of boxes with finite bounds are scaled from [-1, 1] to
    the bounds, after a tanh if the policy squashes. All elements are clipped to their bounds. An element that is NaN,
    because the observation was, becomes the middle of its range.

    Actions have the dtype of the spec, or float64 where a bound is not exact in float32 and rounding could exceed it.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        if isinstance(space, BoxSpace):
            low, high = bounds(space)
            self._bounded = bounded(space)
            self._low, self._high = low, high
            unit_low, unit_high = np.where(self._bounded, low, -1.0), np.where(self._bounded, high, 1.0)
            self._scale = ((unit_high - unit_low) / 2.0).astype(np.float32)
            self._centre = ((unit_high + unit_low) / 2.0).astype(np.float32)
            exact = all(np.array_equal(side, side.astype(np.float32)) for side in (low, high))
            self._dtype = np.dtype(space.dtype if exact else np.float64)

    def __call__(self, action: NDArray[np.generic], *, squashed: bool = False) -> NDArray[np.generic]:
        """Maps <int64>[N] or <float32>[N, A] to the argument of a vector environment's `step`."""
        match self._space:
            case DiscreteSpace(start=start):
                shifted: NDArray[np.generic] = action.astype(np.int64) + start
                return shifted
            case BoxSpace():
                return self._scaled(action, self._space.shape, squashed)
            case _:
                assert_never(self._space)

    def _scaled(self, action: NDArray[np.generic], shape: tuple[int, ...], squashed: bool) -> NDArray[np.generic]:
        if squashed:
            action = np.where(self._bounded, np.tanh(action), action)
        scaled = action.astype(np.float32) * self._scale + self._centre
        scaled = np.where(np.isnan(scaled), self._centre, scaled)
        clipped = np.clip(scaled.astype(np.float64), self._low, self._high)
        shaped: NDArray[np.generic] = clipped.reshape(len(action), *shape).astype(self._dtype)
        return shaped
