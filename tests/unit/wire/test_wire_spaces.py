import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import InvalidSegment
from penstock.types.spaces import SPACE_KINDS, BoxSpace, DiscreteSpace, EnvironmentSpec, MultiBinarySpace, Path, Tree
from penstock.v1 import block_pb2, run_pb2
from penstock.wire.spaces import MAX_CHOICES, decode_environment, encode_environment
from tests.support.segments.random_spaces import specs
from tests.support.segments.spaces import ALL_SPECS, masked, nested

IMAGES = BoxSpace("uint8", (4, 84, 84), (0.0,), (255.0,))
MOVES = Tree.of(DiscreteSpace(3))
FLAT = BoxSpace("float32", (6,), (0.0,) * 6, (1.0,) * 6)
NESTED = EnvironmentSpec(
    "N-v0", nested((("a",), FLAT), (("b", 0), FLAT), (("b", 1), DiscreteSpace(2))), nested(((0,), DiscreteSpace(3)))
)

Damage = Callable[[run_pb2.EnvironmentSpec], object]


def spec_with(observation: BoxSpace, frames: int = 1) -> EnvironmentSpec:
    return EnvironmentSpec("D-v0", Tree.of(observation), MOVES, frames)


def test_the_contract_has_a_message_for_every_kind_of_space() -> None:
    kinds = run_pb2.Space.DESCRIPTOR.oneofs_by_name["kind"].fields
    assert {kind.name for kind in kinds} == {*SPACE_KINDS, Tree.KIND}


@pytest.mark.parametrize(
    "spec",
    [
        *ALL_SPECS,
        spec_with(FLAT, 3),
        spec_with(IMAGES, 4),
        EnvironmentSpec("E-v0", nested((("a",), FLAT), (("b",), IMAGES), (("c",), DiscreteSpace(2))), MOVES, frames=2),
    ],
)
def test_a_decoded_environment_equals_the_encoded_one(spec: EnvironmentSpec) -> None:
    message = encode_environment(spec).SerializeToString()
    assert decode_environment(run_pb2.EnvironmentSpec.FromString(message)) == spec


@given(specs())
def test_any_environment_survives_encoding_and_decoding(spec: EnvironmentSpec) -> None:
    message = encode_environment(spec).SerializeToString()
    assert decode_environment(run_pb2.EnvironmentSpec.FromString(message)) == spec


@given(st.sampled_from(ALL_SPECS), st.data())
def test_a_damaged_message_is_refused_or_is_the_message_of_another_environment(
    spec: EnvironmentSpec, data: st.DataObject
) -> None:
    message = bytearray(encode_environment(spec).SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(message) - 1))
        message[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=6))
    decoded_or_refused(bytes(message))


@given(st.binary(max_size=300))
@example(b"")
def test_random_bytes_are_refused_or_are_the_message_of_an_environment(message: bytes) -> None:
    decoded_or_refused(message)


def decoded_or_refused(data: bytes) -> None:
    try:
        message = run_pb2.EnvironmentSpec.FromString(data)
    except DecodeError:
        return
    try:
        spec = decode_environment(message)
    except InvalidSegment as error:
        assert "\n" not in str(error) and len(str(error)) < 700
    else:
        assert decode_environment(encode_environment(spec)) == spec


def test_a_single_box_or_discrete_space_is_encoded_as_in_contract_1() -> None:
    box = BoxSpace("float32", (2,), (-math.inf, -1.0), (math.inf, 1.0))
    spec = EnvironmentSpec("A-v0", Tree.of(box), Tree.of(DiscreteSpace(3, -1)))
    assert encode_environment(spec).SerializeToString().hex() == (
        "0a04412d7630122b0a2908071201021a10000000000000f0ff000000000000f0bf2210000000000000f07f000000000000f03f"
        "1a0612040803100120"
        "01"
    )


def test_thousands_of_equal_bounds_are_encoded_as_one() -> None:
    assert encode_environment(spec_with(IMAGES, 4)).ByteSize() < 100


def test_a_message_without_frames_has_one_frame() -> None:
    message = encode_environment(spec_with(IMAGES))
    message.ClearField("frames")
    assert decode_environment(message).frames == 1


@pytest.mark.parametrize(("shape", "frames"), [((4, 84, 84), 3), ((), 2), ((4,), 2**31)])
def test_frames_that_do_not_divide_the_first_axis_are_refused(shape: tuple[int, ...], frames: int) -> None:
    message = encode_environment(spec_with(BoxSpace("uint8", shape, (0.0,), (1.0,)), frames))
    with pytest.raises(InvalidSegment, match=f"{frames} frames can't be stacked"):
        decode_environment(message)


