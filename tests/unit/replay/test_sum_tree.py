import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.replay.sum_tree import SumTree


def make_tree(masses: NDArray[np.float64] | list[float]) -> SumTree:
    values = np.asarray(masses, np.float64)
    tree = SumTree(values.size)
    tree.update(np.arange(values.size), values)
    return tree


def slow_draw(masses: NDArray[np.float64], uniforms: NDArray[np.float64]) -> list[int]:
    """Walks along the masses for every draw, as the definition reads."""
    drawn = []
    for stratum, uniform in enumerate(uniforms):
        target = (stratum + uniform) * masses.sum() / uniforms.size
        leaf = 0
        while target >= masses[: leaf + 1].sum():
            leaf += 1
        drawn.append(leaf)
    return drawn


@given(capacity=st.integers(1, 70), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_the_root_is_the_sum_of_the_leaves_after_any_updates(capacity: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    tree, expected = SumTree(capacity), np.zeros(capacity)
    for _ in range(40):
        leaves = random.integers(0, capacity, random.integers(1, 20))
        masses = random.exponential(10.0 ** random.integers(-6, 6), leaves.size)
        tree.update(leaves, masses)
        for leaf, mass in zip(leaves, masses, strict=True):
            expected[leaf] = mass
        np.testing.assert_array_equal(tree.masses, expected)
        assert tree.total == pytest.approx(expected.sum(), rel=1e-9)


def test_draws_fall_where_the_running_sum_says() -> None:
    # Whole masses, power-of-two batches and eighths as uniforms leave nothing to round.
    random = np.random.default_rng(0)
    for capacity in (1, 2, 3, 5, 8, 13, 64, 100):
        masses = random.integers(0, 9, capacity).astype(np.float64)
        masses[random.integers(capacity)] = 4.0
        uniforms = random.integers(0, 8, 32) / 8
        assert make_tree(masses).draw(uniforms).tolist() == slow_draw(masses, uniforms)


@given(capacity=st.integers(1, 300), batch=st.integers(1, 512), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=100, deadline=None)
def test_in_a_stratified_batch_each_count_is_within_two_of_its_share(capacity: int, batch: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    masses = random.exponential(1.0, capacity) ** 4
    leaves = make_tree(masses).draw(random.random(batch))
    counts = np.bincount(leaves, minlength=capacity)
    assert counts.size == capacity
    assert np.abs(counts - batch * masses / masses.sum()).max() <= 2.0
    assert (np.diff(leaves) >= 0).all()


def test_over_many_batches_draws_are_proportional_to_mass() -> None:
    random = np.random.default_rng(1)
    masses = np.array([0.0, 1.0, 2.0, 3.0, 0.5, 10.0, 0.01])
    tree, batches, batch = make_tree(masses), 4000, 8
    counts = sum(np.bincount(tree.draw(random.random(batch)), minlength=7) for _ in range(batches))
    share, draws = masses / masses.sum(), batches * batch
    bound = 5 * np.sqrt(draws * share * (1 - share))
    assert (np.abs(counts - draws * share) <= bound).all()


@given(
    masses=st.lists(st.sampled_from([0.0, 0.0, 0.1, 0.3, 1e-300, 1e12]), min_size=1, max_size=40),
    uniform=st.sampled_from([0.0, 0.1, 0.7, float(np.nextafter(1.0, 0.0))]),
    batch=st.integers(1, 100),
)
@settings(max_examples=200, deadline=None)
def test_a_leaf_without_mass_is_never_drawn(masses: list[float], uniform: float, batch: int) -> None:
    tree = make_tree(masses)
    if tree.total > 0.0:
        assert (tree.masses[tree.draw(np.full(batch, uniform))] > 0.0).all()


def test_a_single_leaf_takes_every_draw() -> None:
    assert make_tree([0.25]).draw(np.array([0.0, 0.5, 0.99])).tolist() == [0, 0, 0]


def test_of_duplicates_in_one_update_the_last_holds() -> None:
    tree = make_tree([1.0, 1.0, 1.0])
    tree.update(np.array([1, 2, 1, 1]), np.array([9.0, 4.0, 8.0, 5.0]))
    assert tree.masses.tolist() == [1.0, 5.0, 4.0]
    assert tree.total == 10.0


@pytest.mark.parametrize(
    ("leaves", "masses"),
    [
        ([0, 1], [2.0, np.nan]),
        ([0, 1], [2.0, -1e-9]),
        ([0, 1], [2.0, np.inf]),
        ([0, 3], [2.0, 1.0]),
        ([0, -1], [2.0, 1.0]),
    ],
)
def test_an_update_with_a_bad_value_changes_nothing(leaves: list[int], masses: list[float]) -> None:
    tree = make_tree([1.0, 2.0, 3.0])
    with pytest.raises(ValueError):
        tree.update(np.array(leaves), np.array(masses))
    assert tree.masses.tolist() == [1.0, 2.0, 3.0]
    assert tree.total == 6.0


def test_scaling_all_masses_keeps_the_draws() -> None:
    random = np.random.default_rng(2)
    tree, uniforms = make_tree(random.exponential(1.0, 77)), random.random(128)
    before, total = tree.draw(uniforms), tree.total
    tree.scale(2.0**-200)
    assert tree.draw(uniforms).tolist() == before.tolist()
    assert tree.total == pytest.approx(total * 2.0**-200, rel=1e-12)


def test_a_tree_without_mass_refuses_to_draw() -> None:
    tree = make_tree([1.0, 2.0])
    tree.update(np.array([0, 1]), np.zeros(2))
    with pytest.raises(ValueError, match="no leaf has mass"):
        tree.draw(np.array([0.5]))


def test_an_empty_update_is_harmless_and_an_empty_tree_impossible() -> None:
    tree = make_tree([1.0])
    tree.update(np.zeros(0, np.int64), np.zeros(0))
    assert tree.total == 1.0
    with pytest.raises(ValueError, match="capacity 0"):
        SumTree(0)
