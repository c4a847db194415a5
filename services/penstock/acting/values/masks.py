"""Action masks: where an environment returns them, and their conversion to one row of bits.

A mask has one element for each alternative of each choice of the action, in the order of the leaves: n for Discrete(n),
sum(n) for MultiDiscrete, and the pair (0, 1) for each element of MultiBinary. This module does not import torch.
"""

import enum
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper
from numpy.typing import NDArray

from penstock.errors import ConfigurationError
from penstock.types.spaces import Path, Tree

KEY = "action_mask"
"""Key of the mask in an observation that is a Dict, and in an info."""

METHOD = "action_masks"
"""Name of the method that returns the mask, as sb3-contrib names it."""

_REMEDY = "correct it, or set environment.action_masks to false"


class Place(enum.Enum):
    """Place in which an environment returns its masks; the value is the place in messages."""

    OBSERVATION = f'the observation\'s leaf "{KEY}"'
    METHOD = f"the method {METHOD}()"
    INFO = f'info["{KEY}"]'


class MaskSource:
    """The masks of an environment. `bits` is the number of elements of a mask.

    A mask is an array of numbers or booleans, of which zeros and False are illegal, or nested like the action space.
    Elements of MultiDiscrete may also be a tuple of arrays.
    """

    def __init__(self, place: Place, action: Tree) -> None:
        """Describes the masks in this place, for a space of actions with choices."""
        self.place, self.bits, self._action = place, sum(action.choices), action
        self._paths = [leaf.path for leaf in action.leaves if leaf.space.choices]
        self._starts = [0, *accumulate(action.choices)][:-1]

    def reader(self, env: gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]) -> Callable[[Any, Any], Any]:
        """Returns a function from an environment's observation and info to its mask, None if there is none."""
        match self.place:
            case Place.OBSERVATION:
                return lambda observation, info: observation.get(KEY)
            case Place.INFO:
                return lambda observation, info: info.get(KEY)
            case Place.METHOD:
                method = _method(env)
                assert method is not None
                return lambda observation, info: method()

    def row(self, mask: Any) -> NDArray[np.bool_]:
        """Returns <bool>[bits] of an environment's mask. Raises `ConfigurationError` if it can't be used."""
        values = mask if type(mask) is np.ndarray and mask.dtype != object else self._gathered(mask)
        if values.dtype.kind not in "biuf":
            raise self._refusal(f"of type {values.dtype}, where numbers or booleans are expected")
        if values.size != self.bits:
            found = f"of {values.size} elements, where {self._action.shown()} has {self.bits} alternatives"
            if values.size == math.prod(self._action.choices):
                raise self._refusal(found, "for a mask of all combinations, add the wrapper OneChoice")
            raise self._refusal(found)
        row: NDArray[np.bool_] = values.ravel() != 0
        return row

    def rows(self, masks: Any, count: int) -> NDArray[np.bool_]:
        """Returns <bool>[N, bits] of a vector environment's masks. Raises as `row`."""
        if isinstance(masks, np.ndarray):
            return np.stack([self.row(mask) for mask in masks])
        try:
            parts = [values.reshape(count, -1) for values in _gather(masks, self._paths)]
        except ValueError:
            raise self._refusal(
                f"that is a {type(masks).__name__}, where arrays of {count} rows are expected"
            ) from None
        return np.stack([self.row(row) for row in np.concatenate(parts or [np.zeros((count, 0))], axis=1)])

    def find_illegal(self, masks: NDArray[np.bool_]) -> tuple[int, str] | None:
        """Returns the first row of <bool>[N, bits] with a choice without a legal action, and why; None if all have."""
        if masks.all():
            return None
        legal = np.logical_or.reduceat(masks, self._starts, axis=1)
        if legal.all():
            return None
        row, choice = np.argwhere(~legal)[0].tolist()
        which = "" if len(self._starts) == 1 else f" in choice {choice}"
        return row, (
            f"an action mask from {self.place.value} without a legal action{which}; end the episode where none is left,"
            " or correct the mask"
        )

    def highest(self, scores: NDArray[Any]) -> tuple[NDArray[np.generic], ...]:
        """Returns an action of a policy for each row of <number>[N, bits]: the highest alternative of each choice.

        The row of a mask gives legal actions. Elements of boxes are 0.
        """
        bounds = [*self._starts, self.bits]
        firsts = [scores[:, first:end].argmax(1) for first, end in pairwise(bounds)]
        actions = []
        for space in self._action.spaces:
            dtype, shape = space.action_array
            chosen, firsts = firsts[: len(space.choices)], firsts[len(space.choices) :]
            rows = np.stack(chosen, axis=1) if chosen else np.zeros(())
            actions.append(
                np.broadcast_to(rows.reshape(-1, *shape) if chosen else rows, (len(scores), *shape)).astype(dtype)
            )
        return tuple(actions)

    def _gathered(self, mask: Any) -> NDArray[np.generic]:
        try:
            parts = [values.ravel() for values in _gather(mask, self._paths)]
        except ValueError:
            raise self._refusal(f"that is a {type(mask).__name__}, where an array is expected") from None
        return np.concatenate(parts) if parts else np.zeros(0, np.bool_)

    def _refusal(self, found: str, remedy: str = _REMEDY) -> ConfigurationError:
        return ConfigurationError(f"an action mask from {self.place.value} {found}; {remedy}")


