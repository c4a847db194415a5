import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given
from hypothesis import strategies as st

from helpers.environments import spec_of
from penstock.acting.spaces import ActionMap, describe, segment_schema
from penstock.errors import ConfigurationError
from penstock.types import BoxSpace, DiscreteSpace, EnvironmentSpec, Extent, Space

PLANE = Box(-1.0, 1.0, (2,), np.float32)


def described(space: gymnasium.Space[object]) -> Space:
    return describe("Some-v0", PLANE, space).action


def test_a_box_is_described_by_type_shape_and_bounds() -> None:
    box = Box(np.array([[-1.0, -np.inf]], np.float32), np.array([[2.0, 5.0]], np.float32))
    assert described(box) == BoxSpace("float32", (1, 2), (-1.0, -np.inf), (2.0, 5.0))


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [("float64", "float32"), ("uint16", "int32"), ("uint8", "uint8"), ("int64", "int64"), ("float16", "float16")],
)
def test_wide_and_rare_element_types_travel_as_common_ones(dtype: str, stored: str) -> None:
    space = described(Box(0, 9, (2,), np.dtype(dtype).type))
    assert isinstance(space, BoxSpace)
    assert space.dtype == stored


def test_a_discrete_space_keeps_its_start() -> None:
    assert described(Discrete(5, start=-2)) == DiscreteSpace(5, -2)


@pytest.mark.parametrize(
    "space",
    [
        gymnasium.spaces.MultiBinary(3),
        gymnasium.spaces.Text(4),
        gymnasium.spaces.Dict(picture=Box(np.arange(40.0, dtype=np.float32).reshape(2, 20), 100.0)),
    ],
    ids=["multi-binary", "text", "dict"],
)
def test_other_spaces_are_refused_in_one_line_that_names_them(space: gymnasium.Space[object]) -> None:
    for observation, action, role in [(space, Discrete(2), "observation"), (PLANE, space, "action")]:
        with pytest.raises(ConfigurationError, match=f"^Some-v0 has the {role} space {type(space).__name__}[^\\n]*$"):
            describe("Some-v0", observation, action)


def test_a_segment_has_the_columns_of_its_environment() -> None:
    schema = segment_schema(spec_of("CartPole-v1"), 5)
    shapes = {column.name: (column.dtype, column.segment_shape(5)) for column in schema.columns}
    assert shapes["observation"] == ("float32", (6, 4))
    assert shapes["action"] == ("int64", (5,))
    assert shapes["valid"] == ("bool", (5,))
    assert shapes["behaviour_log_prob"] == ("float32", (5,))
    assert [column.name for column in schema.columns if column.extent != Extent.STEP] == ["observation"]


def test_actions_of_a_box_travel_flat() -> None:
    spec = EnvironmentSpec("Some-v0", BoxSpace("float32", (2,), (0.0,) * 2, (1.0,) * 2), described(Box(0, 1, (2, 3))))
    assert segment_schema(spec, 4).columns[1].segment_shape(4) == (4, 6)


def test_a_segment_of_observations_that_are_no_box_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no Box"):
        segment_schema(EnvironmentSpec("Some-v0", DiscreteSpace(3), DiscreteSpace(2)), 4)


def test_discrete_actions_begin_at_the_spaces_start() -> None:
    assert ActionMap(DiscreteSpace(3, start=-1))(np.array([0, 1, 2])).tolist() == [-1, 0, 1]


def test_the_unit_range_becomes_the_range_between_the_bounds() -> None:
    space = described(Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32)))
    actions = np.array([[-1.0, -1.0], [0.0, 0.5], [1.0, 1.0], [-7.0, 7.0]], np.float32)
    assert ActionMap(space)(actions).tolist() == [[-2.0, 0.0], [0.0, 7.5], [2.0, 10.0], [-2.0, 10.0]]


def test_unbounded_actions_pass_as_they_are_and_quietly() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        to_environment = ActionMap(described(Box(-np.inf, np.inf, (2,))))
        assert to_environment(np.array([[-300.0, 0.25]], np.float32)).tolist() == [[-300.0, 0.25]]


def test_squashed_actions_come_near_their_bounds_and_unbounded_ones_stay() -> None:
    space = described(Box(np.array([-2.0, -np.inf], np.float32), np.array([2.0, np.inf], np.float32)))
    actions = np.array([[0.0, 3.0], [1.0, -3.0], [50.0, 50.0]], np.float32)
    expected = [[0.0, 3.0], [2.0 * np.tanh(1.0), -3.0], [2.0, 50.0]]
    np.testing.assert_allclose(ActionMap(space)(actions, squashed=True), expected, rtol=1e-6)


def test_half_bounded_actions_are_clipped_only() -> None:
    to_environment = ActionMap(described(Box(0.0, np.inf, (2,))))
    assert to_environment(np.array([[-3.0, 5.0]], np.float32)).tolist() == [[0.0, 5.0]]


@given(
    seed=st.integers(0, 10_000),
    low=st.floats(-100.0, 100.0, width=32),
    width=st.floats(0.5, 200.0, width=32),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_every_action_lies_in_the_environments_space(seed: int, low: float, width: float, dtype: type) -> None:
    space = Box(low, low + width, (2, 3), dtype)
    actions = np.random.default_rng(seed).normal(0.0, 2.0, (5, 6)).astype(np.float32)
    for action in ActionMap(described(space))(actions):
        assert action.shape == (2, 3)
        assert space.contains(action)


@pytest.mark.parametrize("bound", [0.1, 0.4, np.pi])
@pytest.mark.parametrize("squashed", [False, True])
def test_the_extremes_of_a_float64_space_are_in_it(bound: float, squashed: bool) -> None:
    space = Box(-bound, bound, (1,), np.float64)
    for action in ActionMap(described(space))(np.array([[50.0], [-50.0]], np.float32), squashed=squashed):
        assert space.contains(action)


@pytest.mark.parametrize("bounds", [(-2.0, 4.0), (-np.inf, np.inf)])
def test_where_a_policy_has_no_number_the_environment_gets_the_middle(bounds: tuple[float, float]) -> None:
    space = Box(*bounds, (2,), np.float32)
    (action,) = ActionMap(described(space))(np.array([[np.nan, 0.5]], np.float32))
    assert space.contains(action)
    assert action[0] == (1.0 if np.isfinite(bounds[0]) else 0.0)
