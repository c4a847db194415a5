import re
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.acting.environments.frames import with_frames
from penstock.acting.policies.inference import PolicyRunner
from penstock.acting.policies.randomness import Streams
from penstock.acting.policies.runners import runner_of
from penstock.acting.values.leaves import ActionForm, action_types, flatten
from penstock.acting.values.spaces import ActionMap, describe, segment_schema
from penstock.algo.network import Network
from penstock.algo.spaces import check_spaces
from penstock.errors import ConfigurationError
from penstock.types.block import Extent, Schema
from penstock.types.spaces import BoxSpace, DiscreteSpace, EnvironmentSpec, MultiDiscreteSpace, Space, Tree
from tests.support.environments.made import make_environments
from tests.support.environments.tiny import spec_of
from tests.support.segments.spaces import ACTIONS, NAMES, OBSERVATION, OBSERVATION_NAMES, OBSERVATIONS, masked
from tests.support.training.policies import fresh_policy, weights_of

PLANE = Box(-1.0, 1.0, (2,), np.float32)


def described(space: gymnasium.Space[object]) -> Space:
    """Returns the only leaf of an action space."""
    (leaf,) = describe("Some-v0", PLANE, space).action.leaves
    assert leaf.path == ()
    return leaf.space


def mapped(
    space: Space, actions: NDArray[np.generic], *, squashed: bool = False, widest_range: float = 1e4
) -> NDArray[np.generic]:
    """Returns actions of one leaf in the units of the environment."""
    network = Network(squash_actions=squashed, widest_range=widest_range)
    (leaf,) = ActionMap(Tree.of(space), network)((actions,))
    return leaf


@pytest.mark.parametrize(("space", "tree"), ACTIONS, ids=NAMES)
def test_a_policy_acts_in_every_kind_of_action_space(space: gymnasium.Space[object], tree: Tree) -> None:
    assert describe("Some-v0", PLANE, space).action == tree
    environment = EnvironmentSpec("Some-v0", Tree.of(OBSERVATION), tree)
    runner = PolicyRunner(weights_of(fresh_policy(environment), 0))
    noise = Streams(0, 0, np.arange(7, dtype=np.uint32)).draw(runner.policy.noise, 0, 1)
    actions, log_prob = runner.act((np.zeros((7, 3), np.float32),), noise[:, 0])
    schema = segment_schema(environment, 4)
    columns = [schema.columns[schema.index(name)] for name in tree.columns("action")]
    assert [(leaf.dtype.name, leaf.shape) for leaf in actions] == [(each.dtype, (7, *each.shape)) for each in columns]
    assert log_prob.shape == (7,)
    for action in ActionForm(tree, action_types(tree, space)).rows(ActionMap(tree, Network())(actions)):
        assert space.contains(action)


@pytest.mark.parametrize(("space", "tree"), OBSERVATIONS, ids=OBSERVATION_NAMES)
def test_a_policy_acts_on_every_kind_of_observation(space: gymnasium.Space[object], tree: Tree) -> None:
    environment = describe("Some-v0", space, Discrete(2))
    assert environment.observation == tree
    check_spaces(environment)
    space.seed(0)
    samples = [flatten(tree, space.sample()) for _ in range(5)]
    schema = segment_schema(environment, 4)
    columns = [schema.columns[schema.index(name)] for name in tree.columns("observation")]
    leaves = tuple(
        np.stack(values).astype(column.dtype)
        for values, column in zip(zip(*samples, strict=True), columns, strict=True)
    )
    assert [leaf.shape[1:] for leaf in leaves] == [column.shape for column in columns]
    runner = PolicyRunner(weights_of(fresh_policy(environment), 0))
    noise = Streams(0, 0, np.arange(5, dtype=np.uint32)).draw(runner.policy.noise, 0, 1)
    (action,), log_prob = runner.act(leaves, noise[:, 0])
    assert set(action.tolist()) <= {0, 1}
    assert np.isfinite(log_prob).all()


SEQUENCE = gymnasium.spaces.Sequence(Discrete(2))
NUMBERED: Any = {1: Discrete(2)}