def find(
    env: gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any],
    observation: gymnasium.Space[Any],
    action: Tree,
    first_info: Callable[[], Mapping[str, Any]],
) -> MaskSource | None:
    """Returns where an environment returns its masks; None if it has none, or if actions are not choices.

    `observation` is the space of one observation. `first_info` resets the environment and returns the info; it is
    called only if masks are found neither in the observation nor by the method.
    """
    if not action.choices:
        return None
    if has_mask_leaf(observation):
        return MaskSource(Place.OBSERVATION, action)
    if _method(env) is not None:
        return MaskSource(Place.METHOD, action)
    return MaskSource(Place.INFO, action) if first_info().get(KEY) is not None else None


def has_mask_leaf(observation: gymnasium.Space[Any]) -> bool:
    """Returns whether an observation space is a Dict with a mask."""
    return isinstance(observation, gymnasium.spaces.Dict) and KEY in observation.spaces


def without_mask(observation: Tree, action: Tree) -> Tree:
    """Returns the leaves of an observation that are not an action mask, which has a meaning only if actions are
    choices.

    A mask is not part of a policy's observation, even where environment.action_masks is false.
    """
    if not action.choices:
        return observation
    return Tree(tuple(leaf for leaf in observation.leaves if leaf.path[:1] != (KEY,)))


def _method(env: gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]) -> Callable[[], Any] | None:
    if isinstance(env, gymnasium.Env):
        found = env.get_wrapper_attr(METHOD) if env.has_wrapper_attr(METHOD) else None
    else:
        # Gymnasium's wrappers of vector environments hide their attributes.
        while isinstance(env, VectorWrapper) and not hasattr(env, METHOD):
            env = env.env
        found = getattr(env, METHOD, None)
    return found if callable(found) else None


def _gather(value: Any, paths: Sequence[Path]) -> Iterator[NDArray[np.generic]]:
    """Yields the arrays in a nested mask, in the order of the leaves with these paths."""
    if isinstance(value, Mapping):
        for key in dict.fromkeys(path[0] for path in paths if path):
            if key in value:
                yield from _gather(value[key], [path[1:] for path in paths if path and path[0] == key])
    elif isinstance(value, (tuple, list)) and any(
        np.ndim(element) or isinstance(element, Mapping) for element in value
    ):
        for position, element in enumerate(value):
            yield from _gather(element, [path[1:] for path in paths if path and path[0] == position])
    elif value is not None:
        yield np.asarray(value)
