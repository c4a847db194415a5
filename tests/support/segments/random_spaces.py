"""Random spaces for property tests, as Hypothesis strategies."""

import math
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from penstock.types.block import DATA_TYPES
from penstock.types.spaces import (
    BoxSpace,
    DiscreteSpace,
    EnvironmentSpec,
    Leaf,
    MultiBinarySpace,
    MultiDiscreteSpace,
    Path,
    Space,
    Tree,
)

_SHAPES = st.lists(st.integers(1, 3), max_size=3).map(tuple)
_KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)

Node = Space | dict[str, Any] | list[Any]
"""A space, or the nodes of a Dict or of a Tuple."""


@st.composite
def leaf_spaces(draw: st.DrawFn) -> Space:
    """Returns a space that is not nested."""
    shape = draw(_SHAPES)
    size = math.prod(shape)

    def values(elements: st.SearchStrategy[Any]) -> tuple[Any, ...]:
        return tuple(draw(st.lists(elements, min_size=size, max_size=size)))

    starts = st.integers(-(2**63), 2**63 - 1000)
    numbers = st.floats(allow_nan=False)
    makers: list[Callable[[], Space]] = [
        lambda: BoxSpace(draw(st.sampled_from(DATA_TYPES)), shape, values(numbers), values(numbers)),
        lambda: BoxSpace("float32", shape, (draw(numbers),), (draw(numbers),)),
        lambda: DiscreteSpace(draw(st.integers(1, 1000)), draw(starts)),
        lambda: MultiDiscreteSpace(shape, values(st.integers(1, 1000)), values(starts)),
        lambda: MultiBinarySpace(shape),
    ]
    return draw(st.sampled_from(makers))()


def trees() -> st.SearchStrategy[Tree]:
    """Returns trees of Dicts and Tuples of leaves, up to some levels deep."""
    nodes: st.SearchStrategy[Node] = st.recursive(
        leaf_spaces(),
        lambda inner: st.one_of(
            st.dictionaries(_KEYS, inner, min_size=1, max_size=4), st.lists(inner, min_size=1, max_size=4)
        ),
        max_leaves=8,
    )
    return nodes.filter(lambda node: _depth(node) <= 16).map(lambda node: Tree(tuple(_leaves((), node))))


@st.composite
def specs(draw: st.DrawFn) -> EnvironmentSpec:
    """Returns a spec with any spaces, and with or without action masks."""
    observation, action = draw(trees()), draw(trees())
    return EnvironmentSpec(draw(_KEYS), observation, action, 1, draw(st.sampled_from((0, sum(action.choices)))))


def _leaves(path: Path, node: Node) -> list[Leaf]:
    if isinstance(node, dict):
        return [leaf for key, inner in node.items() for leaf in _leaves((*path, key), inner)]
    if isinstance(node, list):
        return [leaf for position, inner in enumerate(node) for leaf in _leaves((*path, position), inner)]
    return [Leaf(path, node)]


def _depth(node: Node) -> int:
    if isinstance(node, dict):
        return 1 + max(map(_depth, node.values()))
    return 1 + max(map(_depth, node)) if isinstance(node, list) else 0
