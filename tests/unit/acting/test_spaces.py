import dataclasses
import re
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given
from hypothesis import strategies as st

from helpers.environments import fresh_policy, spec_of
from helpers.spaces import ACTIONS, NAMES, OBSERVATION
from penstock.acting.inference import PolicyRunner
from penstock.acting.randomness import Streams
from penstock.acting.spaces import ActionMap, describe, segment_schema, stacked
from penstock.algo import weights as policy_weights
from penstock.algo.spaces import check_spaces
from penstock.errors import ConfigurationError
from penstock.types.block import Extent
from penstock.types.spaces import BoxSpace, DiscreteSpace, EnvironmentSpec, Space, is_image

PLANE = Box(-1.0, 1.0, (2,), np.float32)


def described(space: gymnasium.Space[object]) -> Space:
    return describe("Some-v0", PLANE, space).action


@pytest.mark.parametrize(("space", "spec"), ACTIONS, ids=NAMES)
def test_a_policy_acts_in_every_kind_of_action_space(space: gymnasium.Space[object], spec: Space) -> None:
    assert described(space) == spec
    environment = EnvironmentSpec("Some-v0", OBSERVATION, spec)
    runner = PolicyRunner(policy_weights.dump(fresh_policy(environment), 0))
    noise = Streams(0, 0, np.arange(7, dtype=np.uint32)).draw(runner.policy.noise, 0, 1)
    actions, log_prob = runner.act(np.zeros((7, 3), np.float32), noise[:, 0])
    column = segment_schema(environment, 4).columns[1]
    assert (actions.dtype.name, actions.shape) == (column.dtype, (7, *column.shape))
    assert log_prob.shape == (7,)
    for action in ActionMap(spec)(actions):
        assert space.contains(action)


@pytest.mark.parametrize(
    ("role", "space", "fault"),
    [
        ("observation", PLANE, ""),
        ("observation", Box(0, 255, (84, 84, 3), np.uint8), ""),
        ("observation", Box(0, 255, (84, 84), np.uint8), ""),
        ("observation", Box(0, 255, (20, 84, 3), np.uint8), "images of 20 x 84; they must be at least 36 x 36"),
        ("observation", Box(0, 1, (84, 84), np.float32), r"the observation space Box\(0, 1, \(84, 84\), float32\);"),
        ("observation", Discrete(3), r"the observation space Discrete\(3, start=0\); flat boxes"),
        ("observation", gymnasium.spaces.Text(4), r"the observation space Text\(.*; flat boxes .*FlattenObservation"),
        ("action", Discrete(3), ""),
        ("action", PLANE, ""),
        ("action", Box(0, 9, (2,), np.int32), r"the action space Box\(0, 9, \(2,\), int32\); boxes must be of floats"),
        ("action", gymnasium.spaces.Text(4), r"the action space Text\(.*; Discrete and Box of floats are supported"),
    ],
)
def test_the_fault_of_a_space_names_the_space_and_the_supported_ones(
    role: str, space: gymnasium.Space[object], fault: str
) -> None:
    found = ""
    try:
        spec = describe("Some-v0", **{"observation": PLANE, "action": Discrete(2), role: space})
        if is_image(spec.observation):
            spec = dataclasses.replace(spec, observation=stacked(spec.observation, 1))
        check_spaces(spec)
    except ConfigurationError as error:
        found = str(error).removeprefix("Some-v0 has ")
    assert re.match(fault, found) if fault else found == ""
    assert "\n" not in found


def test_the_spec_of_a_box_has_its_element_type_shape_and_bounds() -> None:
    box = Box(np.array([[-1.0, -np.inf]], np.float32), np.array([[2.0, 5.0]], np.float32))
    assert described(box) == BoxSpace("float32", (1, 2), (-1.0, -np.inf), (2.0, 5.0))


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [("float64", "float32"), ("uint16", "int32"), ("uint8", "uint8"), ("int64", "int64"), ("float16", "float16")],
)
def test_wide_and_rare_element_types_are_stored_as_common_ones(dtype: str, stored: str) -> None:
    space = described(Box(0, 9, (2,), np.dtype(dtype).type))
    assert isinstance(space, BoxSpace)
    assert space.dtype == stored


def test_the_spec_of_a_discrete_space_has_its_start() -> None:
    assert described(Discrete(5, start=-2)) == DiscreteSpace(5, -2)


