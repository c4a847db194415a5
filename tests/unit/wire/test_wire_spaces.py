import math

import pytest

from helpers.spaces import NAMES, SPECS
from penstock.errors import InvalidSegment
from penstock.types.spaces import SPACE_KINDS, BoxSpace, DiscreteSpace, EnvironmentSpec
from penstock.v1 import run_pb2
from penstock.wire.spaces import decode_environment, encode_environment

IMAGES = BoxSpace("uint8", (4, 84, 84), (0.0,), (255.0,))


def test_the_contract_has_a_message_for_every_kind_of_space() -> None:
    kinds = run_pb2.Space.DESCRIPTOR.oneofs_by_name["kind"].fields
    assert {kind.name for kind in kinds} == set(SPACE_KINDS)


@pytest.mark.parametrize(
    "spec",
    [
        *SPECS,
        EnvironmentSpec("A-v0", BoxSpace("float32", (2,), (-math.inf, 0.0), (math.inf, 1.0)), DiscreteSpace(3, 1)),
        EnvironmentSpec("B-v0", BoxSpace("float32", (6,), (0.0,) * 6, (1.0,) * 6), DiscreteSpace(3), frames=3),
        EnvironmentSpec("C-v0", IMAGES, BoxSpace("float32", (2,), (-1.0,), (1.0,)), frames=4),
    ],
    ids=[*NAMES, "flat", "stacked", "images"],
)
def test_a_decoded_environment_equals_the_encoded_one(spec: EnvironmentSpec) -> None:
    message = encode_environment(spec).SerializeToString()
    assert decode_environment(run_pb2.EnvironmentSpec.FromString(message)) == spec


def test_thousands_of_equal_bounds_are_encoded_as_one() -> None:
    message = encode_environment(EnvironmentSpec("C-v0", IMAGES, DiscreteSpace(3), frames=4))
    assert message.ByteSize() < 100


def test_a_message_without_frames_has_one_frame() -> None:
    message = encode_environment(EnvironmentSpec("C-v0", IMAGES, DiscreteSpace(3)))
    message.ClearField("frames")
    assert decode_environment(message).frames == 1


@pytest.mark.parametrize(("shape", "frames"), [((4, 84, 84), 3), ((), 2), ((4,), 2**31)])
def test_frames_that_do_not_divide_the_first_axis_are_refused(shape: tuple[int, ...], frames: int) -> None:
    space = BoxSpace("uint8", shape, (0.0,), (1.0,))
    message = encode_environment(EnvironmentSpec("D-v0", space, DiscreteSpace(3), frames=frames))
    with pytest.raises(InvalidSegment, match="frames can't be stacked"):
        decode_environment(message)


@pytest.mark.parametrize("bounds", [(), (0.0, 1.0), (0.0,) * 5])
def test_a_wrong_number_of_bounds_is_refused(bounds: tuple[float, ...]) -> None:
    message = encode_environment(EnvironmentSpec("D-v0", BoxSpace("float32", (4,), bounds, (1.0,)), DiscreteSpace(3)))
    with pytest.raises(InvalidSegment, match="1 or 4 bounds"):
        decode_environment(message)


def test_a_space_of_an_unknown_kind_is_refused() -> None:
    message = run_pb2.EnvironmentSpec(id="E-v0", observation=run_pb2.Space(), action=run_pb2.Space())
    with pytest.raises(InvalidSegment, match="no known kind"):
        decode_environment(message)
