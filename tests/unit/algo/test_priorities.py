import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.algo.priorities import importance_weights, mean_errors, preferences, segment_priorities
from penstock.replay.masses import MassFunction

PRIORITIES = st.lists(st.floats(0.0, 100.0), min_size=1, max_size=20)


def weights_of(priorities: list[float], fresh: int = 0, *, alpha: float = 0.6, beta: float = 0.5) -> list[float]:
    preference = alpha * torch.log(torch.tensor(priorities, dtype=torch.float64) + 1e-3)
    return importance_weights(preference, fresh, beta).tolist()


@given(seed=st.integers(0, 10_000))
def test_a_priority_is_the_sum_of_the_absolute_advantages_of_valid_steps(seed: int) -> None:
    generator = np.random.default_rng(seed)
    advantage, valid = generator.normal(size=(5, 7)), generator.random((5, 7)) < 0.6
    priorities = segment_priorities(torch.from_numpy(advantage), torch.from_numpy(valid))
    expected = [
        sum(abs(a) for a, is_valid in zip(row, usable, strict=True) if is_valid) / 7.0
        for row, usable in zip(advantage.tolist(), valid.tolist(), strict=True)
    ]
    np.testing.assert_allclose(priorities, expected, atol=1e-6)


def test_a_priority_matches_a_manual_calculation() -> None:
    advantage, valid = torch.tensor([[-4.0, 2.0, 99.0, 0.0]]), torch.tensor([[True, True, False, True]])
    assert segment_priorities(advantage, valid).item() == (4.0 + 2.0 + 0.0) / 4.0
    assert mean_errors(advantage, valid).item() == (4.0 + 2.0 + 0.0) / 3.0


def test_a_segment_without_a_valid_step_has_priority_0() -> None:
    none = torch.zeros(1, 3, dtype=torch.bool)
    assert segment_priorities(torch.ones(1, 3), none).item() == mean_errors(torch.ones(1, 3), none).item() == 0.0


@given(priorities=PRIORITIES, fresh=st.integers(0, 20))
def test_fresh_segments_have_weight_1(priorities: list[float], fresh: int) -> None:
    fresh = min(fresh, len(priorities))
    assert weights_of(priorities, fresh)[:fresh] == [1.0] * fresh


@given(priorities=st.lists(st.floats(0.5, 2.0), min_size=1, max_size=20), fresh=st.integers(0, 5))
def test_the_mean_weight_of_replayed_segments_is_1(priorities: list[float], fresh: int) -> None:
    # Weights of priorities this similar do not reach the cap.
    weights = weights_of([0.0] * fresh + priorities, fresh, beta=1.0)
    assert np.mean(weights[fresh:]) == pytest.approx(1.0, abs=1e-6)


@given(priorities=PRIORITIES, beta=st.floats(0.0, 1.0))
def test_segments_drawn_more_often_have_smaller_weights(priorities: list[float], beta: float) -> None:
    weights = np.array(weights_of(priorities, beta=beta))
    assert (np.diff(weights[np.argsort(priorities)]) <= 1e-6).all()


def test_ratios_of_weights_are_inverse_to_ratios_of_masses() -> None:
    small, large = weights_of([1.0, 8.0], alpha=0.5, beta=1.0)
    mass_ratio = (8.001 / 1.001) ** 0.5
    assert small / large == pytest.approx(mass_ratio, rel=1e-6)


@pytest.mark.parametrize("half_life", [0.01, 3.0, math.inf])
def test_preferences_are_the_part_of_the_probabilities_that_is_due_to_priority(half_life: float) -> None:
    priorities, versions = np.array([0.0, 1.0, 8.0, 1.0]), np.array([7, 5, 7, 6])
    masses = MassFunction(alpha=0.6, epsilon=1e-3, half_life=half_life, reference=0).masses(priorities, versions)
    probabilities, ages = torch.from_numpy(masses / masses.sum()), torch.from_numpy(9 - versions)
    found = preferences(probabilities, ages, half_life)
    expected = 0.6 * np.log(priorities + 1e-3)
    np.testing.assert_allclose(found - found[0], expected - expected[0], atol=1e-9)


def test_a_probability_that_was_rounded_to_0_has_a_finite_weight() -> None:
    found = preferences(torch.tensor([0.0, 1.0]).double(), torch.tensor([500, 0]), 1.0)
    assert importance_weights(found, 0, 1.0).isfinite().all()


def test_no_weight_exceeds_the_cap() -> None:
    weights = weights_of([0.0] + [100.0] * 30, alpha=1.0, beta=1.0)
    assert max(weights) == 10.0


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 1.0), (0.6, 0.0)])
def test_uniform_replay_or_no_correction_gives_equal_weights(alpha: float, beta: float) -> None:
    assert weights_of([0.0, 1.0, 50.0], alpha=alpha, beta=beta) == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("alpha", "priorities"),
    [(10.0, [3e38, 1.0]), (100.0, [1e4, 1e4, 1e3]), (100.0, [0.0, 3e38]), (100.0, [1e8, 1e8])],
)
def test_weights_are_finite_for_every_exponent_and_priority(alpha: float, priorities: list[float]) -> None:
    weights = weights_of(priorities, alpha=alpha, beta=1.0)
    assert np.isfinite(weights).all()
    assert np.mean(weights) == pytest.approx(1.0, abs=1e-5)


@given(priorities=st.lists(st.floats(0.0, 100.0), min_size=12, max_size=40), alpha=st.floats(0.0, 2.0))
def test_capped_weights_keep_the_mean_at_1_and_the_others_in_proportion(priorities: list[float], alpha: float) -> None:
    weights = np.array(weights_of(priorities, alpha=alpha, beta=1.0))
    raw = (np.array(priorities) + 1e-3) ** -alpha
    assert weights.mean() == pytest.approx(1.0, rel=1e-5)
    assert weights.max() <= 10.0
    free = weights < 10.0
    np.testing.assert_allclose(weights[free] / raw[free], (weights[free] / raw[free])[0], rtol=1e-5)


def test_errors_of_invalid_steps_do_not_affect_priorities() -> None:
    absurd = torch.tensor([[torch.nan, 2.0], [torch.inf, 1.0]])
    valid = torch.tensor([[False, True], [False, False]])
    assert segment_priorities(absurd, valid).tolist() == [1.0, 0.0]
    assert mean_errors(absurd, valid).tolist() == [2.0, 0.0]