@pytest.mark.parametrize(
    "space",
    [
        gymnasium.spaces.MultiBinary(3),
        gymnasium.spaces.Text(4),
        gymnasium.spaces.Dict(image=Box(np.arange(40.0, dtype=np.float32).reshape(2, 20), 100.0)),
    ],
    ids=["multi-binary", "text", "dict"],
)
def test_other_kinds_of_spaces_are_refused_in_one_line_that_shows_the_space(space: gymnasium.Space[object]) -> None:
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


def test_actions_of_a_box_are_stored_flat() -> None:
    spec = EnvironmentSpec("Some-v0", BoxSpace("float32", (2,), (0.0,) * 2, (1.0,) * 2), described(Box(0, 1, (2, 3))))
    assert segment_schema(spec, 4).columns[1].segment_shape(4) == (4, 6)


def test_a_segment_of_discrete_observations_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"Discrete\(3, start=0\); wrap it"):
        segment_schema(EnvironmentSpec("Some-v0", DiscreteSpace(3), DiscreteSpace(2)), 4)


def test_discrete_actions_are_shifted_to_the_start_of_the_space() -> None:
    assert ActionMap(DiscreteSpace(3, start=-1))(np.array([0, 1, 2])).tolist() == [-1, 0, 1]


def test_bounded_actions_are_scaled_from_the_unit_range_and_clipped() -> None:
    space = described(Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32)))
    actions = np.array([[-1.0, -1.0], [0.0, 0.5], [1.0, 1.0], [-7.0, 7.0]], np.float32)
    assert ActionMap(space)(actions).tolist() == [[-2.0, 0.0], [0.0, 7.5], [2.0, 10.0], [-2.0, 10.0]]


def test_unbounded_actions_are_unchanged_and_cause_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        to_environment = ActionMap(described(Box(-np.inf, np.inf, (2,))))
        assert to_environment(np.array([[-300.0, 0.25]], np.float32)).tolist() == [[-300.0, 0.25]]


def test_only_bounded_actions_are_squashed() -> None:
    space = described(Box(np.array([-2.0, -np.inf], np.float32), np.array([2.0, np.inf], np.float32)))
    actions = np.array([[0.0, 3.0], [1.0, -3.0], [50.0, 50.0]], np.float32)
    expected = [[0.0, 3.0], [2.0 * np.tanh(1.0), -3.0], [2.0, 50.0]]
    mapped = ActionMap(space)(actions, squashed=True).astype(np.float64)
    np.testing.assert_allclose(mapped, expected, rtol=1e-6)


def test_half_bounded_actions_are_clipped_and_not_scaled() -> None:
    to_environment = ActionMap(described(Box(0.0, np.inf, (2,))))
    assert to_environment(np.array([[-3.0, 5.0]], np.float32)).tolist() == [[0.0, 5.0]]


@given(
    seed=st.integers(0, 10_000),
    low=st.floats(-100.0, 100.0, width=32),
    width=st.floats(0.5, 200.0, width=32),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_every_mapped_action_is_in_the_environments_space(seed: int, low: float, width: float, dtype: type) -> None:
    space = Box(low, low + width, (2, 3), dtype)
    actions = np.random.default_rng(seed).normal(0.0, 2.0, (5, 6)).astype(np.float32)
    for action in ActionMap(described(space))(actions):
        assert action.shape == (2, 3)
        assert space.contains(action)


@pytest.mark.parametrize("bound", [0.1, 0.4, np.pi])
@pytest.mark.parametrize("squashed", [False, True])
def test_extreme_actions_of_a_float64_space_are_in_the_space(bound: float, squashed: bool) -> None:
    space = Box(-bound, bound, (1,), np.float64)
    for action in ActionMap(described(space))(np.array([[50.0], [-50.0]], np.float32), squashed=squashed):
        assert space.contains(action)


@pytest.mark.parametrize("bounds", [(-2.0, 4.0), (-np.inf, np.inf)])
def test_an_action_that_is_nan_becomes_the_middle_of_its_range(bounds: tuple[float, float]) -> None:
    space = Box(*bounds, (2,), np.float32)
    (action,) = ActionMap(described(space))(np.array([[np.nan, 0.5]], np.float32))
    assert space.contains(action)
    assert action[0] == (1.0 if np.isfinite(bounds[0]) else 0.0)
