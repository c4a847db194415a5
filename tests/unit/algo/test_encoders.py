"""Encoders compute what plain NumPy computes, for every kind of leaf and every size of board."""

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from penstock.algo.encoders import (
    Concatenated,
    Convolutions,
    Embeddings,
    Observer,
    Tokens,
    encoder_layers,
    scaled_images,
)
from penstock.algo.network import Network
from penstock.algo.normalisation import RunningMoments
from penstock.algo.policies import Inputs
from penstock.types.spaces import (
    BoxSpace,
    DiscreteSpace,
    Encoder,
    EnvironmentSpec,
    Leaf,
    MultiBinarySpace,
    MultiDiscreteSpace,
    Space,
    Tree,
)
from tests.support.training.policies import fresh_policy

FLOATS = BoxSpace("float32", (2, 3, 2, 2), (-math.inf,), (math.inf,))
LEVELS = BoxSpace("int8", (3,), (-1.0, 0.0, 2.0), (1.0, 3.0, 2.0))
FACES = BoxSpace("uint8", (4, 5), (0.0,), (2.0,))
GRID = MultiDiscreteSpace((2, 2), (3, 2, 4, 3), (0, -1, 5, 0))
FRAMES = BoxSpace("uint8", (2, 40, 36), (0.0,), (255.0,))


def observer_of(*spaces: Space, standardise: bool = False, encoders: Mapping[str, Encoder] | None = None) -> Observer:
    leaves = tuple(Leaf((f"part{position}",), space) for position, space in enumerate(spaces))
    spec = EnvironmentSpec("Parts-v0", Tree(leaves), Tree.of(DiscreteSpace(2)))
    return Observer(spec, encoders or {}, standardise=standardise)


def prepared(space: Space, values: NDArray[Any], encoder: Encoder | None = None) -> NDArray[Any]:
    observer = observer_of(space, encoders={"part0": encoder} if encoder else None)
    (result,) = observer.prepare((torch.from_numpy(values),), RunningMoments(observer.moments_shape))
    return result.numpy()


def one_hot(values: NDArray[Any], low: list[int], n: list[int]) -> NDArray[Any]:
    """Returns the rows of identity matrices, side by side."""
    columns = [np.eye(size)[row - start] for row, start, size in zip(values.T, low, n, strict=True)]
    return np.concatenate(columns, -1)


def integers(low: list[int], n: list[int], rows: int = 7) -> NDArray[np.int64]:
    return np.random.default_rng(0).integers(low, np.add(low, n), (rows, len(n)))


def test_floats_are_flattened() -> None:
    values = np.random.default_rng(0).normal(size=(7, *FLOATS.shape)).astype(np.float32)
    np.testing.assert_array_equal(prepared(FLOATS, values), values.reshape(7, 24))


@pytest.mark.parametrize("start", [-3, 0, 2])
def test_a_discrete_value_is_one_hot(start: int) -> None:
    values = integers([start], [5])
    np.testing.assert_array_equal(prepared(DiscreteSpace(5, start), values[:, 0]), one_hot(values, [start], [5]))


@pytest.mark.parametrize(
    ("space", "low", "n"),
    [
        (MultiDiscreteSpace((3,), (3, 2, 4), (0, -1, 5)), [0, -1, 5], [3, 2, 4]),
        (LEVELS, [-1, 0, 2], [3, 4, 1]),
        (MultiBinarySpace((3,)), [0, 0, 0], [2, 2, 2]),
    ],
    ids=["multi discrete", "box of integers", "bits"],
)
def test_several_integers_are_one_hot_side_by_side(space: Space, low: list[int], n: list[int]) -> None:
    values = integers(low, n)
    np.testing.assert_array_equal(prepared(space, values, "one_hot"), one_hot(values, low, n))


