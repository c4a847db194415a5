"""Converts Gymnasium's spaces to specs and columns, and a policy's actions to actions of the environment."""

import math
from typing import Any, assert_never

import gymnasium
import numpy as np
from numpy.typing import NDArray

from penstock.acting.values.leaves import action_types, tree_of
from penstock.acting.values.masks import without_mask
from penstock.algo.network import AT_BOUND, Network
from penstock.algo.spaces import bounds, scaled
from penstock.errors import ConfigurationError
from penstock.types.block import Column, Extent, Schema
from penstock.types.spaces import (
    BoxSpace,
    DiscreteSpace,
    EnvironmentSpec,
    MultiBinarySpace,
    MultiDiscreteSpace,
    Tree,
    has_channels_last,
    is_image,
    is_stackable,
)
from penstock.types.spaces import channels_first as channels_first_shape


def describe(
    env_id: str, observation: gymnasium.Space[Any], action: gymnasium.Space[Any], *, mask_bits: int = 0
) -> EnvironmentSpec:
    """Returns the spec of an environment's single spaces. An action mask is not part of the observation.

    Raises `ConfigurationError` for unsupported spaces.
    """
    actions = tree_of(env_id, "action", action)
    observations = without_mask(tree_of(env_id, "observation", observation), actions)
    if not observations.leaves:
        raise ConfigurationError(
            f"{env_id} has an observation space with an action mask alone; add what the policy is to observe"
        )
    return EnvironmentSpec(
        env_id, observations, actions, mask_bits=mask_bits, action_types=action_types(actions, action)
    )


def stacked(space: BoxSpace, frames: int) -> BoxSpace:
    """Returns the space of `frames` observations stacked along the first axis. Images have channels first."""
    shape, low, high = space.shape, space.low, space.high
    if is_image(space):
        shape = channels_first_shape(shape)
        # One pair of bounds replaces thousands of equal ones, which every version of the policy would carry.
        low, high = (min(low),), (max(high),)
    elif len(low) == space.size:
        low, high = low * frames, high * frames
    return BoxSpace(space.dtype, (frames * shape[0], *shape[1:]), low, high)


def channels_first(images: NDArray[np.generic]) -> NDArray[np.generic]:
    """Returns [N, H, W] or [N, H, W, C] images as a view [N, C, H, W]; others are assumed to be channels first."""
    if images.ndim == 3:
        return images[:, None]
    return np.moveaxis(images, 3, 1) if has_channels_last(images.shape[1:]) else images


