"""Trees of spaces, and samples and batches of nested spaces as tuples of arrays."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.acting.values.leaves import (
    ActionForm,
    Role,
    action_types,
    check_keys,
    flatten,
    left_out,
    space_at,
    tree_of,
    unflatten,
)
from penstock.acting.values.spaces import ActionMap
from penstock.algo.network import Network
from penstock.errors import ConfigurationError
from penstock.types.spaces import Tree
from tests.support.segments.spaces import ACTIONS, NAMES, OBSERVATION_NAMES, OBSERVATIONS

Spaces = gymnasium.Space[Any]

PLANE = Box(-1.0, 1.0, (2,), np.float32)
NESTED = Dict(pair=Tuple([Discrete(4), PLANE]), switches=MultiBinary(3))


def simple_spaces(floats: list[str]) -> st.SearchStrategy[Spaces]:
    """Returns spaces that are not nested, with any shape and start."""
    shapes = st.lists(st.integers(1, 3), min_size=1, max_size=3)
    makers: list[Callable[[list[int], int, str], Spaces]] = [
        lambda shape, number, dtype: Box(-1.0, number, tuple(shape), np.dtype(dtype).type),
        lambda shape, number, dtype: Discrete(number, start=-number),
        lambda shape, number, dtype: MultiDiscrete(np.full(shape, number)),
        lambda shape, number, dtype: MultiBinary(shape),
    ]
    return st.builds(
        lambda maker, shape, number, dtype: maker(shape, number, dtype),
        st.sampled_from(makers),
        shapes,
        st.integers(1, 300),
        st.sampled_from(floats),
    )


def nested_spaces(floats: list[str]) -> st.SearchStrategy[Spaces]:
    """Returns Dicts and Tuples of spaces, up to some levels deep, and spaces that are not nested."""
    keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    return st.recursive(
        simple_spaces(floats),
        lambda inner: st.one_of(
            st.dictionaries(keys, inner, min_size=1, max_size=3).map(Dict),
            st.lists(inner, min_size=1, max_size=3).map(Tuple),
        ),
        max_leaves=6,
    )


def assert_same(found: Any, expected: Any) -> None:
    """Asserts that two samples have the same nesting, keys and values."""
    if isinstance(expected, dict):
        assert isinstance(found, dict)
        assert list(found) == list(expected)
        for key, value in expected.items():
            assert_same(found[key], value)
    elif isinstance(expected, tuple):
        assert isinstance(found, tuple)
        assert len(found) == len(expected)
        for mine, theirs in zip(found, expected, strict=True):
            assert_same(mine, theirs)
    else:
        assert found is expected or np.array_equal(found, expected)


@given(space=nested_spaces(["float32", "float64"]), seed=st.integers(0, 1000))
def test_samples_survive_a_round_trip(space: Spaces, seed: int) -> None:
    space.seed(seed)
    tree, sample = tree_of("Some-v0", "observation", space), space.sample()
    values = flatten(tree, sample)
    assert [np.shape(value) for value in values] == [leaf.space.observation_array[1] for leaf in tree.leaves]
    for leaf, value in zip(tree.leaves, values, strict=True):
        assert space_at(space, leaf.path).contains(value)
    assert_same(unflatten(tree, values), sample)
    check_keys(space, sample)


@given(space=nested_spaces(["float32", "float64"]), seed=st.integers(0, 1000), count=st.integers(1, 4))
def test_batches_survive_a_round_trip_without_copies(space: Spaces, seed: int, count: int) -> None:
    space.seed(seed)
    tree, samples = tree_of("Some-v0", "observation", space), [space.sample() for _ in range(count)]
    empty: Any = create_empty_array(space, count)
    batch: Any = concatenate(space, samples, empty)
    leaves = flatten(tree, batch)
    for position, leaf in enumerate(leaves):
        assert len(leaf) == count
        for row, sample in zip(leaf, samples, strict=True):
            np.testing.assert_array_equal(row, flatten(tree, sample)[position])
    nested = unflatten(tree, leaves)
    assert_same(nested, batch)
    assert all(mine is theirs for mine, theirs in zip(flatten(tree, nested), leaves, strict=True))


@given(space=nested_spaces(["float32"]), seed=st.integers(0, 1000), count=st.integers(1, 4))
def test_actions_have_the_nesting_and_the_types_of_their_space(space: Spaces, seed: int, count: int) -> None:
    tree, generator = tree_of("Some-v0", "action", space), np.random.default_rng(seed)
    action = tuple(policy_actions(leaf.space, count, generator) for leaf in tree.leaves)
    form, mapped = ActionForm(tree, action_types(tree, space)), ActionMap(tree, Network())(action)
    rows = form.rows(mapped)
    assert space.contains(form.single(tuple(leaf[:1] for leaf in mapped)))
    for index in range(count):
        assert space.contains(rows[index])
    assert batch_space(space, count).contains(form.batch(mapped))


def policy_actions(space: Any, count: int, generator: np.random.Generator) -> NDArray[np.generic]:
    """Returns random actions of a policy for one leaf, [N, ...]."""
    dtype, shape = space.action_array
    if space.choices:
        return generator.integers(0, np.array(space.choices).reshape(shape), (count, *shape), dtype)
    return generator.normal(0.0, 2.0, (count, *shape)).astype(dtype)


@pytest.mark.parametrize(
    ("role", "space", "tree"),
    [("observation", *example) for example in OBSERVATIONS] + [("action", *example) for example in ACTIONS],
    ids=[f"observation {name}" for name in OBSERVATION_NAMES] + [f"action {name}" for name in NAMES],
)
def test_the_tree_of_a_space_has_its_leaves(role: Role, space: Spaces, tree: Tree) -> None:
    assert tree_of("Some-v0", role, space) == tree


def test_leaves_have_the_order_of_the_space_and_not_of_the_sample() -> None:
    tree = tree_of("Some-v0", "observation", NESTED)
    assert [leaf.name for leaf in tree.leaves] == ["pair.0", "pair.1", "switches"]
    assert flatten(tree, {"switches": "c", "pair": ("a", "b")}) == ("a", "b", "c")


def test_spaces_without_elements_are_left_out_without_a_name() -> None:
    nothing = Box(0, 1, (0,), np.float32)
    space = Dict(nothing=nothing, inner=Tuple([nothing, PLANE]))
    tree = tree_of("Some-v0", "observation", space)
    assert [leaf.name for leaf in tree.leaves] == ["inner.1"] and left_out(space) == ()
    plane = np.ones(2, np.float32)
    sample = {"nothing": np.zeros(0, np.float32), "inner": (np.zeros(0, np.float32), plane)}
    assert flatten(tree, sample)[0] is plane
    check_keys(space, sample)


def test_texts_are_left_out_and_named() -> None:
    space = Dict(mission=Text(4), inner=Tuple([PLANE, Text(4)]))
    tree = tree_of("Some-v0", "observation", space)
    # A Dict of keywords has their order.
    assert [leaf.name for leaf in tree.leaves] == ["inner.0"]
    assert sorted(left_out(space)) == ["inner.1", "mission"]
    assert left_out(NESTED) == ()
    sample = {"mission": "go", "inner": (np.zeros(2, np.float32), "on")}
    assert flatten(tree, sample)[0] is sample["inner"][0]
    check_keys(space, sample)


@pytest.mark.parametrize(
    ("sample", "fault"),
    [
        ({"pair": (1, [0, 0])}, "an observation without 'switches', where a dict of pair was received"),
        ({"pair": (1,), "switches": 0}, r"an observation without 'pair\.1', where a tuple of 1 was received"),
        ({"pair": 3, "switches": 0}, r"an observation without 'pair\.0', where a value of type int was received"),
        (None, "an observation without 'pair', where a value of type NoneType was received"),
        ({}, "an observation without 'pair', where a dict of nothing was received"),
    ],
)
def test_a_sample_that_lacks_a_leaf_is_refused_in_one_line(sample: Any, fault: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{fault}; it must have every leaf of its space$"):
        flatten(tree_of("Some-v0", "observation", NESTED), sample)


@pytest.mark.parametrize(
    ("sample", "fault"),
    [
        ({"pair": (1, 0), "switches": 0, "extra": 1}, "with the key 'extra', where its space has pair, switches"),
        ({"pair": (1, 0, 2), "switches": 0}, "with a tuple of 3, where its space has a tuple of 2"),
    ],
)
def test_a_sample_with_more_than_its_space_is_refused_in_one_line(sample: Any, fault: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^an observation {fault}; remove [^\\n]*$"):
        check_keys(NESTED, sample)


def test_a_box_of_many_integers_is_no_space_of_actions() -> None:
    few = Box(np.array([-3, 0], np.int8), np.array([2, 9], np.int8), dtype=np.int8)
    (space,) = tree_of("Some-v0", "action", few).spaces
    assert space.choices == (6, 10)
    with pytest.raises(ConfigurationError, match=r"^Some-v0 has the action space Box\([^\n]*few integers[^\n]*$"):
        tree_of("Some-v0", "action", Box(0, 10_000, (1,), np.int32))