def test_bits_are_numbers_that_are_not_standardised() -> None:
    values = integers([0] * 6, [2] * 6).astype(np.uint8)
    observer = observer_of(MultiBinarySpace((6,)), standardise=True)
    assert observer.moments_shape == () and observer.numbers((torch.from_numpy(values),)) is None
    np.testing.assert_array_equal(prepared(MultiBinarySpace((6,)), values), values)


@pytest.mark.parametrize("encoder", ["one_hot", "embedding"])
def test_integers_out_of_range_count_as_the_nearest_in_range(encoder: Encoder) -> None:
    space = MultiDiscreteSpace((2,), (3, 4), (0, 5))
    outside = np.array([[-1, 4], [3, 9], [-(2**60), 2**60]])
    inside = np.array([[0, 5], [2, 8], [0, 8]])
    np.testing.assert_array_equal(prepared(space, outside, encoder), prepared(space, inside, encoder))


def test_embeddings_are_rows_of_one_table() -> None:
    low, n = [0, -1, 5], [3, 2, 4]
    observer = observer_of(MultiDiscreteSpace((3,), tuple(n), tuple(low)), encoders={"part0": "embedding"})
    (layer,), width = encoder_layers(observer, nn.Tanh)
    assert isinstance(layer, Embeddings)
    values, table = integers(low, n), layer.weight.detach().numpy()
    (numbers,) = observer.prepare((torch.from_numpy(values),), RunningMoments(()))
    expected = np.concatenate([table[values[:, 0]], table[3 + values[:, 1] + 1], table[5 + values[:, 2] - 5]], -1)
    np.testing.assert_array_equal(layer(numbers).detach(), expected)
    assert expected.shape == (7, width)


@pytest.mark.parametrize("encoder", ["token_mean", "token_gru"])
def test_tokens_are_read_up_to_the_first_zero_whatever_the_leading_dimensions(encoder: Encoder) -> None:
    observer = observer_of(MultiDiscreteSpace((5,), (9,) * 5, (0,) * 5), encoders={"part0": encoder})
    (layer,), width = encoder_layers(observer, nn.Tanh)
    assert isinstance(layer, Tokens)

    def features(*rows: list[int]) -> NDArray[np.float32]:
        (numbers,) = observer.prepare((torch.tensor(rows),), RunningMoments(()))
        found: NDArray[np.float32] = layer(numbers).detach().numpy()
        return found

    read = features([3, 7, 2, 0, 0], [3, 7, 2, 0, 8], [7, 3, 2, 0, 0], [0, 3, 7, 2, 1], [3, 3, 3, 3, 3])
    assert read.shape == (5, width)
    np.testing.assert_array_equal(read[0], read[1])
    assert np.allclose(read[0], read[2], atol=1e-6) == (encoder == "token_mean")
    assert not read[3].any() and read[4].any()
    table = layer.vectors.weight.detach()
    if layer.reader is None:
        expected = table[[3, 7, 2]].mean(0).numpy()
    else:
        with torch.no_grad():
            expected = layer.reader(table[[3, 7, 2]])[1][0].numpy()
    np.testing.assert_allclose(read[0], expected, rtol=1e-5, atol=1e-6)
    nested = layer(torch.tensor([[[3, 7, 2, 0, 0], [0, 0, 0, 0, 0]]])).detach().numpy()
    assert nested.shape == (1, 2, width)
    np.testing.assert_allclose(nested[0, 0], read[0], rtol=1e-5, atol=1e-6)


def test_a_discrete_space_of_many_values_is_embedded_by_default() -> None:
    assert observer_of(DiscreteSpace(1024)).encoders == ("one_hot",)
    assert observer_of(DiscreteSpace(1025)).encoders == ("embedding",)


def test_an_image_is_divided_by_255() -> None:
    values = np.random.default_rng(0).integers(0, 256, (3, *FRAMES.shape), np.uint8)
    np.testing.assert_allclose(prepared(FRAMES, values), values / 255.0, rtol=1e-6)


def test_a_board_of_few_integers_has_one_plane_per_integer() -> None:
    values = np.random.default_rng(0).integers(0, 3, (7, 4, 5), np.uint8)
    np.testing.assert_array_equal(prepared(FACES, values), np.moveaxis(np.eye(3)[values], -1, 1))


