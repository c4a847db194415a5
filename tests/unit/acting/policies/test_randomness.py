import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.acting.policies import randomness
from penstock.acting.policies.randomness import Purpose, Streams
from penstock.algo.action_heads import ActionHead
from penstock.algo.network import Network, Noise, NoiseKind
from penstock.types.spaces import BoxSpace, DiscreteSpace, Leaf, MultiBinarySpace, MultiDiscreteSpace, Space, Tree


def drawn(kind: NoiseKind, streams: Streams, first_step: int, steps: int, size: int) -> NDArray[np.float32]:
    return streams.draw((Noise(kind, size),), first_step, steps)


Draw = Callable[..., NDArray[np.float32]]
uniforms, normals = (functools.partial(drawn, kind) for kind in (NoiseKind.UNIFORM, NoiseKind.NORMAL))
BOTH = pytest.mark.parametrize("draw", [uniforms, normals], ids=["uniform", "normal"])


def noise(
    draw: Draw,
    *,
    seed: int = 3,
    incarnation: int = 1,
    environments: tuple[int, ...] = (0,),
    first_step: int = 0,
    steps: int = 6,
    size: int = 3,
) -> NDArray[np.float32]:
    return draw(Streams(seed, incarnation, np.array(environments, np.uint32)), first_step, steps, size)


def seeds(*environments: int, seed: int = 3, incarnation: int = 1, purpose: Purpose = Purpose.TRAINING) -> list[int]:
    numbers = np.array(environments, np.uint32)
    return Streams(seed, incarnation, numbers).reset_seeds(purpose)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_philox_gives_the_known_answers_of_random123(counter: str, key: str, expected: str) -> None:
    low, high = (int(word, 16) for word in key.split())
    counters = [np.array([int(word, 16)], np.uint64) for word in counter.split()]
    words = randomness._philox(counters, high << 32 | low)
    assert " ".join(f"{int(word[0]):08x}" for word in words) == expected


def test_uniform_noise_is_the_upper_24_bits_of_philox() -> None:
    found = noise(uniforms, seed=0, incarnation=0, steps=1, size=4)
    words = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert found[0, 0].tolist() == [(word >> 8) / 2**24 for word in words]


@BOTH
@given(seed=st.integers(0, 2**64 - 1), incarnation=st.integers(0, 2**28 - 1), first_step=st.integers(0, 2**48 - 100))
def test_noise_is_a_function_of_seed_incarnation_environment_and_step(
    draw: Draw, seed: int, incarnation: int, first_step: int
) -> None:
    first = noise(draw, seed=seed, incarnation=incarnation, first_step=first_step)
    assert np.array_equal(first, noise(draw, seed=seed, incarnation=incarnation, first_step=first_step))
    assert np.isfinite(first).all()


@BOTH
@pytest.mark.parametrize(
    "other",
    [
        {"seed": 4},
        {"seed": 3 + 2**32},
        {"seed": 2**64 - 1 - 3},
        {"environments": (1,)},
        {"environments": (256,)},
        {"environments": (2**32 - 1,)},
        {"incarnation": 0},
        {"incarnation": 2},
        {"first_step": 6},
        {"first_step": 2**32},
        {"first_step": 2**33},
    ],
    ids=str,
)
def test_noise_differs_in_any_other_stream_or_step(draw: Draw, other: dict[str, Any]) -> None:
    assert not np.isin(noise(draw), noise(draw, **other)).any()


@BOTH
@given(steps=st.integers(1, 20), cut=st.integers(0, 20), first_step=st.sampled_from([0, 5, 2**32 - 7]))
def test_consecutive_windows_continue_the_same_stream(draw: Draw, steps: int, cut: int, first_step: int) -> None:
    cut = min(cut, steps)
    whole = noise(draw, first_step=first_step, steps=steps)
    parts = [
        noise(draw, first_step=first_step, steps=cut),
        noise(draw, first_step=first_step + cut, steps=steps - cut),
    ]
    assert np.array_equal(whole, np.concatenate(parts, axis=1))


