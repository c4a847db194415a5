import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.replay.sum_tree import SumTree

LAST_UNIFORM = float(np.nextafter(1.0, 0.0))


def make_tree(masses: NDArray[np.float64] | list[float]) -> SumTree:
    values = np.asarray(masses, np.float64)
    tree = SumTree(values.size)
    tree.update(np.arange(values.size), values)
    return tree


def slow_draw(masses: NDArray[np.float64], uniforms: NDArray[np.float64]) -> list[int]:
    """Draws leaves by a linear walk along the masses, as in the definition."""
    drawn = []
    for stratum, uniform in enumerate(uniforms):
        target = (stratum + uniform) * masses.sum() / uniforms.size
        leaf = 0
        while target >= masses[: leaf + 1].sum():
            leaf += 1
        drawn.append(leaf)
    return drawn


# Batches have one leaf up to more than the capacity. Levels are recomputed per leaf, in part and completely.
@given(capacity=st.integers(1, 600), largest_batch=st.sampled_from([1, 5, 40, 1000]), seed=st.integers(0, 2**32 - 1))
def test_an_updated_tree_has_the_sums_and_draws_of_a_new_tree(capacity: int, largest_batch: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    tree, expected = SumTree(capacity), np.zeros(capacity)
    for _ in range(20):
        leaves = random.integers(0, capacity, random.integers(1, largest_batch + 1))
        masses = random.exponential(10.0 ** random.integers(-6, 6), leaves.size)
        tree.update(leaves, masses)
        for leaf, mass in zip(leaves, masses, strict=True):
            expected[leaf] = mass
        np.testing.assert_array_equal(tree.masses, expected)
        assert tree.total == pytest.approx(expected.sum(), rel=1e-9)
        uniforms = random.random(64)
        assert tree.draw(uniforms)[0].tolist() == make_tree(expected).draw(uniforms)[0].tolist()


def test_draws_follow_the_running_sum() -> None:
    # Integer masses, power-of-two batches and multiples of 1/8 as uniforms avoid rounding.
    random = np.random.default_rng(0)
    for capacity in (1, 2, 3, 5, 8, 13, 64, 100, 300):
        masses = random.integers(0, 9, capacity).astype(np.float64)
        masses[random.integers(capacity)] = 4.0
        for batch in (1, 32, 256):
            uniforms = random.integers(0, 8, batch) / 8
            assert make_tree(masses).draw(uniforms)[0].tolist() == slow_draw(masses, uniforms)


def test_a_worked_example() -> None:
    # The running sum is 1, 3, 3, 6, 10. Strata of width 2.5 give the targets 0, 3.75, 6.25 and 9.9975.
    leaves, masses = make_tree([1.0, 2.0, 0.0, 3.0, 4.0]).draw(np.array([0.0, 0.5, 0.5, 0.999]))
    assert leaves.tolist() == [0, 3, 4, 4]
    assert masses.tolist() == [1.0, 3.0, 4.0, 4.0]


@given(capacity=st.integers(1, 300), batch=st.integers(1, 512), seed=st.integers(0, 2**32 - 1))
def test_counts_in_a_stratified_batch_are_within_two_of_their_shares(capacity: int, batch: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    masses = random.exponential(1.0, capacity) ** 4
    leaves, drawn_masses = make_tree(masses).draw(random.random(batch))
    counts = np.bincount(leaves, minlength=capacity)
    assert counts.size == capacity
    assert np.abs(counts - batch * masses / masses.sum()).max() <= 2.0
    assert (np.diff(leaves) >= 0).all()
    assert drawn_masses.tolist() == masses[leaves].tolist()


def test_draws_are_proportional_to_mass() -> None:
    # The chi-square test needs independent draws. Draws of one batch are dependent, so each batch gives one draw.
    random = np.random.default_rng(1)
    masses = np.concatenate([[0.0, 40.0, 0.5], random.exponential(1.0, 34), [0.0, 20.0]])
    tree, batches, batch = make_tree(masses), 50_000, 16
    chosen = [tree.draw(random.random(batch))[0][random.integers(batch)] for _ in range(batches)]
    counts = np.bincount(chosen, minlength=masses.size)
    assert (counts[masses == 0.0] == 0).all()
    counts, expected = counts[masses > 0.0], batches * masses[masses > 0.0] / masses.sum()
    degrees = counts.size - 1
    # About the 99.99% quantile of chi-square (Wilson & Hilferty 1931).
    bound = degrees * (1 - 2 / (9 * degrees) + 3.719 * np.sqrt(2 / (9 * degrees))) ** 3
    assert ((counts - expected) ** 2 / expected).sum() < bound


@given(
    masses=st.lists(st.sampled_from([0.0, 0.0, 0.1, 0.3, 5e-324, 1e-300, 1e12]), min_size=1, max_size=70),
    uniform=st.sampled_from([0.0, 0.1, 0.7, LAST_UNIFORM]),
    batch=st.integers(1, 100),
)
def test_a_leaf_without_mass_is_never_drawn_and_leaves_ascend(masses: list[float], uniform: float, batch: int) -> None:
    tree = make_tree(masses)
    if tree.total > 0.0:
        leaves, drawn_masses = tree.draw(np.full(batch, uniform))
        assert (drawn_masses > 0.0).all()
        assert drawn_masses.tolist() == tree.masses[leaves].tolist()
        assert (np.diff(leaves) >= 0).all()


@pytest.mark.parametrize("empty", [1, 3, 60])
def test_rounding_at_the_end_of_the_last_stratum_draws_the_last_leaf_with_mass(empty: int) -> None:
    # (batch - 1 + uniform) rounds up to batch, so the target is the total, which is past the last mass.
    for capacity in range(1, 20):
        masses = np.concatenate([np.full(capacity, 0.1), np.zeros(empty)])
        leaves, drawn_masses = make_tree(masses).draw(np.full(4096, LAST_UNIFORM))
        assert leaves[-1] == capacity - 1
        assert drawn_masses[-1] == 0.1


def test_a_single_leaf_takes_every_draw() -> None:
    leaves, masses = make_tree([0.25]).draw(np.array([0.0, 0.5, LAST_UNIFORM]))
    assert leaves.tolist() == [0, 0, 0]
    assert masses.tolist() == [0.25, 0.25, 0.25]


def test_the_last_duplicate_of_an_update_wins() -> None:
    tree = make_tree([1.0, 1.0, 1.0])
    tree.update(np.array([1, 2, 1, 1]), np.array([9.0, 4.0, 8.0, 5.0]))
    assert tree.masses.tolist() == [1.0, 5.0, 4.0]
    assert tree.total == 10.0


@pytest.mark.parametrize(
    ("leaves", "masses", "message"),
    [
        ([0, 1], [2.0, np.nan], "finite and not negative"),
        ([0, 1], [2.0, -1e-9], "finite and not negative"),
        ([0, 1], [2.0, np.inf], "finite and not negative"),
        ([0, 3], [2.0, 1.0], r"in \[0, 3\), got 0 to 3"),
        ([0, -1], [2.0, 1.0], r"in \[0, 3\), got -1 to 0"),
        ([0, 1], [2.0], "one mass per leaf"),
        ([], [2.0], "one mass per leaf"),
    ],
)
def test_an_update_with_a_bad_value_changes_nothing(leaves: list[int], masses: list[float], message: str) -> None:
    tree = make_tree([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=message):
        tree.update(np.array(leaves, np.int64), np.array(masses))
    assert tree.masses.tolist() == [1.0, 2.0, 3.0]
    assert tree.total == 6.0


def test_scaling_all_masses_keeps_the_draws() -> None:
    random = np.random.default_rng(2)
    tree, uniforms = make_tree(random.exponential(1.0, 77)), random.random(128)
    (leaves, masses), total = tree.draw(uniforms), tree.total
    tree.scale(2.0**-200)
    scaled_leaves, scaled_masses = tree.draw(uniforms)
    assert scaled_leaves.tolist() == leaves.tolist()
    assert scaled_masses.tolist() == (masses * 2.0**-200).tolist()
    assert tree.total == pytest.approx(total * 2.0**-200, rel=1e-12)


def test_a_draw_from_a_tree_without_mass_is_refused() -> None:
    tree = make_tree([1.0, 2.0])
    tree.update(np.array([0, 1]), np.zeros(2))
    with pytest.raises(ValueError, match="no leaf has mass"):
        tree.draw(np.array([0.5]))


def test_empty_updates_and_draws_are_allowed_and_an_empty_tree_is_refused() -> None:
    tree = make_tree([1.0])
    tree.update(np.zeros(0, np.int64), np.zeros(0))
    assert tree.total == 1.0
    leaves, masses = tree.draw(np.zeros(0))
    assert leaves.size == masses.size == 0
    with pytest.raises(ValueError, match="capacity 0"):
        SumTree(0)


def test_strided_views_are_accepted() -> None:
    tree = make_tree([1.0, 1.0, 1.0, 1.0])
    tree.update(np.arange(4)[::2], np.array([5.0, 9.0, 7.0, 9.0])[::2])
    assert tree.masses.tolist() == [5.0, 1.0, 7.0, 1.0]
    assert tree.draw(np.array([0.0, 9.0, 0.5, 9.0])[::2])[0].tolist() == [0, 2]
