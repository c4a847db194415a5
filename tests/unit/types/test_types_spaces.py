import json
import math

import pytest
from hypothesis import given

from penstock.types.block import MAX_COLUMN_NAME
from penstock.types.spaces import (
    SPACE_KINDS,
    BoxSpace,
    DiscreteSpace,
    MultiBinarySpace,
    MultiDiscreteSpace,
    Path,
    Space,
    Tree,
    is_column_of,
    is_image,
)
from tests.support.segments.random_spaces import trees
from tests.support.segments.spaces import ALL_SPECS, LEAVES, OBSERVED_LEAVES, nested

SPACES = pytest.mark.parametrize("space", [space for _, space in OBSERVED_LEAVES], ids=lambda space: space.shown())
TREES = list(dict.fromkeys(tree for spec in ALL_SPECS for tree in (spec.observation, spec.action)))


def test_the_examples_include_every_kind_of_space() -> None:
    assert {type(space) for _, space in LEAVES} == set(SPACE_KINDS.values())
    assert any(len(leaf.path) > 2 for tree in TREES for leaf in tree.leaves)


@SPACES
def test_a_space_is_restored_from_its_json_form(space: Space) -> None:
    value = json.loads(json.dumps(space.to_json()))
    assert SPACE_KINDS[value["kind"]].from_json(value) == space


def test_the_json_form_is_that_of_saved_checkpoints() -> None:
    assert json.dumps(DiscreteSpace(4, start=2).to_json()) == '{"kind": "discrete", "n": 4, "start": 2}'
    box = BoxSpace("float32", (2,), (-math.inf, -1.0), (math.inf, 1.0))
    assert json.dumps(box.to_json()) == (
        '{"kind": "box", "dtype": "float32", "shape": [2], "low": ["-inf", -1.0], "high": ["inf", 1.0]}'
    )


@pytest.mark.parametrize("tree", TREES, ids=Tree.shown)
def test_a_tree_is_restored_from_its_json_form(tree: Tree) -> None:
    assert Tree.from_json(json.loads(json.dumps(tree.to_json()))) == tree


@SPACES
def test_the_json_form_of_a_space_that_is_not_nested_is_that_of_its_leaf(space: Space) -> None:
    assert Tree.of(space).to_json() == space.to_json()
    assert Tree.from_json(space.to_json()) == Tree.of(space)


@pytest.mark.parametrize(
    ("space", "dtype"),
    [
        (DiscreteSpace(256), "uint8"),
        (DiscreteSpace(257), "int32"),
        (DiscreteSpace(4, -1), "int8"),
        (DiscreteSpace(2, 2**31 - 1), "int64"),
        (MultiDiscreteSpace((2,), (3, 256), (-128, 0)), "int32"),
        (MultiDiscreteSpace((2,), (3, 128), (-128, 0)), "int8"),
        (MultiBinarySpace((3,)), "uint8"),
    ],
)
def test_integers_are_stored_in_the_narrowest_type_that_holds_them(space: Space, dtype: str) -> None:
    assert space.observation_array[0] == dtype


def test_a_mask_has_a_bit_for_each_alternative_of_every_leaf() -> None:
    box = BoxSpace("float32", (2,), (0.0,), (1.0,))
    tree = nested(
        (("a",), DiscreteSpace(3, 7)),
        (("b",), box),
        (("c",), MultiDiscreteSpace((2,), (2, 5), (0, 0))),
        (("d",), MultiBinarySpace((2, 1))),
    )
    assert tree.choices == (3, 2, 5, 2, 2)
    assert Tree.of(box).choices == ()


