"""Checks of the first values that an environment with parts of observations returns.

Those of an environment without parts are tested in contract/test_environment_check.py.
"""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Text, Tuple
from numpy.typing import ArrayLike

from helpers.spaces import OBSERVATION_NAMES, OBSERVATIONS
from penstock.acting.first_values import check_magnitude, of_reset, of_step
from penstock.errors import ConfigurationError
from penstock.types.spaces import Tree

PLANE = Box(-1.0, 1.0, (2,), np.float32)
NESTED = Dict(mission=Text(4), pair=Tuple([Discrete(4), PLANE]), switches=MultiBinary(2))
GOOD: dict[str, Any] = {"mission": "go", "pair": (3, np.zeros(2, np.float32)), "switches": np.array([0, 1], np.int8)}


@pytest.mark.parametrize(("space", "tree"), OBSERVATIONS, ids=OBSERVATION_NAMES)
def test_samples_of_every_kind_of_space_are_accepted(space: gymnasium.Space[Any], tree: Tree) -> None:
    space.seed(0)
    for _ in range(10):
        values = of_step("Some-v0", (space.sample(), 1.0, False, True, {}), space)
        assert (values.warnings, values.ended) == ([], True)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"pair": (1,)}, r"an observation without 'pair\.1', where a tuple of 1 was received; it must have every leaf"),
        ({"pair": (1, [0, 0], 2)}, "an observation with a tuple of 3, where its space has a tuple of 2; remove"),
        ({"pair": None}, r"an observation without 'pair\.0', where a value of type NoneType was received; "),
        ({"extra": 1}, "an observation with the key 'extra', where its space has mission, pair, switches; remove"),
        ({"pair": (4, [0.0, 0.0])}, r"an observation with 4 at pair\.0, outside of Discrete\(4, start=0\); correct"),
        ({"pair": (1.0, [0.0, 0.0])}, r"an observation of shape \(\) and type float64 at pair\.0, where .*; correct"),
        (
            {"pair": (1, np.zeros(3, np.float32))},
            r"an observation of shape \(3,\) at pair\.1, where the space has \(2,",
        ),
        ({"pair": (1, [0.0, np.nan])}, r"an observation at pair\.1 with nan at \[1\]; observations must be finite"),
        ({"switches": [0, 2]}, r"an observation with 2 at switches, outside of MultiBinary\(2\); correct"),
    ],
)
def test_a_part_that_cannot_be_used_is_refused_in_one_line_with_its_name(change: dict[str, Any], fault: str) -> None:
    expected = rf"^the environment 'Some-v0': {{}} returned {fault}[^\n]*$"
    with pytest.raises(ConfigurationError, match=expected.format("reset")):
        of_reset("Some-v0", (GOOD | change, {}), NESTED)
    with pytest.raises(ConfigurationError, match=expected.format("step")):
        of_step("Some-v0", (GOOD | change, 1.0, False, False, {}), NESTED)


def test_a_part_outside_of_its_bounds_is_a_warning_with_its_name() -> None:
    observation = GOOD | {"pair": (1, np.array([0.0, 7.0], np.float32))}
    (warning,) = of_reset("Some-v0", (observation, {}), NESTED).warnings
    assert warning == ("Some-v0: reset returned an observation at pair.1 with 7 at [1], outside of its space's -1 to 1")
    assert of_reset("Some-v0", (GOOD, {}), NESTED).warnings == []


def test_an_observation_without_an_optional_text_is_accepted() -> None:
    observation = {key: value for key, value in GOOD.items() if key != "mission"}
    assert of_reset("Some-v0", (observation, {}), NESTED).warnings == []


@pytest.mark.parametrize("values", [3, 3.0, np.uint8(3), np.array([-3, 2]), np.zeros(0)])
def test_values_of_every_kind_have_a_magnitude(values: ArrayLike) -> None:
    check_magnitude("FrozenLake-v1", "reset", values, 3.0)


@pytest.mark.parametrize("values", [4, -4.0, np.array([[0, 2], [-4, 1]])])
def test_a_value_above_the_largest_magnitude_is_refused_with_what_to_do(values: ArrayLike) -> None:
    with pytest.raises(ConfigurationError, match=r"a value of magnitude 4.*environment\.largest_magnitude, which is 3"):
        check_magnitude("FrozenLake-v1", "reset", values, 3.0)
