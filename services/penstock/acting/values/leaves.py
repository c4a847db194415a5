"""Trees of Gymnasium's spaces, and their samples as tuples of arrays.

`tree_of` describes a space by its leaves, or refuses it in one line. `flatten` takes the values of the leaves out of a
sample or a batch, and `unflatten` nests them again. This module does not import torch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from penstock.errors import ConfigurationError
from penstock.machine import foreign_errors
from penstock.types.block import DATA_TYPES
from penstock.types.spaces import (
    ACTION_TYPES,
    BoxSpace,
    DiscreteSpace,
    Leaf,
    MultiBinarySpace,
    MultiDiscreteSpace,
    Path,
    Space,
    Tree,
)

Role = Literal["observation", "action"]

SUPPORTED: dict[Role, str] = {
    "observation": "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of them are supported. Convert it in"
    " a wrapper, such as gymnasium.wrappers.TransformObservation",
    "action": "Discrete, MultiDiscrete, MultiBinary, Box of floats or of few integers, and Dict and Tuple of them are"
    " supported. Convert it in a wrapper, such as gymnasium.wrappers.TransformAction",
}

_STORED_AS = {"float64": "float32", "int16": "int32", "uint16": "int32", "uint32": "int64"}
"""Element types that replace wider or rarer ones in segments."""

_MOST_ALTERNATIVES = 4096
"""Most alternatives, over all elements, at which a box of integers is a space of choices."""


def tree_of(env_id: str, role: Role, space: gymnasium.Space[Any]) -> Tree:
    """Returns the leaves of an environment's observation or action space, in the order of the space.

    Texts in a Dict or a Tuple of observations are left out (`left_out`), because a policy can't read them, and spaces
    without elements, because they have no values. Raises `ConfigurationError`, in one line with the leaf and a remedy,
    for a space that is not supported.
    """
    leaves = tuple(_leaves(env_id, role, space, ()))
    if not leaves:
        what = "texts alone" if left_out(space) else "spaces without elements alone"
        raise _refusal(env_id, role, (), f"a {type(space).__name__} of {what}")
    return Tree(leaves)


def left_out(space: gymnasium.Space[Any], path: Path = ()) -> tuple[str, ...]:
    """Returns the names of the texts of an observation space that are not leaves of its tree."""
    return tuple(
        name
        for key, child in members(space)
        for name in ([_name((*path, key))] if is_text(child) else left_out(child, (*path, key)))
    )


def space_at(space: gymnasium.Space[Any], path: Path) -> gymnasium.Space[Any]:
    """Returns the space of the leaf at this path."""
    for key in path:
        space = dict(members(space))[key]
    return space


def flatten(tree: Tree, sample: Any) -> tuple[Any, ...]:
    """Returns the values of the leaves in a sample or a batch of the space, without copies, in the order of the tree.

    Raises `ConfigurationError`, in one line, if the sample lacks a leaf.
    """
    if not tree.leaves[0].path:
        return (sample,)
    return tuple(_value_at(sample, leaf.path) for leaf in tree.leaves)


def unflatten(tree: Tree, leaves: Sequence[Any]) -> Any:
    """Returns the sample or the batch of the space with these values of the leaves, without copies."""
    return _nested([(leaf.path, value) for leaf, value in zip(tree.leaves, leaves, strict=True)])


def mapped(batch: Any, function: Callable[[Any], Any]) -> Any:
    """Applies a function to the values in nested dicts and tuples, which need not be of a space."""
    if isinstance(batch, Mapping):
        return {key: mapped(child, function) for key, child in batch.items()}
    return tuple(mapped(child, function) for child in batch) if isinstance(batch, tuple) else function(batch)


def row_of(batch: Any, index: int) -> Any:
    """Returns one row of a nested batch, without copies."""
    return mapped(batch, lambda leaf: leaf[index])


def check_keys(space: gymnasium.Space[Any], sample: Any) -> None:
    """Raises `ConfigurationError`, in one line, if a sample has keys or elements that the space does not have."""
    if isinstance(space, spaces.Dict) and isinstance(sample, Mapping):
        if not sample.keys() <= space.spaces.keys():
            extra, keys = sorted(map(str, sample.keys() - space.spaces.keys())), ", ".join(space.spaces)
            raise ConfigurationError(
                f"an observation with the key {extra[0]!r}, where its space has {keys}; remove the key, or add it to"
                " the space"
            )
    elif isinstance(space, spaces.Tuple) and isinstance(sample, (tuple, list)) and len(sample) > len(space.spaces):
        raise ConfigurationError(
            f"an observation with a tuple of {len(sample)}, where its space has a tuple of {len(space.spaces)}; remove"
            " the last elements, or add them to the space"
        )
    for key, child in members(space):
        if isinstance(child, (spaces.Dict, spaces.Tuple)):
            check_keys(child, _value_at(sample, (key,)))


def action_types(tree: Tree, space: gymnasium.Space[Any]) -> tuple[str, ...]:
    """Returns `EnvironmentSpec.action_types` of a space of actions."""
    types = []
    for leaf in tree.leaves:
        dtype = np.dtype(space_at(space, leaf.path).dtype).name
        types.append(dtype if dtype in ACTION_TYPES and dtype != _POLICY_TYPES.get(type(leaf.space)) else "")
    return tuple(types) if any(types) else ()


class ActionForm:
    """Gives a policy's actions, in the units of the environment, the nesting and the integer types of its space."""

    def __init__(self, tree: Tree, types: Sequence[str]) -> None:
        """Takes the types of the leaves (`EnvironmentSpec.action_types`)."""
        self._tree = tree
        # ActionMap chooses the types without a name.
        self._types = [np.dtype(each) if each else None for each in types] or [None] * len(tree.leaves)
        self._plain = not tree.leaves[0].path

    def batch(self, action: tuple[NDArray[np.generic], ...]) -> Any:
        """Converts leaves [N, ...] to a batch of actions."""
        cast = self._cast(action)
        return cast[0] if self._plain else unflatten(self._tree, cast)

    def rows(self, action: tuple[NDArray[np.generic], ...]) -> Any:
        """Converts leaves [N, ...] to N actions, which can be indexed."""
        cast = self._cast(action)
        if self._plain:
            return cast[0]
        return [unflatten(self._tree, row) for row in zip(*cast, strict=True)]

    def single(self, action: tuple[NDArray[np.generic], ...]) -> Any:
        """Converts leaves [1, ...] to the one action. Only choices without a shape are scalars, as in a sample."""
        cast = self._cast(action)
        row = [
            leaf[0] if type(each) is DiscreteSpace else leaf[0, ...]
            for leaf, each in zip(cast, self._tree.spaces, strict=True)
        ]
        return unflatten(self._tree, row)

    def _cast(self, action: tuple[NDArray[np.generic], ...]) -> list[NDArray[np.generic]]:
        return [
            leaf if dtype is None or leaf.dtype == dtype else leaf.astype(dtype)
            for leaf, dtype in zip(action, self._types, strict=True)
        ]