@pytest.mark.parametrize(
    ("role", "space", "fault"),
    [
        ("observation", PLANE, ""),
        ("observation", Box(0, 255, (84, 84, 3), np.uint8), ""),
        ("observation", Box(0, 255, (84, 84), np.uint8), ""),
        ("observation", Box(0, 255, (20, 84, 3), np.uint8), ""),
        ("observation", Box(0, 1, (84, 84), np.float32), ""),
        ("observation", Discrete(3), ""),
        ("observation", MultiBinary(3), ""),
        ("observation", Dict(image=Box(0, 255, (84, 84), np.uint8), goal=Tuple([Discrete(3), PLANE])), ""),
        ("observation", Dict(mission=Text(4), plane=PLANE), ""),
        ("observation", Text(4), r"the observation space Text; .*TransformObservation$"),
        (
            "observation",
            Dict(mission=Text(4)),
            r"an observation space that is a Dict of texts alone; .*TransformObservation$",
        ),
        ("observation", SEQUENCE, r"the observation space Sequence; Box, .*TransformObservation$"),
        ("observation", Dict(a=Tuple([PLANE, SEQUENCE])), r"Sequence at a\.1 of its observation space; Box, "),
        ("observation", Dict(a=Dict()), r"an empty Dict at a of its observation space; Box, "),
        (
            "observation",
            Dict(NUMBERED),
            r"an observation space that is a Dict with the key 1, which is not text; Box, ",
        ),
        (
            "observation",
            Box(0, 1, (2,), np.uint64),
            r"the observation space Box\(.*\), whose .* uint64, not float64, int64",
        ),
        (
            "observation",
            Dict(a=Box(0, 1, (2,), np.longdouble)),
            r"Box\(.*\), whose .* type \S+, not float64, .* at a of",
        ),
        ("action", Box(0, 1, (2,), np.longdouble), r"the action space Box\(.*\), whose .* type \S+, not float64"),
        ("observation", Dict(a=Box(0, 1, (0,)), plane=PLANE), ""),
        (
            "observation",
            Dict(a=Box(0, 1, (2, 0))),
            "an observation space that is a Dict of spaces without elements alone; Box",
        ),
        ("observation", Box(0, 1, (2, 0)), r"the observation space Box\(.*\), which has no elements; Box, "),
        ("action", Dict(a=Box(0, 1, (2, 0)), b=PLANE), r"Box\(.*\), which has no elements at a of its action space; "),
        ("action", Discrete(3), ""),
        ("action", PLANE, ""),
        ("action", MultiBinary(3), ""),
        ("action", Box(0, 9, (2,), np.int32), ""),
        ("action", Tuple([Discrete(3), Dict(a=PLANE)]), ""),
        ("action", Box(0, 2048, (2,), np.int32), r"the action space Box\(0, 2048, \(2,\), int32\); .*few integers"),
        ("action", Text(4), r"the action space Text; Discrete, .*TransformAction$"),
        ("action", Dict(word=Text(4), plane=PLANE), r"Text at word of its action space; Discrete, .*TransformAction$"),
        ("action", SEQUENCE, r"the action space Sequence; Discrete, .*TransformAction$"),
    ],
)
def test_the_fault_of_a_space_names_the_space_and_the_supported_ones(
    role: str, space: gymnasium.Space[object], fault: str
) -> None:
    found = ""
    spaces: dict[str, gymnasium.Space[Any]] = {"observation": PLANE, "action": Discrete(2), role: space}
    try:
        check_spaces(describe("Some-v0", spaces["observation"], spaces["action"]))
    except ConfigurationError as error:
        found = str(error).removeprefix("Some-v0 has ")
    assert re.match(fault, found) if fault else found == ""
    assert "\n" not in found


def test_an_action_mask_alone_is_no_observation() -> None:
    with pytest.raises(
        ConfigurationError, match=r"^Some-v0 has an observation space with an action mask alone; [^\n]*$"
    ):
        describe("Some-v0", Dict(action_mask=MultiBinary(2)), Discrete(2))


def test_the_spec_of_a_box_has_its_element_type_shape_and_bounds() -> None:
    box = Box(np.array([[-1.0, -np.inf]], np.float32), np.array([[2.0, 5.0]], np.float32))
    assert described(box) == BoxSpace("float32", (1, 2), (-1.0, -np.inf), (2.0, 5.0))


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        *(("float64", "float32"), ("float16", "float16")),
        *(("uint16", "int32"), ("uint8", "uint8"), ("int64", "int64"), ("uint32", "int64")),
    ],
)
def test_wide_and_rare_element_types_are_stored_as_common_ones(dtype: str, stored: str) -> None:
    (space,) = describe("Some-v0", Box(0, 9, (2,), np.dtype(dtype).type), Discrete(2)).observation.spaces
    assert isinstance(space, BoxSpace)
    assert space.dtype == stored