@pytest.mark.parametrize(
    ("paths", "columns"),
    [
        ([()], ["observation"]),
        ([(0,), (1,)], ["observation.0", "observation.1"]),
        ([("Camera", 0), ("arm_2",)], ["observation.Camera.0", "observation.arm_2"]),
        # The first two would have the same name without their positions.
        (
            [("left arm",), ("left-arm",), ("left_arm",)],
            ["observation.left_arm-0", "observation.left_arm-1", "observation.left_arm"],
        ),
        ([("a.b",), ("a", "b")], ["observation.a_b-0", "observation.a.b"]),
        ([("",), ("é",)], ["observation._-0", "observation._-1"]),
        (
            [("k" * 52,), ("k" * 53,), ("k" * 54,)],
            [f"observation.{'k' * 52}", *(f"observation.{'k' * 50}-{i}" for i in (1, 2))],
        ),
        ([("k" * 49, "m"), ("k" * 49, "n" * 99)], [f"observation.{'k' * 49}.m", f"observation.{'k' * 49}-1"]),
    ],
)
def test_columns_are_named_after_the_paths_of_their_leaves(paths: list[Path], columns: list[str]) -> None:
    assert list(nested(*((path, DiscreteSpace(2)) for path in paths)).columns("observation")) == columns


@given(trees())
def test_columns_have_unique_short_names_that_are_found_by_their_prefix(tree: Tree) -> None:
    names = [*tree.columns("observation"), *tree.columns("action")]
    assert len(set(names)) == len(names) == 2 * len(tree.leaves)
    assert max(map(len, names)) <= MAX_COLUMN_NAME
    assert [name for name in names if is_column_of("action", name)] == names[len(tree.leaves) :]


@pytest.mark.parametrize(
    ("space", "has_choice"),
    [
        (DiscreteSpace(1), False),
        (DiscreteSpace(2), True),
        (MultiDiscreteSpace((2,), (1, 1), (0, 5)), False),
        (MultiDiscreteSpace((2,), (1, 2), (0, 5)), True),
        (MultiBinarySpace((0,)), False),
        (MultiBinarySpace((1,)), True),
        (BoxSpace("float32", (2,), (1.0, 2.0), (1.0, 2.0)), False),
        (BoxSpace("float32", (2,), (1.0, 2.0), (1.0, 3.0)), True),
    ],
)
def test_a_space_with_a_single_member_has_no_choice(space: Space, has_choice: bool) -> None:
    assert space.has_choice == has_choice


@pytest.mark.parametrize(
    ("space", "shown"),
    [
        (MultiDiscreteSpace((2,), (2, 5), (0, 0)), "MultiDiscrete([2, 5])"),
        (MultiDiscreteSpace((1, 2), (2, 5), (0, 3)), "MultiDiscrete([2, 5], shape=(1, 2), start=[0, 3])"),
        (MultiBinarySpace((4,)), "MultiBinary(4)"),
        (MultiBinarySpace((2, 2)), "MultiBinary([2, 2])"),
    ],
)
def test_a_space_is_shown_like_gymnasiums(space: Space, shown: str) -> None:
    assert space.shown() == shown


def test_messages_name_the_place_of_a_leaf_that_is_nested() -> None:
    tree = nested((("camera", 0), DiscreteSpace(2)))
    assert [leaf.place for leaf in (*tree.leaves, *Tree.of(DiscreteSpace(2)).leaves)] == [" at camera.0", ""]


@pytest.mark.parametrize("shape", [(84, 84), (84, 84, 3), (3, 84, 84)])
def test_bytes_in_two_or_three_dimensions_are_images(shape: tuple[int, ...]) -> None:
    assert is_image(BoxSpace("uint8", shape, (0.0,), (255.0,)))


@pytest.mark.parametrize(
    "space",
    [
        DiscreteSpace(3),
        BoxSpace("uint8", (84,), (0.0,), (255.0,)),
        BoxSpace("uint8", (2, 3, 84, 84), (0.0,), (255.0,)),
        BoxSpace("float32", (84, 84), (0.0,), (1.0,)),
    ],
)
def test_other_spaces_are_not_images(space: Space) -> None:
    assert not is_image(space)
