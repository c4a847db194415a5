"""Buffers of the leaves of observations, and the values that they refuse."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

from penstock.acting.values.leaf_buffers import LeafBuffer, Unusable, ValueCheck
from penstock.acting.values.leaves import flatten, space_at, tree_of
from penstock.types.spaces import DiscreteSpace, Leaf, Tree
from tests.support.segments.spaces import OBSERVATION_NAMES, OBSERVATIONS

PLANE = Box(-1.0, 1.0, (2,), np.float32)
COUNT = 5


def buffer_of(space: gymnasium.Space[Any], count: int = 2) -> LeafBuffer:
    (leaf,) = tree_of("Some-v0", "observation", space).leaves
    return LeafBuffer(leaf, space, count)


@pytest.mark.parametrize(("space", "tree"), OBSERVATIONS, ids=OBSERVATION_NAMES)
def test_every_kind_of_leaf_is_copied_exactly(space: gymnasium.Space[Any], tree: Tree) -> None:
    space.seed(0)
    samples = [flatten(tree, space.sample()) for _ in range(COUNT)]
    for leaf, values in zip(tree.leaves, zip(*samples, strict=True), strict=True):
        buffer = LeafBuffer(leaf, space_at(space, leaf.path), COUNT)
        rows = buffer.rows
        buffer.fill(values)
        assert buffer.rows is rows
        dtype, shape = leaf.space.observation_array
        assert (rows.dtype.name, rows.shape) == (dtype, (COUNT, *shape))
        np.testing.assert_array_equal(rows, np.stack(values))


def test_a_row_is_a_copy_of_the_environments_array() -> None:
    buffer, reused = buffer_of(PLANE), np.zeros(2, np.float32)
    buffer.fill([reused, reused])
    reused[:] = 0.5
    assert buffer.rows.tolist() == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("value", [[0.25, 0.5], (0.25, 0.5), np.array([0.25, 0.5]), np.array([0.25, 0.5], np.float16)])
def test_lists_and_other_types_of_floats_are_converted(value: Any) -> None:
    buffer = buffer_of(PLANE)
    buffer.fill([np.zeros(2, np.float32), value])
    assert buffer.rows.tolist() == [[0.0, 0.0], [0.25, 0.5]]


@pytest.mark.parametrize("value", [2, np.int64(2), np.array(2, np.uint8), np.int8(2)])
def test_choices_of_any_integer_type_are_converted(value: Any) -> None:
    buffer = buffer_of(Discrete(4, start=-1))
    buffer.fill([-1, value])
    assert buffer.rows.tolist() == [-1, 2]


def test_truth_values_are_bits() -> None:
    buffer = buffer_of(MultiBinary(2))
    buffer.fill([np.array([True, False]), [False, True]])
    assert buffer.rows.tolist() == [[1, 0], [0, 1]]


def test_a_box_may_exceed_its_bounds() -> None:
    buffer = buffer_of(PLANE)
    buffer.fill([np.array([5.0, -5.0], np.float32), np.zeros(2, np.float32)])
    assert buffer.rows[0].tolist() == [5.0, -5.0]


@pytest.mark.parametrize(
    ("space", "good", "bad", "fault"),
    [
        (PLANE, [0.0, 0.0], np.zeros(3, np.float32), r"of shape \(3,\) and type float32, .* \(2,\) and float32"),
        (PLANE, [0.0, 0.0], np.zeros((1, 2), np.float32), r"of shape \(1, 2\)"),
        (PLANE, [0.0, 0.0], np.array([1j, 0]), "and type complex128"),
        (PLANE, [0.0, 0.0], "left", r"of shape \(\) and type <U4"),
        (PLANE, [0.0, 0.0], [[1.0], [1.0, 2.0]], "that is not an array"),
        (PLANE, [0.0, 0.0], None, "and type object"),
        (PLANE, [0.0, 0.0], np.array([0.0, np.nan], np.float32), "with nan"),
        (PLANE, [0.0, 0.0], np.array([-np.inf, 0.0], np.float32), "with -inf"),
        (Discrete(4, start=-1), 0, 3, r"with 3, outside of Discrete\(4, start=-1\)"),
        (Discrete(4, start=-1), 0, -2, r"with -2, outside of Discrete\(4, start=-1\)"),
        (Discrete(4, start=-1), 0, 2**70, r"where its space has Discrete\(4, start=-1\)"),
        (Discrete(4), 0, 1.0, r"of shape \(\) and type float64, where its space has Discrete\(4, start=0\)"),
        (Discrete(4), 0, np.array([1]), r"of shape \(1,\)"),
        (Discrete(4), 0, "1", "and type <U1"),
        (MultiDiscrete([3, 2]), [0, 0], [0, 2], r"with 2 at \[1\], outside of MultiDiscrete\(\[3, 2\]\)"),
        (MultiDiscrete([3, 2]), [0, 0], [0, 0, 0], r"of shape \(3,\)"),
        (MultiDiscrete([3, 2]), [0, 0], [0.0, 1.0], "and type float64"),
        (MultiBinary(2), [0, 0], [0, 2], r"with 2 at \[1\], outside of MultiBinary\(2\)"),
        (MultiBinary(2), [0, 0], [0, -1], r"with -1 at \[1\], outside of MultiBinary"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_row(
    space: gymnasium.Space[Any], good: Any, bad: Any, fault: str
) -> None:
    buffer = buffer_of(space, 3)
    with pytest.raises(Unusable, match=f"^an observation .*{fault}") as caught:
        buffer.fill([good, bad, good])
    assert caught.value.index == 1
    assert "\n" not in caught.value.what


def test_a_refused_value_of_a_float64_space_does_not_fit_float32() -> None:
    buffer = buffer_of(Box(-np.inf, np.inf, (2,), np.float64))
    with pytest.raises(Unusable, match=r"with 1e\+100 at \[1\], which float32 can't hold"):
        buffer.fill([np.zeros(2), np.array([0.0, 1e100])])


def test_a_value_that_the_type_of_the_space_can_not_hold_is_named_as_it_was() -> None:
    with pytest.raises(Unusable, match=r"with 1e\+100 at \[0\], which float32 can't hold"):
        buffer_of(PLANE).fill([[0.0, 0.0], np.array([1e100, 0.0])])
    with pytest.raises(Unusable, match=r"with inf at \[0\]$"):
        buffer_of(Box(-1.0, 1.0, (1,), np.float16), 1).fill([np.array([1e6])])


def test_the_fault_of_a_nested_leaf_names_it() -> None:
    leaf = Leaf(("robot", "arms", 0), DiscreteSpace(3))
    with pytest.raises(Unusable, match=r"^an observation with 3 at robot\.arms\.0, outside of Discrete\(3, start=0\)$"):
        ValueCheck(leaf)(np.array([0, 3]))
    with pytest.raises(Unusable, match=r"^an observation of shape \(2,\) and type int64 at robot\.arms\.0, "):
        LeafBuffer(leaf, Discrete(3), 1).fill([[0, 1]])


def test_a_choice_is_checked_before_it_is_stored_in_a_narrow_type() -> None:
    buffer = buffer_of(Discrete(4), 1)
    assert buffer.rows.dtype == np.uint8
    with pytest.raises(Unusable, match="with 257"):
        buffer.fill([257])
    with pytest.raises(Unusable, match="with -255"):
        buffer.fill([-255])