@pytest.mark.parametrize(
    "observation", [MOVES, nested((("a",), FLAT), (("b",), BoxSpace("float32", (4,), (0.0,), (1.0,))))]
)
def test_frames_must_divide_the_first_axis_of_every_box(observation: Tree) -> None:
    message = encode_environment(EnvironmentSpec("F-v0", observation, MOVES, frames=3))
    with pytest.raises(InvalidSegment, match="3 frames can't be stacked"):
        decode_environment(message)


@pytest.mark.parametrize("bounds", [(), (0.0, 1.0), (0.0,) * 5])
def test_a_wrong_number_of_bounds_is_refused(bounds: tuple[float, ...]) -> None:
    message = encode_environment(spec_with(BoxSpace("float32", (4,), bounds, (1.0,))))
    with pytest.raises(InvalidSegment, match="1 or 4 bounds"):
        decode_environment(message)


@pytest.mark.parametrize("side", ["low", "high"])
@pytest.mark.parametrize("bounds", [(math.nan, 0.5), (0.5, math.nan), (math.nan,)])
def test_a_bound_that_is_no_number_is_refused(side: str, bounds: tuple[float, ...]) -> None:
    message = encode_environment(spec_with(BoxSpace("float32", (2,), (0.0, 0.25), (0.75, 1.0))))
    del getattr(message.observation.box, side)[:]
    getattr(message.observation.box, side).extend(bounds)
    with pytest.raises(InvalidSegment, match="bounds must be numbers"):
        decode_environment(message)


@pytest.mark.parametrize("bits", [1, 2, 4, 2**32 - 1])
def test_a_mask_of_another_size_than_the_choices_of_the_action_is_refused(bits: int) -> None:
    message = encode_environment(replace(NESTED, mask_bits=bits))
    with pytest.raises(InvalidSegment, match=f"{bits} bits does not fit the actions.* 0 or 3 bits"):
        decode_environment(message)
    message.mask_bits = 3
    assert decode_environment(message) == masked(NESTED)


def test_the_types_of_an_action_are_sent_though_specs_without_them_are_equal() -> None:
    spec = replace(NESTED, action_types=("uint8",))
    assert decode_environment(encode_environment(spec)).action_types == ("uint8",)
    assert decode_environment(encode_environment(NESTED)).action_types == ()


@pytest.mark.parametrize("types", [["float32"], ["object"], ["", ""], ["int8"] * 300, ["O" * 1000]])
def test_types_that_no_action_has_are_refused(types: list[str]) -> None:
    message = encode_environment(NESTED)
    message.action_types.extend(types)
    with pytest.raises(InvalidSegment, match=r"^[^\n]*do not fit an action of 1 leaves") as caught:
        decode_environment(message)
    assert len(str(caught.value)) < 700


def test_a_space_of_an_unknown_kind_is_refused() -> None:
    message = run_pb2.EnvironmentSpec(id="E-v0", observation=run_pb2.Space(), action=run_pb2.Space())
    with pytest.raises(InvalidSegment, match="no known kind"):
        decode_environment(message)


def leaf(message: run_pb2.EnvironmentSpec, position: int) -> run_pb2.Leaf:
    return message.observation.tree.leaves[position]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda m: m.observation.tree.ClearField("leaves"), "has 0 leaves; expected 1 to 256"),
        (lambda m: m.observation.tree.leaves.extend([leaf(m, 0)] * 256), "has 259 leaves"),
        (lambda m: leaf(m, 0).ClearField("path"), "a path of 0 elements"),
        (lambda m: leaf(m, 0).path.extend([leaf(m, 0).path[0]] * 16), "a path of 17 elements; expected 1 to 16"),
        (lambda m: setattr(leaf(m, 0).path[0], "key", "k" * 257), "has 257 characters; the maximum is 256"),
        (lambda m: leaf(m, 0).path[0].Clear(), "neither a key nor a position"),
        (lambda m: leaf(m, 0).space.tree.SetInParent(), "a leaf of a space is a tree"),
        (lambda m: leaf(m, 0).space.Clear(), "no known kind"),
        (lambda m: setattr(leaf(m, 0).space.discrete, "n", 0), "n is 0, and must be at least 1"),
        (lambda m: setattr(leaf(m, 2).space.discrete, "start", 2**63 - 1), "integers up to 9223372036854775808"),
    ],
)
def test_a_malformed_leaf_is_refused(damage: Damage, reason: str) -> None:
    message = encode_environment(NESTED)
    damage(message)
    with pytest.raises(InvalidSegment, match=reason):
        decode_environment(message)