def test_a_board_of_multi_discrete_elements_has_as_many_planes_as_its_largest_element_has_values() -> None:
    values = integers([0, -1, 5, 0], [3, 2, 4, 3]).reshape(7, 2, 2)
    planes = np.eye(4)[values - np.array([[0, -1], [5, 0]])]
    np.testing.assert_array_equal(prepared(GRID, values, "board"), np.moveaxis(planes, -1, 1))


def test_the_planes_of_each_channel_of_a_board_are_side_by_side() -> None:
    # The shorter last axis is the channels.
    space = BoxSpace("int32", (6, 5, 2), (0.0,), (2.0,))
    values = np.random.default_rng(0).integers(0, 3, (7, 6, 5, 2))
    planes = np.eye(3)[values]
    expected = np.concatenate([np.moveaxis(planes[..., channel, :], -1, 1) for channel in range(2)], 1)
    np.testing.assert_array_equal(prepared(space, values), expected)


@pytest.mark.parametrize(("shape", "axis"), [((5, 4), None), ((2, 5, 4), 0), ((5, 4, 2), -1)])
def test_a_board_of_numbers_has_its_channels_first(shape: tuple[int, ...], axis: int | None) -> None:
    values = np.random.default_rng(0).normal(size=(7, *shape)).astype(np.float32)
    expected = values[:, None] if axis is None else np.moveaxis(values, 1 if axis == 0 else -1, 1)
    np.testing.assert_array_equal(prepared(BoxSpace("float32", shape, (-9.0,), (9.0,)), values), expected)


@pytest.mark.parametrize("shape", [(1, 1), (3, 40), (64, 64), (1, 200), (12, 12), (13, 13), (5, 3, 3)])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_boards_of_every_size_are_convolved_to_a_small_area(shape: tuple[int, ...], dtype: str) -> None:
    space = BoxSpace(dtype, shape, (0.0,), (1.0,))
    observer = observer_of(space, encoders={"part0": "board"})
    (layer,), features = encoder_layers(observer, functools.partial(nn.ReLU, inplace=True))
    assert isinstance(layer, Convolutions)
    assert features <= 64 * 12 * 12
    values = torch.ones(2, 3, *shape)
    (board,) = observer.prepare((values,), RunningMoments(observer.moments_shape))
    assert layer(board).shape == (2, 3, features)
    by_row = torch.stack([layer(each) for each in board.flatten(0, 1)[:, None]])
    torch.testing.assert_close(layer(board).flatten(0, 1), by_row[:, 0], rtol=1e-4, atol=1e-5)


def test_every_cell_of_a_board_has_an_effect() -> None:
    observer = observer_of(BoxSpace("float32", (13, 17), (-9.0,), (9.0,)))
    (layer,), _ = encoder_layers(observer, nn.Tanh)
    board = torch.randn(1, 1, 13, 17, requires_grad=True)
    (gradient,) = torch.autograd.grad(layer(board).square().sum(), board)
    assert gradient.abs().min() > 0.0


def test_a_nested_observation_is_the_concatenation_of_its_parts() -> None:
    spaces: tuple[Space, ...] = (DiscreteSpace(4), BoxSpace("float32", (3,), (-9.0,), (9.0,)), MultiBinarySpace((2,)))
    observer = observer_of(*spaces)
    (layer,), features = encoder_layers(observer, nn.Tanh)
    assert isinstance(layer, Concatenated)
    values = [np.arange(4), np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32), np.ones((4, 2), np.uint8)]
    parts = observer.prepare(tuple(map(torch.from_numpy, values)), RunningMoments(observer.moments_shape))
    expected = np.concatenate([np.eye(4), values[1], values[2]], -1)
    assert features == 9
    np.testing.assert_array_equal(layer(parts), expected)