def segment_schema(
    spec: EnvironmentSpec, unroll_length: int, *, memory: tuple[int, int] | None = None, burn_in: int = 0
) -> Schema:
    """Returns the columns of a segment of this environment.

    Where frames are stacked, a segment holds each frame once, including those before its first row. With memory it also
    holds the `burn_in` rows before its first step, and the state before all of them. Both need the age of every row:
    the rows since its episode began, at most max(frames - 1, 1).

    Args:
        spec: Spaces of the environment.
        unroll_length: Steps of a segment, T.
        memory: Shape of one state of the policy, (parts, H); None without memory.
        burn_in: Rows before the first step from which the learner computes the state again.
    """
    before = burn_in if memory is not None else 0
    packed = -(-spec.mask_bits // 8)
    return Schema(
        unroll_length,
        (
            *_observation_columns(spec, before),
            *(
                Column(name, *space.action_array)
                for name, space in zip(spec.action.columns("action"), spec.action.spaces, strict=True)
            ),
            Column("reward", "float32"),
            Column("terminated", "bool"),
            Column("truncated", "bool"),
            Column("valid", "bool"),
            Column("behaviour_log_prob", "float32"),
            Column("discounted_return", "float32"),
            *([Column("frame_age", "uint8", (), Extent.STEP_AND_NEXT, before)] if spec.frames > 1 or memory else []),
            *([Column("action_mask", "uint8", (packed,))] if packed else []),
            *([Column("memory", "float32", memory, Extent.SEGMENT)] if memory else []),
        ),
    )


class ActionMap:
    """Maps a policy's actions to values in the environment's space, leaf by leaf.

    Choices are shifted to the start of their space. Elements of boxes with finite bounds are scaled from [-1, 1] to the
    bounds (`algo.spaces.scaled`), after a tanh if the policy squashes. All elements are clipped to their bounds. An
    element that is NaN, because the observation was, becomes the middle of its range.

    Elements of boxes have the dtype of the spec, or float64 where a bound is not exact in float32 and rounding could
    exceed it. Choices are int64, and bits int8.

    Attributes:
        maps: The map of each leaf.
    """

    def __init__(self, tree: Tree, network: Network) -> None:
        """Prepares the actions of policies of this architecture."""
        self.maps = tuple(
            BoxMap(space, network) if isinstance(space, BoxSpace) else ChoiceMap(space) for space in tree.spaces
        )

    def __call__(self, action: tuple[NDArray[np.generic], ...]) -> tuple[NDArray[np.generic], ...]:
        """Maps <int64>[N], <int64>[N, k] or <float32>[N, A] of each leaf to [N, ...] in the shape of its space."""
        return tuple([mapped(leaf) for mapped, leaf in zip(self.maps, action, strict=True)])


class ChoiceMap:
    """The map of one leaf of choices.

    Attributes:
        start: <int64>[] or <int64>[k] first value of each choice.
        shape: Shape of one action of the environment.
        dtype: Element type of the result.
    """

    def __init__(self, space: DiscreteSpace | MultiDiscreteSpace | MultiBinarySpace) -> None:
        self.start = np.zeros((), np.int64)
        self.dtype: np.dtype[Any] = np.dtype(np.int64)
        self.shape: tuple[int, ...] = ()
        match space:
            case DiscreteSpace(start=start):
                self.start = np.array(start, np.int64)
            case MultiDiscreteSpace(start=starts, shape=shape):
                self.start, self.shape = np.array(starts, np.int64), shape
            case MultiBinarySpace(shape=shape):
                self.shape, self.dtype = shape, np.dtype(np.int8)
            case _:
                assert_never(space)
        self._shifts = bool(self.start.any())
        self._is_same = isinstance(space, DiscreteSpace) and not self._shifts

    def __call__(self, action: NDArray[np.generic]) -> NDArray[np.generic]:
        """Maps <int64>[N] or <int64>[N, k] to [N, *shape]."""
        if self._is_same:
            return action.astype(np.int64, copy=False)
        shifted = action.astype(np.int64, copy=False)
        if self._shifts:
            shifted = shifted + self.start
        shaped: NDArray[np.generic] = shifted.reshape(len(action), *self.shape).astype(self.dtype, copy=False)
        return shaped

    def inverse(self, value: NDArray[np.generic]) -> NDArray[np.int64]:
        """Maps one action of the environment to <int64>[k], one number for each choice."""
        return value.reshape(-1).astype(np.int64) - self.start


class BoxMap:
    """The map of one leaf of continuous actions with A elements.

    Attributes:
        squashes: Whether elements that are scaled pass through a tanh.
        scaled: <bool>[A] elements that are scaled to their bounds.
        scale, centre, low, high: <float>[A], or [] if all are equal: scale, offset and bounds, in the element type in
            which the map computes.
        shape: Shape of one action of the environment.
        dtype: Element type of the result.
    """

    def __init__(self, space: BoxSpace, network: Network) -> None:
        low, high = bounds(space)
        self.shape, self.scaled, self.squashes = space.shape, scaled(space, network.widest_range), False
        if network.squash_actions:
            self.squashes = bool(self.scaled.any())
        unit_low, unit_high = np.where(self.scaled, low, -1.0), np.where(self.scaled, high, 1.0)
        with np.errstate(over="ignore"):
            exact = all(np.array_equal(side, side.astype(np.float32)) for side in (low, high))
        self.dtype = np.dtype(space.dtype if exact else np.float64)
        # float64 takes twice the time, and is needed only where float32 can't hold the bounds.
        self._computed_as = np.dtype(np.float32 if exact else np.float64)
        self.scale, self.centre, self.low, self.high = (
            _once(each.astype(self._computed_as))
            for each in ((unit_high - unit_low) / 2.0, (unit_high + unit_low) / 2.0, low, high)
        )

    def __call__(self, action: NDArray[np.generic]) -> NDArray[np.generic]:
        """Maps <float32>[N, A] to [N, *shape]."""
        if self.squashes:
            action = np.where(self.scaled, np.tanh(action), action)
        mapped = action.astype(self._computed_as, copy=False) * self.scale
        np.add(mapped, self.centre, out=mapped)
        flat = mapped.ravel("K")
        # A sum of squares is NaN only if one of them is.
        if math.isnan(flat.dot(flat)):
            mapped = np.where(np.isnan(mapped), self.centre, mapped)
        np.maximum(mapped, self.low, out=mapped)
        np.minimum(mapped, self.high, out=mapped)
        shaped: NDArray[np.generic] = mapped.reshape(len(action), *self.shape).astype(self.dtype, copy=False)
        return shaped

    def inverse(self, value: NDArray[np.generic]) -> NDArray[np.float64]:
        """Maps one action of the environment, clipped to its bounds, to <float64>[A].

        A tanh never reaches its bounds, so values there become `AT_BOUND` before its inverse.
        """
        flat = value.reshape(-1).astype(np.float64)
        unit: NDArray[np.float64] = (np.clip(flat, self.low, self.high) - self.centre) / self.scale
        if self.squashes:
            unit = np.where(self.scaled, np.arctanh(np.clip(unit, -AT_BOUND, AT_BOUND)), unit)
        return unit


def _once(values: NDArray[Any]) -> NDArray[Any]:
    """Returns <number>[A], or one element as <number>[] if all are equal: operations with that take half the time."""
    return values[0].reshape(()) if (values == values[0]).all() else values


def _observation_columns(spec: EnvironmentSpec, burn_in: int) -> list[Column]:
    columns = []
    for name, space in zip(spec.observation.columns("observation"), spec.observation.spaces, strict=True):
        dtype, shape = space.observation_array
        lead = burn_in
        if spec.frames > 1 and is_stackable(space):
            shape, lead = (shape[0] // spec.frames, *shape[1:]), burn_in + spec.frames - 1
        columns.append(Column(name, dtype, shape, Extent.STEP_AND_NEXT, lead))
    return columns