@pytest.mark.parametrize(
    "paths",
    [
        [("a",), ("a",)],
        [("a",), ("a", "b")],
        [("a", "b"), ("a",)],
        [("a",), (0,)],
        [(0,), ("a",)],
        [("a", "b"), ("a", 0)],
        [(1,), (0,)],
        [(0,), (2,)],
        [(1,)],
        [("a", 1)],
        [("a", "b"), ("c",), ("a", "d")],
        [(0, "b"), (1,), (0, "d")],
    ],
)
def test_paths_that_no_nested_space_has_are_refused(paths: list[Path]) -> None:
    tree = nested(*((path, DiscreteSpace(2)) for path in paths))
    with pytest.raises(InvalidSegment, match="of a space"):
        decode_environment(encode_environment(EnvironmentSpec("P-v0", tree, MOVES)))


MultiDiscrete, MultiBinary, Box = run_pb2.MultiDiscreteSpace, run_pb2.MultiBinarySpace, run_pb2.BoxSpace
LARGE = 2**32 - 1


@pytest.mark.parametrize(
    ("space", "reason"),
    [
        (run_pb2.Space(multi_discrete=MultiDiscrete(shape=[2], n=[2], start=[0, 0])), "1 values of n and 2 of start"),
        (run_pb2.Space(multi_discrete=MultiDiscrete(shape=[2], n=[2, 2])), "2 values of n and 0 of start; expected 2"),
        (run_pb2.Space(multi_discrete=MultiDiscrete(shape=[2], n=[2, 0], start=[0, 0])), "n is 0"),
        (run_pb2.Space(multi_discrete=MultiDiscrete(shape=[0])), "none of size 0"),
        (run_pb2.Space(multi_discrete=MultiDiscrete(shape=[LARGE] * 32)), "0 values of n"),
        (run_pb2.Space(multi_discrete=MultiDiscrete(shape=[1], n=[2], start=[2**63 - 1])), "the maximum is 92"),
        (run_pb2.Space(multi_discrete=MultiDiscrete(shape=[2], n=[LARGE] * 2, start=[0, 0])), "have 8589934590 alter"),
        (run_pb2.Space(multi_binary=MultiBinary(shape=[2, 0])), "none of size 0"),
        (run_pb2.Space(multi_binary=MultiBinary(shape=[1] * 33)), "33 dimensions"),
        (run_pb2.Space(multi_binary=MultiBinary(shape=[LARGE] * 32)), "elements; the maximum is 67108864"),
        (run_pb2.Space(multi_binary=MultiBinary(shape=[2**26])), "have 134217728 alternatives; the maximum is 4194304"),
        (run_pb2.Space(discrete=run_pb2.DiscreteSpace(n=LARGE)), "have 4294967295 alternatives"),
        (
            run_pb2.Space(box=Box(data_type=block_pb2.DATA_TYPE_FLOAT32, shape=[2**27], low=[0], high=[0])),
            "134217728 elements",
        ),
        (
            run_pb2.Space(box=Box(data_type=block_pb2.DATA_TYPE_FLOAT32, shape=[1] * 100_000, low=[0], high=[0])),
            "100000 dimensions",
        ),
        (run_pb2.Space(box=Box(data_type=block_pb2.DATA_TYPE_FLOAT32, shape=[0])), "none of size 0"),
        (
            run_pb2.Space(box=Box(data_type=block_pb2.DATA_TYPE_FLOAT32, shape=[1], low=[math.nan], high=[0])),
            "bounds must be numbers",
        ),
        (
            run_pb2.Space(box=Box(data_type=block_pb2.DATA_TYPE_UNSPECIFIED, shape=[1], low=[0], high=[0])),
            "known data type",
        ),
    ],
)
@pytest.mark.parametrize("role", ["observation", "action"])
def test_a_space_out_of_the_limits_is_refused(space: run_pb2.Space, reason: str, role: str) -> None:
    message = encode_environment(spec_with(FLAT))
    getattr(message, role).CopyFrom(space)
    with pytest.raises(InvalidSegment, match=reason):
        decode_environment(message)


def test_the_choices_of_all_leaves_count_together() -> None:
    half = MultiBinarySpace((MAX_CHOICES // 4,))
    tree = nested(((0,), half), ((1,), half))
    assert decode_environment(encode_environment(EnvironmentSpec("L-v0", tree, MOVES))).observation == tree
    more = nested(((0,), half), ((1,), half), ((2,), DiscreteSpace(1)))
    with pytest.raises(InvalidSegment, match=f"{MAX_CHOICES + 1} alternatives"):
        decode_environment(encode_environment(EnvironmentSpec("L-v0", more, MOVES)))