def test_equal_bounds_of_a_board_are_stored_once() -> None:
    spec = describe("Some-v0", Dict(board=Box(0, 7, (9, 9), np.uint8), row=Box(0, 7, (9,), np.uint8)), Discrete(2))
    assert spec.observation.spaces == (
        BoxSpace("uint8", (9, 9), (0.0,), (7.0,)),
        BoxSpace("uint8", (9,), (0.0,) * 9, (7.0,) * 9),
    )


def test_the_spec_of_a_discrete_space_has_its_start() -> None:
    assert described(Discrete(5, start=-2)) == DiscreteSpace(5, -2)


@pytest.mark.parametrize("space", [Box(0, 9, (2,), np.int32), MultiDiscrete([10, 10])], ids=["box", "multi-discrete"])
def test_a_box_of_few_integers_is_a_space_of_choices(space: gymnasium.Space[object]) -> None:
    assert described(space) == MultiDiscreteSpace((2,), (10, 10), (0, 0))


@pytest.mark.parametrize(
    ("space", "shown"),
    [
        (gymnasium.spaces.Graph(PLANE, None), "the {} space Graph; "),
        (Text(4), "the {} space Text; "),
        (
            Dict(image=Box(np.arange(40.0, dtype=np.float32).reshape(2, 20), 100.0), names=SEQUENCE),
            "Sequence at names of its {} space; ",
        ),
    ],
    ids=["graph", "text", "dict"],
)
def test_other_kinds_of_spaces_are_refused_in_one_line_that_shows_the_space(
    space: gymnasium.Space[object], shown: str
) -> None:
    for observation, action, role in [(space, Discrete(2), "observation"), (PLANE, space, "action")]:
        with pytest.raises(ConfigurationError, match=f"^Some-v0 has {shown.format(role)}[^\\n]*$"):
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
    observation = Tree.of(BoxSpace("float32", (2,), (0.0,) * 2, (1.0,) * 2))
    spec = EnvironmentSpec("Some-v0", observation, Tree.of(described(Box(0, 1, (2, 3)))))
    assert segment_schema(spec, 4).columns[1].segment_shape(4) == (4, 6)


def test_each_leaf_masks_and_states_have_columns() -> None:
    spec = masked(describe("Some-v0", Dict(a=PLANE, b=Discrete(300)), Tuple([Discrete(3), MultiBinary(4)])))
    schema = segment_schema(spec, 4, memory=(2, 16), burn_in=3)
    columns = {column.name: (column.dtype, column.segment_shape(4)) for column in schema.columns}
    assert columns["observation.a"] == ("float32", (8, 2))
    assert columns["observation.b"] == ("int32", (8,))
    assert columns["action.0"] == ("int64", (4,))
    assert columns["action.1"] == ("int64", (4, 4))
    assert columns["frame_age"] == ("uint8", (8,))
    # 3 + 4 pairs of bits.
    assert columns["action_mask"] == ("uint8", (4, 2))
    assert columns["memory"] == ("float32", (1, 2, 16))


@pytest.mark.parametrize(("bits", "packed"), [(2, 1), (8, 1), (9, 2), (16, 2), (17, 3), (65, 9)])
def test_a_mask_takes_a_bit_for_each_alternative(bits: int, packed: int) -> None:
    spec = masked(describe("Some-v0", PLANE, Discrete(bits)))
    columns = {column.name: column.shape for column in segment_schema(spec, 4).columns}
    assert columns["action_mask"] == (packed,)


def test_only_observations_that_are_stacked_have_frames_before_the_first_row() -> None:
    observation = Tree.of(BoxSpace("float32", (6,), (0.0,) * 6, (1.0,) * 6))
    nested = Tree((*describe("Some-v0", Dict(code=Discrete(3)), Discrete(2)).observation.leaves,))
    spec = EnvironmentSpec("Some-v0", Tree((*nested.leaves, *observation.leaves)), Tree.of(DiscreteSpace(2)), frames=3)
    leads = {column.name: (column.lead, column.shape) for column in segment_schema(spec, 4).columns}
    assert leads["observation.code"] == (0, ())
    assert leads["observation"] == (2, (2,))
    assert leads["frame_age"] == (0, ())


