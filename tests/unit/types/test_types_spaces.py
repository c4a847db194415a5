import json
import math

import pytest

from helpers.spaces import ACTIONS, NAMES
from penstock.types.spaces import SPACE_KINDS, BoxSpace, DiscreteSpace, Space, is_image

SPACES = pytest.mark.parametrize("space", [space for _, space in ACTIONS], ids=NAMES)


def test_the_examples_include_every_kind_of_space() -> None:
    assert {type(space) for _, space in ACTIONS} == set(SPACE_KINDS.values())


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


@pytest.mark.parametrize(
    ("space", "has_choice"),
    [
        (DiscreteSpace(1), False),
        (DiscreteSpace(2), True),
        (BoxSpace("float32", (2,), (1.0, 2.0), (1.0, 2.0)), False),
        (BoxSpace("float32", (2,), (1.0, 2.0), (1.0, 3.0)), True),
    ],
)
def test_a_space_with_a_single_member_has_no_choice(space: Space, has_choice: bool) -> None:
    assert space.has_choice == has_choice


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
