"""Converts Gymnasium's spaces to specs, and a policy's actions to those of the environment."""

import math

import gymnasium
import numpy as np
from numpy.typing import NDArray

from penstock.acting import faults
from penstock.algo.spaces import bounded, bounds
from penstock.errors import ConfigurationError
from penstock.types import DATA_TYPES, BoxSpace, Column, DiscreteSpace, EnvironmentSpec, Extent, Schema, Space

_STORED_AS = {"float64": "float32", "int16": "int32", "uint16": "int32", "uint32": "int64"}
"""Element types that replace wider or rarer ones in segments."""


def describe(env_id: str, observation: gymnasium.Space[object], action: gymnasium.Space[object]) -> EnvironmentSpec:
    """Returns the spec of an environment's single spaces. Raises `ConfigurationError` for unsupported spaces."""
    return EnvironmentSpec(env_id, _describe(env_id, "observation", observation), _describe(env_id, "action", action))


def _describe(env_id: str, role: str, space: gymnasium.Space[object]) -> Space:
    if isinstance(space, gymnasium.spaces.Discrete):
        return DiscreteSpace(int(space.n), int(space.start))
    if isinstance(space, gymnasium.spaces.Box):
        dtype = _STORED_AS.get(space.dtype.name, space.dtype.name)
        if dtype in DATA_TYPES:
            low, high = space.low.astype(float).ravel().tolist(), space.high.astype(float).ravel().tolist()
            return BoxSpace(dtype, tuple(space.shape), tuple(low), tuple(high))
    shown = faults.shortened(str(space))
    raise ConfigurationError(f"{env_id} has the {role} space {shown}; supported are Box and Discrete")


def segment_schema(spec: EnvironmentSpec, unroll_length: int) -> Schema:
    """Returns the columns of a segment of this environment. Raises `ConfigurationError` if observations are not a Box.

    Where frames are stacked, a segment holds each frame once, including those before its first step, and the age of
    every row: how many of the stacked frames before it belong to its episode.
    """
    if not isinstance(spec.observation, BoxSpace):
        raise ConfigurationError(f"{spec.id} has observations that are no Box; wrap it so that they are")
    shape, before = spec.observation.shape, spec.frames - 1
    if before:
        shape = (shape[0] // spec.frames, *shape[1:])
    action = (
        Column("action", "int64")
        if isinstance(spec.action, DiscreteSpace)
        else Column("action", "float32", (math.prod(spec.action.shape),))
    )
    return Schema(
        unroll_length,
        (
            Column("observation", spec.observation.dtype, shape, Extent.STEP_AND_NEXT, before),
            action,
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

    Actions have the dtype of the spec, usually float32. They are float64 where a bound of the space is not exact in
    float32, because rounding could put them outside.
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
        if isinstance(self._space, DiscreteSpace):
            shifted: NDArray[np.generic] = action.astype(np.int64) + self._space.start
            return shifted
        if squashed:
            action = np.where(self._bounded, np.tanh(action), action)
        scaled = action.astype(np.float32) * self._scale + self._centre
        scaled = np.where(np.isnan(scaled), self._centre, scaled)
        clipped = np.clip(scaled.astype(np.float64), self._low, self._high)
        shaped: NDArray[np.generic] = clipped.reshape(len(action), *self._space.shape).astype(self._dtype)
        return shaped