def test_a_segment_of_discrete_observations_has_one_code_per_row() -> None:
    spec = EnvironmentSpec("Some-v0", Tree.of(DiscreteSpace(3)), Tree.of(DiscreteSpace(2)))
    column = segment_schema(spec, 4).columns[0]
    assert (column.name, column.dtype, column.segment_shape(4)) == ("observation", "uint8", (5,))


def schema_of(env_id: str, frames: int = 1) -> Schema:
    environments = with_frames(make_environments(env_id, 1, kwargs={}), frames)
    environments.close()
    return segment_schema(environments.spec, 32)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (lambda: schema_of("CartPole-v1"), 2313767996378233022),
        (lambda: schema_of("Pendulum-v1"), 11829137826380740861),
        (
            lambda: segment_schema(describe("Some-v0", Box(0, 255, (84, 84, 3), np.uint8), Discrete(4, start=-1)), 8),
            14172522526603329347,
        ),
        (lambda: schema_of("CartPole-v1", frames=4), 6088351769839699749),
    ],
    ids=["discrete", "box", "image", "frames"],
)
def test_stored_segments_of_one_box_remain_readable(schema: Callable[[], Schema], expected: int) -> None:
    # A store of another schema is refused, so these hashes must not change.
    assert schema().hash == expected


def test_discrete_actions_are_shifted_to_the_start_of_the_space() -> None:
    assert mapped(DiscreteSpace(3, start=-1), np.array([0, 1, 2])).tolist() == [-1, 0, 1]


def test_each_choice_is_shifted_to_its_own_start() -> None:
    space = MultiDiscreteSpace((2, 2), (2, 3, 4, 5), (0, -1, 7, 0))
    assert mapped(space, np.array([[0, 0, 0, 0], [1, 2, 3, 4]])).tolist() == [[[0, -1], [7, 0]], [[1, 1], [10, 4]]]


def test_bounded_actions_are_scaled_from_the_unit_range_and_clipped() -> None:
    space = described(Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32)))
    actions = np.array([[-1.0, -1.0], [0.0, 0.5], [1.0, 1.0], [-7.0, 7.0]], np.float32)
    assert mapped(space, actions).tolist() == [[-2.0, 0.0], [0.0, 7.5], [2.0, 10.0], [-2.0, 10.0]]


def test_unbounded_actions_are_unchanged_and_cause_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        actions = mapped(described(Box(-np.inf, np.inf, (2,))), np.array([[-300.0, 0.25]], np.float32))
        assert actions.tolist() == [[-300.0, 0.25]]


def test_only_bounded_actions_are_squashed() -> None:
    space = described(Box(np.array([-2.0, -np.inf], np.float32), np.array([2.0, np.inf], np.float32)))
    actions = np.array([[0.0, 3.0], [1.0, -3.0], [50.0, 50.0]], np.float32)
    expected = [[0.0, 3.0], [2.0 * np.tanh(1.0), -3.0], [2.0, 50.0]]
    np.testing.assert_allclose(mapped(space, actions, squashed=True).astype(np.float64), expected, rtol=1e-6)


LARGEST = float(np.finfo(np.float32).max)
NO_BOUNDS = [
    (Box(-1e6, 1e6, (2,)), 0.0),
    (Box(-2e4, 2e4, (2,)), 0.0),
    (Box(-LARGEST, LARGEST, (2,)), 0.0),
    (Box(-1e300, 1e300, (2,), np.float64), 0.0),
    (Box(0.0, LARGEST, (2,)), 1.0),
    (Box(-3.0, 1e300, (2,), np.float64), 0.0),
    (Box(-1e12, 5.0, (2,)), 0.0),
    (Box(100.0, np.inf, (2,)), 101.0),
    (Box(-np.inf, -100.0, (2,)), -101.0),
    (Box(-np.inf, 0.25, (2,)), -0.75),
    (Box(7.5, 1e20, (2,)), 8.5),
    (Box(-np.inf, np.inf, (2,)), 0.0),
]
"""Spaces without two bounds that are meant, and the mean with which a policy begins."""


