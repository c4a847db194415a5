"""Environments as messages."""

import math

import pytest

from penstock.errors import InvalidSegment
from penstock.types import BoxSpace, DiscreteSpace, EnvironmentSpec
from penstock.v1 import run_pb2
from penstock.wire.schema import decode_environment, encode_environment

PIXELS = BoxSpace("uint8", (4, 84, 84), (0.0,), (255.0,))


@pytest.mark.parametrize(
    "spec",
    [
        EnvironmentSpec("A-v0", BoxSpace("float32", (2,), (-math.inf, 0.0), (math.inf, 1.0)), DiscreteSpace(3, 1)),
        EnvironmentSpec("B-v0", BoxSpace("float32", (6,), (0.0,) * 6, (1.0,) * 6), DiscreteSpace(3), frames=3),
        EnvironmentSpec("C-v0", PIXELS, BoxSpace("float32", (2,), (-1.0,), (1.0,)), frames=4),
    ],
    ids=["flat", "stacked", "pixels"],
)
def test_an_environment_comes_back_from_its_message(spec: EnvironmentSpec) -> None:
    message = encode_environment(spec).SerializeToString()
    assert decode_environment(run_pb2.EnvironmentSpec.FromString(message)) == spec


def test_thousands_of_equal_bounds_travel_as_one() -> None:
    message = encode_environment(EnvironmentSpec("C-v0", PIXELS, DiscreteSpace(3), frames=4))
    assert message.ByteSize() < 100


def test_an_actor_that_knows_of_no_frames_brings_one() -> None:
    message = encode_environment(EnvironmentSpec("C-v0", PIXELS, DiscreteSpace(3)))
    message.ClearField("frames")
    assert decode_environment(message).frames == 1


@pytest.mark.parametrize(("shape", "frames"), [((4, 84, 84), 3), ((), 2), ((4,), 2**31)])
def test_frames_that_do_not_fill_an_observation_are_refused(shape: tuple[int, ...], frames: int) -> None:
    space = BoxSpace("uint8", shape, (0.0,), (1.0,))
    message = encode_environment(EnvironmentSpec("D-v0", space, DiscreteSpace(3), frames=frames))
    with pytest.raises(InvalidSegment, match="frames can't be stacked"):
        decode_environment(message)


@pytest.mark.parametrize("bounds", [(), (0.0, 1.0), (0.0,) * 5])
def test_bounds_are_one_for_each_element_or_one_for_all(bounds: tuple[float, ...]) -> None:
    message = encode_environment(EnvironmentSpec("D-v0", BoxSpace("float32", (4,), bounds, (1.0,)), DiscreteSpace(3)))
    with pytest.raises(InvalidSegment, match="1 or 4 bounds"):
        decode_environment(message)
