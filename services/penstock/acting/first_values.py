"""Checks the values that a single environment's `reset` and `step` return, for `acting.environment_check`.

Values that no run could train on are errors. Values that are probably a mistake are warnings.
"""

import math
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.acting import leaves
from penstock.acting.leaf_buffers import LeafBuffer, Unusable
from penstock.acting.returned_values import UNREADABLE, array_of, number_of, truth_of
from penstock.errors import ConfigurationError

EXTREME = 1e10
"""Largest magnitude without a warning. Larger values outweigh all others, even after standardisation."""

_TOLERANCE = 1e-3
"""Largest excess of a rounded observation over its bounds, as a share of the space's range."""

_CORRECT_SPACE = "correct observation_space, or what is returned"
_GYM_STEP = "step must return observation, reward, terminated, truncated and info"
_GYM_RESET = "reset must return observation and info"


@dataclass(frozen=True, slots=True)
class Values:
    """Warnings about the values that `reset` or `step` returned, one line each, and whether the episode is over."""

    warnings: list[str]
    ended: bool = False


def check_magnitude(name: str, stage: str, values: ArrayLike, largest: float) -> None:
    """Raises `ConfigurationError` if a value of an observation or a reward is above this magnitude."""
    found = float(np.abs(array_of(values).astype(np.float64)).max(initial=0.0))
    if found > largest:
        remedy = f"scale it to about 1, or raise environment.largest_magnitude, which is {largest:g}"
        raise _refusal(name, stage, f"a value of magnitude {found:g}", remedy)


def of_reset(name: str, result: object, space: gymnasium.Space[Any]) -> Values:
    """Checks the values that `reset` returned. Raises `ConfigurationError` if they can't be trained on."""
    if not isinstance(result, tuple) or len(result) != 2:
        raise _refusal(name, "reset", f"{_kind(result)}, where two values were expected", _GYM_RESET)
    observation, info = result
    _check_info(name, "reset", info)
    return Values(_check_observation(name, "reset", observation, space))


def of_step(name: str, result: object, space: gymnasium.Space[Any]) -> Values:
    """Checks the values that `step` returned. Raises `ConfigurationError` if they can't be trained on."""
    if not isinstance(result, tuple) or len(result) != 5:
        raise _refusal(name, "step", f"{_kind(result)}, where five values were expected", _GYM_STEP)
    observation, reward, terminated, truncated, info = result
    _check_info(name, "step", info)
    warnings = _check_observation(name, "step", observation, space) + _check_reward(name, reward)
    ended = False
    for what, value in (("terminated", terminated), ("truncated", truncated)):
        try:
            ended |= truth_of(value)
        except UNREADABLE:
            raise _refusal(name, "step", f"{what} as {_kind(value)}", "it must be True or False") from None
        warnings += _of_one_element(name, what, value, "True or False")
    return Values(warnings, ended)


def check_rows(name: str, stage: str, what: str, rows: NDArray[np.generic]) -> None:
    """Raises `ConfigurationError` if rows of a vector environment hold NaN or infinity as float32."""
    with np.errstate(over="ignore"):
        finite = np.isfinite(np.asarray(rows, np.float32))
    if not finite.all():
        row = tuple(int(index) for index in np.argwhere(~finite)[0])
        raise _refusal(name, stage, f"{what} of {rows[row]} in environment {row[0]}", "it must be finite in float32")


def _check_observation(name: str, stage: str, observation: Any, space: gymnasium.Space[Any]) -> list[str]:
    tree = leaves.tree_of(name, "observation", space)
    try:
        leaves.check_keys(space, observation)
        values = leaves.flatten(tree, observation)
    except ConfigurationError as error:
        found, _, remedy = str(error).partition("; ")
        raise _refusal(name, stage, found, remedy) from None
    warnings = []
    for leaf, value in zip(tree.leaves, values, strict=True):
        part = leaves.space_at(space, leaf.path)
        if isinstance(part, gymnasium.spaces.Box):
            warnings += _check_box(name, stage, value, part, leaf.place)
            continue
        try:
            LeafBuffer(leaf, part, 1).fill([value])
        except Unusable as fault:
            raise _refusal(name, stage, fault.what, _CORRECT_SPACE) from None
    return warnings