@pytest.mark.parametrize(("space", "first"), NO_BOUNDS, ids=str)
def test_actions_without_two_bounds_that_are_meant_begin_within_one_unit_of_them(space: Box, first: float) -> None:
    tree = describe("Some-v0", PLANE, Dict(other=Box(-1.0, 1.0, (1,)), odd=Tuple([space]))).action
    spec = EnvironmentSpec("Some-v0", Tree.of(OBSERVATION), tree)
    weights = weights_of(fresh_policy(spec, network=Network(hidden_sizes=(8,), widest_range=1e4)), 0)
    noise = np.random.default_rng(0).standard_normal((200, 3)).astype(np.float32)
    for runner in (PolicyRunner(weights), runner_of(weights, inference="auto")):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            actions, _ = runner.act((np.zeros((200, 3), np.float32),), noise)
            odd = ActionMap(tree, runner.network)(actions)[[leaf.name for leaf in tree.leaves].index("odd.0")].astype(
                np.float64
            )
        assert all(space.contains(action.astype(space.dtype)) for action in odd)
        assert np.abs(np.median(odd, axis=0) - first).max() < 0.3
        # One of a hundred may be at each bound.
        assert len(np.unique(odd)) > 0.6 * odd.size


def test_each_element_of_a_box_is_scaled_by_its_own_bounds() -> None:
    low, high = np.array([-2.0, -1e6, 0.0, 100.0, 0.0]), np.array([6.0, 1e6, 1e6, np.inf, 1e9])
    actions = np.array([[0.5] * 5, [-0.5] * 5], np.float32)
    expected = [[4.0, 0.5, 7.5e5, 100.0, 0.5], [0.0, -0.5, 2.5e5, 100.0, 0.0]]
    assert mapped(described(Box(low, high, dtype=np.float64)), actions).tolist() == expected


@pytest.mark.parametrize("squashed", [False, True])
def test_policies_of_earlier_releases_are_scaled_to_all_finite_bounds(squashed: bool) -> None:
    space = described(Box(-1e6, 1e6, (1,)))
    outside = np.array([[50.0], [-50.0]], np.float32)
    assert mapped(space, outside, squashed=squashed, widest_range=Network().widest_range).tolist() == [[1e6], [-1e6]]
    # A bound that is not meant is no range of the tanh either.
    assert mapped(space, outside, squashed=squashed).tolist() == [[50.0], [-50.0]]


def test_actions_between_bounds_that_float32_can_not_tell_apart_differ() -> None:
    space = Box(1e9, 1e9 + 1.0, (1,), np.float64)
    found = mapped(described(space), np.linspace(-1.0, 1.0, 9, dtype=np.float32)[:, None])
    np.testing.assert_allclose(found[:, 0].astype(np.float64) - 1e9, np.linspace(0.0, 1.0, 9), atol=1e-6)


def test_half_bounded_actions_are_clipped_and_not_scaled() -> None:
    space = described(Box(0.0, np.inf, (2,)))
    assert mapped(space, np.array([[-3.0, 5.0]], np.float32)).tolist() == [[0.0, 5.0]]


@given(
    seed=st.integers(0, 10_000),
    low=st.floats(-100.0, 100.0, width=32),
    width=st.floats(0.5, 200.0, width=32),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_every_mapped_action_is_in_the_environments_space(seed: int, low: float, width: float, dtype: type) -> None:
    space = Box(low, low + width, (2, 3), dtype)
    actions = np.random.default_rng(seed).normal(0.0, 2.0, (5, 6)).astype(np.float32)
    for action in mapped(described(space), actions):
        assert action.shape == (2, 3)
        assert space.contains(action)


@pytest.mark.parametrize("bound", [0.1, 0.4, np.pi])
@pytest.mark.parametrize("squashed", [False, True])
def test_extreme_actions_of_a_float64_space_are_in_the_space(bound: float, squashed: bool) -> None:
    space = Box(-bound, bound, (1,), np.float64)
    for action in mapped(described(space), np.array([[50.0], [-50.0]], np.float32), squashed=squashed):
        assert space.contains(action)


@pytest.mark.parametrize("bounds", [(-2.0, 4.0), (-np.inf, np.inf)])
def test_an_action_that_is_nan_becomes_the_middle_of_its_range(bounds: tuple[float, float]) -> None:
    space = Box(*bounds, (2,), np.float32)
    (action,) = mapped(described(space), np.array([[np.nan, 0.5]], np.float32))
    assert space.contains(action)
    assert action[0] == (1.0 if np.isfinite(bounds[0]) else 0.0)