_POLICY_TYPES: dict[type[Space], str] = {DiscreteSpace: "int64", MultiDiscreteSpace: "int64", MultiBinarySpace: "int8"}
"""Element types of a policy's integers (`acting.values.spaces.ActionMap`)."""


def _leaves(env_id: str, role: Role, space: gymnasium.Space[Any], path: Path) -> Iterator[Leaf]:
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        yield Leaf(path, _described(env_id, role, space, path))
        return
    if not space.spaces:
        raise _refusal(env_id, role, path, f"an empty {type(space).__name__}")
    for key, child in members(space):
        if isinstance(space, spaces.Dict) and not isinstance(key, str):
            raise _refusal(env_id, role, path, f"a Dict with the key {key!r}, which is not text")
        if role == "action" or not (is_text(child) or _is_empty(child)):
            yield from _leaves(env_id, role, child, (*path, key))


def _described(env_id: str, role: Role, space: gymnasium.Space[Any], path: Path) -> Space:
    if _is_empty(space):
        raise _refusal(env_id, role, path, f"{foreign_errors.shortened(str(space))}, which has no elements")
    match space:
        case spaces.Discrete():
            return DiscreteSpace(int(space.n), int(space.start))
        case spaces.MultiDiscrete():
            n, start = space.nvec.ravel().tolist(), space.start.ravel().tolist()
            return MultiDiscreteSpace(tuple(space.nvec.shape), tuple(n), tuple(start))
        case spaces.MultiBinary():
            return MultiBinarySpace(tuple(space.shape))
        case spaces.Box():
            described = _described_box(role, space)
            if described is not None:
                return described
            found = foreign_errors.shortened(str(space))
            if role == "observation" or space.dtype.kind == "f":
                found += f", whose elements have the type {space.dtype}, not float64, int64 or a smaller one"
            raise _refusal(env_id, role, path, found)
        case _:
            raise _refusal(env_id, role, path, type(space).__name__)