@BOTH
def test_noise_does_not_depend_on_the_distribution_of_environments_over_actors(draw: Draw) -> None:
    together = noise(draw, environments=(0, 1, 2, 3))
    apart = [noise(draw, environments=(0, 1)), noise(draw, environments=(3,)), noise(draw, environments=(2,))]
    assert np.array_equal(together[[0, 1, 3, 2]], np.concatenate(apart))


@BOTH
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 9])
def test_no_number_occurs_twice_in_a_window(draw: Draw, size: int) -> None:
    window = noise(draw, environments=(0, 1), steps=4, size=size)
    assert window.shape == (2, 4, size)
    assert window.dtype == np.float32
    assert len(np.unique(window)) == window.size


def test_uniform_noise_is_uniform_from_zero_to_below_one() -> None:
    window = noise(uniforms, environments=tuple(range(8)), steps=5_000, size=5).astype(np.float64)
    assert window.min() >= 0.0
    assert window.max() < 1.0
    share = np.bincount((window * 20).astype(np.int64).ravel(), minlength=20) / window.size
    np.testing.assert_allclose(share, 0.05, atol=4.0 * np.sqrt(0.05 * 0.95 / window.size))


def test_normal_noise_has_the_moments_of_the_standard_normal() -> None:
    window = noise(normals, environments=tuple(range(8)), steps=5_000, size=5).astype(np.float64)
    count = window.size
    # The bounds are four standard errors. The variance of the k-th moment is (E x^2k - (E x^k)^2) / count.
    for power, moment, variance in [(1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)]:
        assert abs((window**power).mean() - moment) < 4.0 * np.sqrt(variance / count), power


def test_normal_noise_is_finite_where_uniform_noise_is_zero() -> None:
    # One of 2^24 uniform numbers is zero. This one was found by search, and is the radius of a normal number.
    stream: dict[str, Any] = {"seed": 0, "incarnation": 0, "environments": (3,), "first_step": 2_065_721, "steps": 1}
    assert noise(uniforms, **stream, size=4)[0, 0, 1] == 0.0
    assert np.isfinite(noise(normals, **stream, size=4)).all()


@BOTH
def test_noise_of_different_streams_and_of_successive_steps_is_uncorrelated(draw: Draw) -> None:
    window = noise(draw, environments=(0, 1, 2), steps=4_000, size=3).transpose(0, 2, 1).reshape(9, -1)
    between_streams = np.corrcoef(window) - np.eye(9)
    between_steps = [np.corrcoef(stream[:-1], stream[1:])[0, 1] for stream in window]
    assert np.abs(between_streams).max() < 4.5 / np.sqrt(4_000)
    assert np.abs(between_steps).max() < 4.5 / np.sqrt(4_000)


UNIFORM, NORMAL = NoiseKind.UNIFORM, NoiseKind.NORMAL
PARTS = (Noise(UNIFORM, 1), Noise(NORMAL, 3), Noise(UNIFORM, 5), Noise(NORMAL, 2))
STREAMS = Streams(3, 1, np.arange(4, dtype=np.uint32))


def test_normal_noise_is_computed_from_uniform_noise_by_box_and_muller() -> None:
    # Two radii, then two angles; the fourth normal number is not used.
    one, two, three, four = np.moveaxis(STREAMS.uniforms(0, 9, 4).astype(np.float64), -1, 0)
    radii = np.sqrt(-2.0 * np.log(1.0 - one)), np.sqrt(-2.0 * np.log(1.0 - two))
    angles = 2.0 * np.pi * three, 2.0 * np.pi * four
    expected = [radii[0] * np.cos(angles[0]), radii[1] * np.cos(angles[1]), radii[0] * np.sin(angles[0])]
    found = STREAMS.draw((Noise(NORMAL, 3),), 0, 9)
    np.testing.assert_allclose(found, np.stack(expected, axis=-1), rtol=1e-4, atol=1e-5)