def test_only_numbers_of_all_leaves_enter_the_moments() -> None:
    rng = np.random.default_rng(0)
    one, board = BoxSpace("float32", (3,), (-9.0,), (9.0,)), BoxSpace("float32", (4, 4, 2), (-9.0,), (9.0,))
    observer = observer_of(DiscreteSpace(4), one, FRAMES, MultiBinarySpace((2,)), board, standardise=True)
    values: list[NDArray[Any]] = [
        rng.integers(0, 4, 50),
        rng.normal(5.0, 3.0, (50, 3)).astype(np.float32),
        rng.integers(0, 256, (50, *FRAMES.shape), np.uint8),
        rng.integers(0, 2, (50, 2), np.uint8),
        rng.normal(-2.0, 0.1, (50, 4, 4, 2)).astype(np.float32),
    ]
    observation = tuple(map(torch.from_numpy, values))
    numbers = observer.numbers(observation)
    assert numbers is not None and observer.moments_shape == (3 + 32,)
    channels_first = np.moveaxis(values[4], -1, 1).reshape(50, -1)
    np.testing.assert_array_equal(numbers, np.concatenate([values[1], channels_first], -1))
    moments = RunningMoments(observer.moments_shape)
    moments.update(numbers)
    results = [each.numpy() for each in observer.prepare(observation, moments)]
    np.testing.assert_array_equal(results[0], np.eye(4)[values[0]])
    np.testing.assert_allclose(results[1], (values[1] - values[1].mean(0)) / values[1].std(0), rtol=1e-3, atol=1e-5)
    flat = (channels_first - channels_first.mean(0)) / channels_first.std(0)
    np.testing.assert_allclose(results[4].reshape(50, -1), flat, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(results[2], values[2] / 255.0, rtol=1e-6)
    np.testing.assert_array_equal(results[3], values[3])


@pytest.mark.parametrize("memory", [None, "gru"])
@pytest.mark.parametrize("trunk", ["separate", "shared"])
def test_a_policy_acts_on_every_kind_of_leaf_at_once(memory: Any, trunk: Any) -> None:
    spaces: tuple[Space, ...] = (DiscreteSpace(4, 2), FACES, FRAMES, GRID, DiscreteSpace(2000), LEVELS, FLOATS)
    leaves = tuple(Leaf(("part", position), space) for position, space in enumerate(spaces))
    spec = EnvironmentSpec("Parts-v0", Tree(leaves), Tree.of(DiscreteSpace(2)))
    policy = fresh_policy(spec, network=Network(hidden_sizes=(8,), trunk=trunk, memory=memory, memory_size=4))
    observation = tuple(torch.ones(2, 3, *space.observation_array[1]) for space in spaces)
    state, begun = (torch.zeros(2, 1, 4), torch.zeros(2, 3, dtype=torch.bool)) if memory else (None, None)
    joint, value = policy.evaluate(Inputs(observation, None, state, begun), bootstraps=True)
    assert value.shape == (2, 3)
    assert joint.entropy().shape == (2, 2)
    torch.autograd.backward(value.sum() + joint.log_prob((torch.zeros(2, 2, dtype=torch.int64),)).sum())
    unused = [name for name, parameter in policy.named_parameters() if parameter.grad is None]
    assert unused == []


@pytest.mark.parametrize("leading", [(5,), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_images_are_scaled_for_convolutions_in_one_pass(leading: tuple[int, ...], dtype: torch.dtype) -> None:
    images = torch.randint(256, (*leading, 3, 6, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    # Frames of a segment without its last row, which are not contiguous.
    images = images[:-1] if len(leading) == 1 else images[:, :-1]
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        scaled = scaled_images(images)
    assert scaled.dtype == dtype and scaled.shape == images.shape
    assert torch.equal(scaled, (images * (1.0 / 255.0)).to(dtype))
    rows = scaled.flatten(0, -4)
    assert rows.data_ptr() == rows.contiguous(memory_format=torch.channels_last).data_ptr() == scaled.data_ptr()