def _described_box(role: Role, space: spaces.Box) -> Space | None:
    if role == "action" and space.dtype.kind in "iu":
        return _choices_of(space)
    dtype = _STORED_AS.get(space.dtype.name, space.dtype.name)
    if dtype not in DATA_TYPES or (role == "action" and not dtype.startswith("float")):
        return None
    bounds = [side.astype(float).ravel() for side in (space.low, space.high)]
    if role == "observation" and len(space.shape) > 1 and all((side == side[0]).all() for side in bounds):
        # One pair of bounds replaces thousands of equal ones, which every version of the policy would carry.
        bounds = [side[:1] for side in bounds]
    low, high = (tuple(side.tolist()) for side in bounds)
    return BoxSpace(dtype, tuple(space.shape), low, high)


def _choices_of(space: spaces.Box) -> MultiDiscreteSpace | None:
    """Returns a box of integers as choices among integers; None if there are too many alternatives."""
    low = [int(bound) for bound in space.low.ravel()]
    n = [int(high) - first + 1 for first, high in zip(low, space.high.ravel(), strict=True)]
    return MultiDiscreteSpace(tuple(space.shape), tuple(n), tuple(low)) if sum(n) <= _MOST_ALTERNATIVES else None


def members(space: gymnasium.Space[Any]) -> list[tuple[str | int, gymnasium.Space[Any]]]:
    """Returns the keys or positions, and the spaces, in a Dict or a Tuple; nothing for another space."""
    if isinstance(space, spaces.Dict):
        return list(space.spaces.items())
    return list(enumerate(space.spaces)) if isinstance(space, spaces.Tuple) else []


def is_text(space: gymnasium.Space[Any]) -> bool:
    """Returns whether the members of a space are texts."""
    # Libraries have their own spaces of texts, such as MiniGrid's missions.
    return isinstance(space, spaces.Text) or (space.dtype is not None and np.dtype(space.dtype).kind == "U")


def _is_empty(space: gymnasium.Space[Any]) -> bool:
    return 0 in (space.shape or ())


def _value_at(sample: Any, path: Path) -> Any:
    value = sample
    for depth, key in enumerate(path):
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            raise ConfigurationError(
                f"an observation without {_name(path[: depth + 1])!r}, where {_kind(value)} was received; it must have"
                " every leaf of its space"
            ) from None
    return value


def _nested(members: Sequence[tuple[Path, Any]]) -> Any:
    if members[0][0] == ():
        return members[0][1]
    groups: dict[str | int, list[tuple[Path, Any]]] = {}
    for path, value in members:
        groups.setdefault(path[0], []).append((path[1:], value))
    children = {key: _nested(group) for key, group in groups.items()}
    return children if isinstance(members[0][0][0], str) else tuple(children.values())


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a dict of {', '.join(map(str, value)) or 'nothing'}"
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else f"a value of type {type(value).__name__}"


def _name(path: Path) -> str:
    return ".".join(map(str, path))


def _refusal(env_id: str, role: Role, path: Path, found: str) -> ConfigurationError:
    if path:
        place = f"has {found} at {_name(path)} of its {role} space"
    else:
        place = f"has an {role} space that is {found}" if found.startswith("a") else f"has the {role} space {found}"
    return ConfigurationError(f"{env_id} {place}; {SUPPORTED[role]}")