def _check_box(name: str, stage: str, observation: Any, space: gymnasium.spaces.Box, place: str) -> list[str]:
    try:
        values = array_of(observation)
    except UNREADABLE as error:
        raise _refusal(
            name, stage, f"an observation{place} that is not an array ({error})", "return an array"
        ) from None
    if values.shape != space.shape:
        found = f"an observation of shape {values.shape}{place}, where the space has {space.shape}"
        raise _refusal(name, stage, found, _CORRECT_SPACE)
    if not np.can_cast(values.dtype, space.dtype, "same_kind"):
        found = f"an observation of {values.dtype}{place}, where the space has {space.dtype}"
        raise _refusal(name, stage, found, _CORRECT_SPACE)
    with np.errstate(over="ignore"):
        finite = np.isfinite(values.astype(np.float32))
    if not finite.all():
        index = tuple(int(part) for part in np.argwhere(~finite)[0])
        found = f"an observation{place} with {values[index]} at {list(index)}"
        raise _refusal(name, stage, found, "observations must be finite in float32")
    return _strange_observation(name, f"{stage} returned an observation{place}", values.astype(np.float64), space)


def _strange_observation(name: str, what: str, values: NDArray[np.float64], space: gymnasium.spaces.Box) -> list[str]:
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        slack = _TOLERANCE * np.where(np.isfinite(high - low), high - low, np.maximum(1.0, np.abs(values)))
    outside = (values < low - slack) | (values > high + slack)
    if outside.any():
        index = tuple(int(part) for part in np.argwhere(outside)[0])
        return [
            f"{name}: {what} with {values[index]:g} at {list(index)}, outside of its space's"
            f" {low[index]:g} to {high[index]:g}"
        ]
    if np.abs(values).max() > EXTREME:
        return [f"{name}: {what} with {np.abs(values).max():g}; scale it to about 1"]
    return []


def _check_reward(name: str, reward: Any) -> list[str]:
    expected = "a reward must be one finite number"
    try:
        value = number_of(reward)
    except UNREADABLE:
        if shape := _shape_of(reward):
            remedy = f"{expected}; add its elements, for instance in a wrapper"
            raise _refusal(name, "step", f"a reward of shape {shape}", remedy) from None
        found = "no reward (None)" if reward is None else f"the reward {_kind(reward)}"
        raise _refusal(name, "step", found, expected) from None
    with np.errstate(over="ignore"):
        fits = math.isfinite(np.float32(value))
    if not fits:
        raise _refusal(name, "step", f"a reward of {value:g}", f"{expected}, also in float32")
    warnings = _of_one_element(name, "a reward", reward, "a number")
    if abs(value) > EXTREME:
        warnings.append(f"{name}: step returned a reward of {value:g}; scale rewards to about 1")
    return warnings


def _of_one_element(name: str, what: str, value: Any, expected: str) -> list[str]:
    if shape := _shape_of(value):
        return [
            f"{name}: step returned {what} of shape {shape}, where {expected} was expected; its one element is used"
        ]
    return []


def _shape_of(value: Any) -> tuple[int, ...]:
    """Returns the shape of an array, a tensor or a list; () for all else."""
    if hasattr(value, "shape"):
        return tuple(value.shape)
    return np.shape(np.array(value, object)) if isinstance(value, (list, tuple)) else ()


def _check_info(name: str, stage: str, info: object) -> None:
    if not isinstance(info, dict):
        raise _refusal(name, stage, f"an info that is {_kind(info)}", "it must be a dict")


def _kind(value: object) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    return f"{type(value).__name__} {value!r:.80}"


def _refusal(name: str, stage: str, found: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(f"the environment {name!r}: {stage} returned {found}; {remedy}")
