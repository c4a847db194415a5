"""Warnings about the first observations and rewards, of single environments and of vectors."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Text, Tuple
from numpy.typing import NDArray

from penstock.acting.environments.first_values import of_observation, of_reward
from penstock.acting.environments.frames import with_frames
from penstock.acting.environments.single_environments import SingleEnvironments
from penstock.acting.values.spaces import describe
from penstock.types.spaces import Tree
from tests.support.segments.spaces import OBSERVATION_NAMES, OBSERVATIONS

PLANE = Box(-1.0, 1.0, (2,), np.float32)
NESTED = Dict(mission=Text(4), pair=Tuple([Discrete(4), PLANE]), switches=MultiBinary(2))


class Constant(gymnasium.Env[Any, Any]):
    """Observes one value of a space."""

    action_space = Discrete(2)

    def __init__(self, space: gymnasium.Space[Any], value: Any) -> None:
        self.observation_space, self._value = space, value

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self._value, {}


def warnings_of(space: gymnasium.Space[Any], *values: Any, frames: int = 1) -> list[str]:
    """Returns the warnings about one value for each environment."""
    envs = [Constant(space, value) for value in values]
    made = with_frames(SingleEnvironments(envs, describe("Some-v0", space, Discrete(2))), frames)
    made.reset(range(made.count))
    return list(of_observation(made.spec, made.observation))


@pytest.mark.parametrize(("space", "tree"), OBSERVATIONS, ids=OBSERVATION_NAMES)
def test_samples_of_every_kind_of_space_cause_no_warning(space: gymnasium.Space[Any], tree: Tree) -> None:
    space.seed(0)
    assert warnings_of(space, *(space.sample() for _ in range(10))) == []


@pytest.mark.parametrize(
    ("space", "value", "warning"),
    [
        (PLANE, [0.0, 7.0], "an observation has 7 in element 1, and its space allows -1 to 1"),
        (PLANE, [-1.01, 0.0], "an observation has -1.01 in element 0, and its space allows -1 to 1"),
        (PLANE, [-1.001, 1.001], ""),
        (Box(0.0, np.inf, (2, 2)), [[0.0, 1e9], [-1.0, 0.0]], "has -1 in element 2, and its space allows 0 to inf"),
        (Box(0.0, np.inf, (1,)), [-1e-4], ""),
        (Box(0.0, np.inf, (1,)), [1e11], "an observation with 1e+11; scale it to about 1"),
        (Box(-1, 1, (3,), np.int8), [0, 2, 0], "an observation has 2 in element 1, and its space allows -1 to 1"),
        (NESTED, {"pair": (1, [0.0, 7.0]), "switches": [0, 1]}, "7 in element 1 of pair.1, and its space allows -1"),
        (NESTED, {"pair": (1, [0.0, 0.0]), "switches": [0, 1]}, ""),
        (Box(-1e12, 1e12, (1,)), [1e11], "an observation with 1e+11; scale it to about 1"),
    ],
)
def test_a_value_outside_of_its_bounds_or_of_no_use_is_a_warning(
    space: gymnasium.Space[Any], value: Any, warning: str
) -> None:
    found = warnings_of(space, value, value)
    assert len(found) == bool(warning)
    assert warning in "".join(found)


def test_the_newest_of_stacked_frames_is_compared_with_its_bounds() -> None:
    space = Box(np.array([0.0, 10.0], np.float32), np.array([1.0, 11.0], np.float32))
    assert warnings_of(space, [0.5, 10.5], frames=3) == []
    assert warnings_of(space, [0.5, 0.5], frames=3) == [
        "an observation has 0.5 in element 1, and its space allows 10 to 11"
    ]


@pytest.mark.parametrize(
    ("rewards", "warnings"),
    [([1.0, -1e10], []), ([1.0, -1e12, 1e13], ["a reward of -1e+12; scale rewards to about 1"])],
)
def test_an_extreme_reward_is_a_warning(rewards: list[float], warnings: list[str]) -> None:
    values: NDArray[np.float32] = np.array(rewards, np.float32)
    assert list(of_reward(values)) == warnings
