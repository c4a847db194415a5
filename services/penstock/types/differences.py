"""Differences between two environment specs, in one line for error messages."""

import dataclasses
import textwrap
from collections.abc import Sequence
from itertools import zip_longest

from penstock.types.spaces import EnvironmentSpec, Path, Space, Tree

Pair = tuple[str, str]
"""One difference: the text for either side."""

_MOST = 3
"""Differences shown."""
_WIDTH = 120
"""Characters shown of one space."""


def same_spaces(one: EnvironmentSpec, other: EnvironmentSpec) -> bool:
    """Returns whether one policy fits both specs, whose ids may differ."""
    return dataclasses.replace(one, id=other.id) == other


def contrast(one: EnvironmentSpec, other: EnvironmentSpec, more: Sequence[Pair] = ()) -> Pair:
    """Returns the id of each spec, with its values that differ from the other's, and then the values in `more`.

    At most three differences are shown.
    """
    pairs = [
        *_of_trees("observation", one.observation, other.observation),
        *_of_trees("action", one.action, other.action),
        *([(f"{one.frames} frames", f"{other.frames} frames")] if one.frames != other.frames else []),
        *([(_of_mask(one), _of_mask(other))] if one.mask_bits != other.mask_bits else []),
        *more,
    ]
    first, second = ([pair[side] for pair in pairs[:_MOST]] for side in (0, 1))
    rest = [f"{len(pairs) - _MOST} other differences"] if len(pairs) > _MOST else []
    return _listed(one.id, [*first, *rest]), _listed(other.id, [*second, *rest])


def _listed(env_id: str, values: list[str]) -> str:
    return f"{env_id} with {', '.join(values)}" if values else env_id


def _of_mask(spec: EnvironmentSpec) -> str:
    return f"action masks of {spec.mask_bits} bits" if spec.mask_bits else "no action masks"


def _of_trees(role: str, one: Tree, other: Tree) -> list[Pair]:
    ours, theirs = ({leaf.path: leaf.space for leaf in tree.leaves} for tree in (one, other))
    if ours == theirs:
        orders = [f"{role} parts in the order {_short(repr([leaf.name for leaf in t.leaves]))}" for t in (one, other)]
        return [] if one == other else [(orders[0], orders[1])]
    pairs = ((path, ours.get(path), theirs.get(path)) for path in {**ours, **theirs})
    return [_of_leaves(_place(role, path), mine, yours) for path, mine, yours in pairs if mine != yours]


def _place(role: str, path: Path) -> str:
    return f"{role} {_short(repr('.'.join(map(str, path))))}" if path else role


def _of_leaves(place: str, one: Space | None, other: Space | None) -> Pair:
    if one is None or other is None:
        first, second = (
            f"no {place}" if space is None else f"{place} {_short(space.shown())}" for space in (one, other)
        )
        return first, second
    first, second = (_short(space.shown()) for space in (one, other))
    details = _first_difference(one, other) if first == second else ("", "")
    return f"{place} {first}{details[0]}", f"{place} {second}{details[1]}"


def _first_difference(one: Space, other: Space) -> Pair:
    """Returns the first element that differs between two spaces whose short forms are the same."""
    for field in dataclasses.fields(one):
        mine, yours = getattr(one, field.name), getattr(other, field.name)
        if mine != yours and isinstance(mine, tuple) and mine and yours:
            # A single bound holds for all elements.
            elements = zip_longest(mine, yours, fillvalue=min(mine, yours, key=len)[-1])
            for index, (first, second) in enumerate(elements):
                if first != second:
                    return f" with {field.name}[{index}] {first}", f" with {field.name}[{index}] {second}"
    return "", ""


def _short(text: str) -> str:
    return textwrap.shorten(text, _WIDTH, placeholder="...")