def test_the_parts_of_noise_are_side_by_side() -> None:
    window = STREAMS.draw(PARTS, 0, 5_000)
    assert window.shape == (4, 5_000, 11)
    assert window.dtype == np.float32
    kinds = [part.kind for part in PARTS for _ in range(part.size)]
    for numbers, kind in zip(np.moveaxis(window, -1, 0), kinds, strict=True):
        assert (numbers.min() < 0.0) == (kind is NORMAL)
        deviation = 1.0 if kind is NORMAL else 1.0 / np.sqrt(12.0)
        assert abs(numbers.std() / deviation - 1.0) < 4.0 / np.sqrt(numbers.size)


@pytest.mark.parametrize("kind", NoiseKind)
def test_the_first_part_of_noise_is_the_noise_of_that_part_alone(kind: NoiseKind) -> None:
    first = Noise(kind, 3)
    assert np.array_equal(STREAMS.draw((first, *PARTS), 7, 6)[..., :3], STREAMS.draw((first,), 7, 6))


def test_the_parts_of_noise_share_no_uniform_number_and_are_uncorrelated() -> None:
    parts = (Noise(NORMAL, 2), Noise(NORMAL, 2), Noise(UNIFORM, 2), Noise(UNIFORM, 3), Noise(NORMAL, 3))
    window = STREAMS.draw(parts, 0, 4_000)
    assert len(np.unique(window[:, :100, 4:9])) == window[:, :100, 4:9].size
    numbers = window.transpose(2, 0, 1).reshape(12, -1).astype(np.float64)
    for seen in (numbers, numbers**2):
        assert np.abs(np.corrcoef(seen) - np.eye(12)).max() < 4.5 / np.sqrt(numbers.shape[1])


LEAVES: list[Space] = [
    DiscreteSpace(4, -1),
    BoxSpace("float32", (2, 3), (-2.0,) * 6, (np.inf,) * 6),
    MultiDiscreteSpace((3,), (2, 5, 3), (0, 0, 0)),
    MultiBinarySpace((4,)),
]
TREES = [*(Tree.of(space) for space in LEAVES), Tree(tuple(Leaf((i,), space) for i, space in enumerate(LEAVES)))]


@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("tree", TREES, ids=Tree.shown)
def test_actions_sampled_from_the_drawn_noise_follow_their_distribution(tree: Tree, squash: bool) -> None:
    count = 4_000
    head = ActionHead(tree, Network(initial_log_std=-0.3, squash_actions=squash))
    outputs = torch.linspace(-2.0, 2.0, head.outputs).expand(count, -1)
    with torch.no_grad():
        distribution = head.distribution(outputs, head.log_std(), None)
        window = torch.from_numpy(Streams(3, 0, np.zeros(1, np.uint32)).draw(head.noise, 0, count)[0])
        surprise = -distribution.log_prob(distribution.sample(window))
        # Log probabilities are those before the tanh.
        plain = ActionHead(tree, Network(initial_log_std=-0.3))
        entropy = plain.distribution(outputs, head.log_std(), None).entropy()
    # The entropy is the mean of -log p.
    assert abs(surprise.mean() - entropy[0]) < 4.0 * surprise.std() / count**0.5


def test_reset_seeds_differ_between_environments_runs_incarnations_and_purposes() -> None:
    found = [
        *seeds(0, 1, 2),
        *seeds(0, 1, 2, seed=4),
        *seeds(0, 1, 2, seed=3 + 2**32),
        *seeds(0, 1, 2, incarnation=2),
        *seeds(0, 1, 2, purpose=Purpose.EVALUATION),
    ]
    assert len(set(found)) == len(found)
    assert all(0 <= seed < 2**62 for seed in found)


def test_reset_seeds_do_not_depend_on_the_distribution_of_environments_over_actors() -> None:
    assert seeds(0, 1, 2, 3) == [*seeds(0, 1), *seeds(2), *seeds(3)]
