"""Examples of every kind of leaf, and of nested spaces, over which all tests of spaces iterate."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

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

Example = tuple[gymnasium.Space[Any], Tree]
"""A space of Gymnasium and its tree."""

OBSERVATION = BoxSpace("float32", (3,), (-np.inf, -1.0, 0.0), (np.inf, 1.0, 5.0))
_LOW, _HIGH = np.array(OBSERVATION.low, np.float32), np.array(OBSERVATION.high, np.float32)

LEAVES: list[tuple[gymnasium.Space[Any], Space]] = [
    (Discrete(4, start=-1), DiscreteSpace(4, -1)),
    (MultiDiscrete([3, 2, 4]), MultiDiscreteSpace((3,), (3, 2, 4), (0, 0, 0))),
    (
        MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[0, -1], [7, 0]])),
        MultiDiscreteSpace((2, 2), (2, 3, 4, 5), (0, -1, 7, 0)),
    ),
    (MultiBinary(5), MultiBinarySpace((5,))),
    (MultiBinary([2, 3]), MultiBinarySpace((2, 3))),
    (
        Box(np.array([[-2.0] * 3, [-1.0] * 3], np.float32), np.inf, (2, 3), np.float32),
        BoxSpace("float32", (2, 3), (-2.0,) * 3 + (-1.0,) * 3, (np.inf,) * 6),
    ),
    (Box(-2.0, 3.0, (2,), np.float32), BoxSpace("float32", (2,), (-2.0,) * 2, (3.0,) * 2)),
]
"""Spaces that are supported as observations and as actions, at least one of each kind."""

OBSERVED_LEAVES: list[tuple[gymnasium.Space[Any], Space]] = [
    *LEAVES,
    (Box(_LOW, _HIGH, dtype=np.float32), OBSERVATION),
    (Box(0.0, 1.0, (), np.float32), BoxSpace("float32", (), (0.0,), (1.0,))),
    (Box(-1, 7, (9, 9), np.int8), BoxSpace("int8", (9, 9), (-1.0,), (7.0,))),
    (Discrete(300), DiscreteSpace(300)),
]
"""Spaces that are supported as observations."""


def nested(*leaves: tuple[Path, Space]) -> Tree:
    """Returns the tree of these leaves."""
    return Tree(tuple(Leaf(path, space) for path, space in leaves))


def _example(leaves: list[tuple[gymnasium.Space[Any], Space]]) -> list[Example]:
    return [(space, Tree.of(leaf)) for space, leaf in leaves]


ACTIONS: list[Example] = [
    *_example(LEAVES),
    (
        Tuple([Discrete(3), Box(-1.0, 1.0, (2,), np.float32)]),
        nested(((0,), DiscreteSpace(3)), ((1,), BoxSpace("float32", (2,), (-1.0,) * 2, (1.0,) * 2))),
    ),
    (
        Dict({"buttons": MultiBinary(2), "move": Tuple([Discrete(2), MultiDiscrete([2, 3])])}),
        nested(
            (("buttons",), MultiBinarySpace((2,))),
            (("move", 0), DiscreteSpace(2)),
            (("move", 1), MultiDiscreteSpace((2,), (2, 3), (0, 0))),
        ),
    ),
]
"""Spaces of actions: every kind of leaf, and nested spaces."""

OBSERVATIONS: list[Example] = [
    *_example(OBSERVED_LEAVES),
    (Dict({"only": Discrete(7)}), nested((("only",), DiscreteSpace(7)))),
    (
        Tuple([Discrete(5), Box(_LOW, _HIGH, dtype=np.float32)]),
        nested(((0,), DiscreteSpace(5)), ((1,), OBSERVATION)),
    ),
    (
        Dict(
            {
                "board": Box(0, 7, (9, 9), np.uint8),
                "next balls": MultiDiscrete([7, 7, 7]),
                "robot": Dict({"arms": Tuple([MultiBinary(2), Box(0.0, 1.0, (), np.float32)]), "mode": Discrete(3)}),
            }
        ),
        nested(
            (("board",), BoxSpace("uint8", (9, 9), (0.0,), (7.0,))),
            (("next balls",), MultiDiscreteSpace((3,), (7, 7, 7), (0, 0, 0))),
            (("robot", "arms", 0), MultiBinarySpace((2,))),
            (("robot", "arms", 1), BoxSpace("float32", (), (0.0,), (1.0,))),
            (("robot", "mode"), DiscreteSpace(3)),
        ),
    ),
]
"""Spaces of observations: every kind of leaf, and nested spaces."""


def masked(spec: EnvironmentSpec) -> EnvironmentSpec:
    """Returns the spec of the same environment with action masks."""
    return EnvironmentSpec(spec.id, spec.observation, spec.action, spec.frames, sum(spec.action.choices))


SPECS = [EnvironmentSpec("Example-v0", Tree.of(OBSERVATION), action) for _, action in ACTIONS]
"""One spec for each example of actions."""

ALL_SPECS = [
    *SPECS,
    *(EnvironmentSpec("Example-v0", observation, Tree.of(DiscreteSpace(2))) for _, observation in OBSERVATIONS),
    *(masked(spec) for spec in SPECS),
    masked(EnvironmentSpec("Example-v0", OBSERVATIONS[-1][1], ACTIONS[-1][1])),
]
"""One spec for each example of actions or observations, with and without action masks."""

NAMES = [tree.shown() for _, tree in ACTIONS]
OBSERVATION_NAMES = [tree.shown() for _, tree in OBSERVATIONS]
