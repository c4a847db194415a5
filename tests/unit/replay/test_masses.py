import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.replay.masses import MassFunction


def plain_mass(priority: float, version: int, *, now: int, alpha: float, epsilon: float, half_life: float) -> float:
    return float((priority + epsilon) ** alpha * 2.0 ** (-(now - version) / half_life))


@given(
    alpha=st.floats(0.0, 1.0),
    epsilon=st.floats(1e-6, 1.0),
    half_life=st.floats(0.5, 50.0) | st.just(math.inf),
    reference=st.integers(0, 30),
    seed=st.integers(0, 2**32 - 1),
)
def test_stored_masses_match_the_formula_up_to_a_factor(
    alpha: float, epsilon: float, half_life: float, reference: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    priorities, versions = random.exponential(1.0, 20), random.integers(0, 40, 20)
    stored = MassFunction(alpha, epsilon, half_life, reference).masses(priorities, versions)
    plain = [
        plain_mass(priority, version, now=40, alpha=alpha, epsilon=epsilon, half_life=half_life)
        for priority, version in zip(priorities, versions, strict=True)
    ]
    np.testing.assert_allclose(stored / stored.sum(), plain / np.sum(plain), rtol=1e-9)


def test_a_worked_example() -> None:
    # With epsilon 1 the priorities become 4, 4 and 1. Alpha takes the root. Two half-lives divide the second by 4.
    masses = MassFunction(alpha=0.5, epsilon=1.0, half_life=2.0, reference=4).masses(
        np.array([3.0, 3.0, 0.0]), np.array([4, 0, 4])
    )
    assert masses.tolist() == pytest.approx([2.0, 0.5, 1.0])


def test_alpha_zero_leaves_age_alone() -> None:
    masses = MassFunction(alpha=0.0, epsilon=1e-3, half_life=2.0, reference=0).masses(
        np.array([0.0, 1.0, 50.0]), np.array([0, 4, 4])
    )
    assert masses.tolist() == [1.0, 4.0, 4.0]


def test_an_infinite_half_life_leaves_priority_alone() -> None:
    function = MassFunction(alpha=1.0, epsilon=1.0, half_life=math.inf, reference=0)
    assert function.masses(np.array([0.0, 1.0, 9.0]), np.array([0, 5, 10**6])).tolist() == [1.0, 2.0, 10.0]
    assert function.rebased(10**9) == (function, 1.0)


def test_rebasing_keeps_the_ratios_of_masses() -> None:
    old = MassFunction(alpha=0.6, epsilon=1e-3, half_life=2.0, reference=10)
    priorities, versions = np.array([0.1, 2.0, 0.7, 5.0]), np.array([870, 869, 860, 840])
    new, factor = old.rebased(870)
    assert new.reference == 870
    assert factor < 1.0
    np.testing.assert_allclose(old.masses(priorities, versions) * factor, new.masses(priorities, versions), rtol=1e-9)


def test_the_reference_is_raised_only_at_the_threshold() -> None:
    function = MassFunction(alpha=0.5, epsilon=1e-3, half_life=2.0, reference=0)
    assert function.rebased(511) == (function, 1.0)
    moved, factor = function.rebased(512)
    assert (moved.reference, factor) == (512, 2.0**-256)


def test_masses_stay_finite_over_many_versions() -> None:
    function = MassFunction(alpha=1.0, epsilon=1e-6, half_life=0.5, reference=0)
    with np.errstate(all="raise"):
        for version in [*range(5000), *range(10**6, 10**9, 10**8)]:
            function, factor = function.rebased(version)
            masses = function.masses(np.array([0.0, 1e9, 1.0]), np.array([version, version, 0]))
            assert np.isfinite(masses).all()
            assert masses[0] > 0.0
            assert factor > 0.0


def test_the_sum_of_masses_is_finite_for_all_priorities() -> None:
    function = MassFunction(alpha=2.0, epsilon=0.0, half_life=1.0, reference=0)
    masses = function.masses(np.array([1e308, 1e200, 1.0, 0.0]), np.array([0, 800, 0, 3000]))
    assert masses.tolist() == [1e290, 1e290, 1.0, 0.0]
