"""Examples of every kind of action space, so that each test of spaces covers a new kind."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from penstock.types.spaces import BoxSpace, DiscreteSpace, EnvironmentSpec, Space

OBSERVATION = BoxSpace("float32", (3,), (-np.inf, -1.0, 0.0), (np.inf, 1.0, 5.0))

ACTIONS: list[tuple[gymnasium.Space[Any], Space]] = [
    (Discrete(4, start=-1), DiscreteSpace(4, -1)),
    (Box(-2.0, np.inf, (2, 3), np.float32), BoxSpace("float32", (2, 3), (-2.0,) * 6, (np.inf,) * 6)),
    (Box(-2.0, 3.0, (2,), np.float32), BoxSpace("float32", (2,), (-2.0,) * 2, (3.0,) * 2)),
]
"""Gymnasium's spaces and their specs, at least one of each kind."""

SPECS = [EnvironmentSpec("Example-v0", OBSERVATION, space) for _, space in ACTIONS]
NAMES = [space.shown() for _, space in ACTIONS]
