"""Statistics of comparisons: quantiles, intervals, and the error rates of verdicts."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.comparing.statistics import (
    ERROR,
    FIRST_LOOK,
    interquartile_mean,
    log_ratios,
    look,
    mean_return,
    sequential_bounds,
    sequential_interval,
    stratified_bootstrap,
    t_interval,
    t_quantile,
)
from tests.support.results.simulated_pairs import DEVIATION, fixed, fixed_power, pairs, sequential
from tests.support.tiers import gate_of

COMPARISONS = gate_of(1, [400, 4_000])
MOST = 100


def four_standard_errors(comparisons: int) -> float:
    """0.014 for 4,000 comparisons. For 400, an exact test would miss a bound of 0.015 with every sixth seed."""
    return 4 * math.sqrt(ERROR * (1 - ERROR) / comparisons)


@pytest.mark.parametrize(
    ("probability", "degrees", "quantile"),
    # From tables of Student's t distribution.
    [
        (0.975, 1, 12.7062),
        (0.975, 2, 4.3027),
        (0.975, 4, 2.7764),
        (0.975, 5, 2.5706),
        (0.975, 29, 2.0452),
        (0.95, 10, 1.8125),
        (0.9995, 3, 12.9240),
        (0.5, 7, 0.0),
    ],
)
def test_quantiles_are_those_of_tables(probability: float, degrees: int, quantile: float) -> None:
    assert t_quantile(probability, degrees) == pytest.approx(quantile, abs=1e-4)


def test_quantiles_approach_those_of_the_normal_distribution() -> None:
    assert t_quantile(0.975, 100_000) == pytest.approx(statistics.NormalDist().inv_cdf(0.975), abs=1e-4)


@given(st.floats(0.51, 0.999), st.integers(1, 60))
def test_more_degrees_of_freedom_have_smaller_quantiles(probability: float, degrees: int) -> None:
    assert t_quantile(probability, degrees + 1) < t_quantile(probability, degrees)


def test_an_interval_is_the_mean_and_t_standard_errors() -> None:
    found = t_interval(np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    half = 2.7764 * math.sqrt(2.5) / math.sqrt(5)
    assert (found.mean, found.low, found.high) == pytest.approx((3.0, 3.0 - half, 3.0 + half), abs=1e-4)


@pytest.mark.parametrize("values", [[1.0], [2.0, 2.0, 2.0, 2.0]])
def test_one_value_and_equal_values_decide_nothing(values: list[float]) -> None:
    found = t_interval(np.array(values))
    assert found.sign == 0
    assert found.high == math.inf


@given(st.lists(st.floats(-3.0, 3.0), min_size=2, max_size=30), st.floats(0.1, 100.0))
def test_a_verdict_does_not_depend_on_the_unit_and_turns_with_the_sign(values: list[float], unit: float) -> None:
    given_values = np.round(np.array(values), 3)
    found = t_interval(given_values)
    assert t_interval(-given_values).sign == -found.sign
    assert t_interval(given_values * unit).mean == pytest.approx(found.mean * unit, abs=1e-9)


# Sequential tests


def test_each_look_spends_an_equal_part_of_the_error() -> None:
    most = 8
    bounds = sequential_bounds(most)
    assert all(bound == math.inf for bound in bounds[:FIRST_LOOK])
    draws = np.random.default_rng(7).standard_normal((100_000, most))
    ended = np.zeros(len(draws), bool)
    for count in range(FIRST_LOOK, most + 1):
        t = np.abs(draws[:, :count].mean(1)) / draws[:, :count].std(1, ddof=1) * math.sqrt(count)
        ended |= t >= bounds[count]
        part = ERROR * (count - FIRST_LOOK + 1) / (most - FIRST_LOOK + 1)
        # Four standard errors, of these draws and of those in the bounds.
        assert ended.mean() == pytest.approx(part, abs=4 * math.sqrt(part * (1 / 100_000 + 1 / 200_000)))


def test_a_single_look_has_the_bound_of_a_t_test() -> None:
    assert sequential_bounds(FIRST_LOOK)[-1] == pytest.approx(t_quantile(0.975, FIRST_LOOK - 1), rel=0.02)


def test_a_sequential_test_stops_at_the_first_look_that_decides_and_keeps_its_verdict() -> None:
    values = np.array([0.5, 0.6, 0.4, 0.55, 0.45, -9.0, -9.0, -9.0])
    assert FIRST_LOOK <= look(values, 8) <= 5
    assert sequential_interval(values, 8).sign == 1
    # Further pairs change nothing, and an earlier interval is the same.
    assert sequential_interval(values, 8) == sequential_interval(values[:5], 8)


def test_too_few_pairs_for_a_sequential_test_are_refused() -> None:
    with pytest.raises(ValueError, match=f"at least {FIRST_LOOK} pairs"):
        sequential_bounds(FIRST_LOOK - 1)


@pytest.mark.parametrize("comparisons", COMPARISONS)
@pytest.mark.parametrize("size", [5, 10])
def test_equal_settings_get_a_verdict_in_five_percent_of_fixed_comparisons(comparisons: int, size: int) -> None:
    rng = np.random.default_rng(1)
    found = [fixed(each).sign != 0 for each in pairs(rng, comparisons, size, ratio=1.0, deviation=DEVIATION)]
    assert np.mean(found) == pytest.approx(ERROR, abs=four_standard_errors(comparisons))


@pytest.mark.parametrize("comparisons", COMPARISONS)
@pytest.mark.parametrize("most", [10, MOST])
def test_equal_settings_get_a_verdict_in_five_percent_of_sequential_comparisons(comparisons: int, most: int) -> None:
    rng = np.random.default_rng(2)
    found = [sequential(each)[0].sign != 0 for each in pairs(rng, comparisons, most, ratio=1.0, deviation=DEVIATION)]
    assert np.mean(found) == pytest.approx(ERROR, abs=four_standard_errors(comparisons))


@pytest.mark.parametrize("comparisons", COMPARISONS)
def test_a_difference_of_a_fifth_takes_half_of_the_runs_of_a_fixed_comparison_with_equal_power(
    comparisons: int,
) -> None:
    rng = np.random.default_rng(3)
    found = [sequential(each) for each in pairs(rng, comparisons, MOST, ratio=0.8, deviation=DEVIATION)]
    power, taken = np.mean([estimate.sign == -1 for estimate, _ in found]), np.mean([count for _, count in found])
    twice = math.ceil(2 * taken)
    # A fixed number of pairs, twice the mean one, finds the difference less often.
    assert fixed_power(rng, twice, ratio=0.8, deviation=DEVIATION, comparisons=10 * comparisons) <= power


# Outcomes of runs


@pytest.mark.parametrize(
    ("scores", "mean"),
    [
        ([0.0, 1.0, 2.0, 100.0], 1.5),
        ([3.0], 3.0),
        # Of five scores, the middle one counts fully and its neighbours by three quarters: (0.75 + 2 + 0.75 * 3) / 2.5.
        ([0.0, 1.0, 2.0, 3.0, 1000.0], 2.0),
        ([0.0, 1.0, 2.0, 5.0, 1000.0], 2.6),
    ],
)
def test_an_interquartile_mean_is_that_of_the_middle_half(scores: list[float], mean: float) -> None:
    assert interquartile_mean(np.array(scores)) == pytest.approx(mean)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=12))
def test_the_order_of_scores_does_not_matter(scores: list[float]) -> None:
    shuffled = sorted(scores, reverse=True)
    assert interquartile_mean(np.array(scores)) == pytest.approx(float(interquartile_mean(np.array(shuffled))))


def test_a_stratum_is_resampled_by_itself() -> None:
    rng = np.random.default_rng(4)
    constant, far = np.full(5, 1.0), np.full(7, 100.0)
    found = stratified_bootstrap(
        [constant, far], lambda one, other: interquartile_mean(other) - interquartile_mean(one), rng=rng
    )
    assert (found.mean, found.low, found.high) == (99.0, 99.0, 99.0)


def test_a_bootstrap_interval_of_many_scores_is_that_of_their_mean() -> None:
    scores = np.random.default_rng(5).normal(10.0, 2.0, 400)
    found = stratified_bootstrap([scores], lambda each: each.mean(-1), rng=np.random.default_rng(6))
    half = 1.96 * scores.std(ddof=1) / 20
    assert (found.low, found.high) == pytest.approx((scores.mean() - half, scores.mean() + half), abs=0.3 * half)


def test_a_run_that_missed_the_threshold_counts_with_its_steps_and_limits_the_other_run() -> None:
    found = log_ratios([100, None, None, 800], [50, 400, None, None], trained=[(9, 9), (800, 900), (7, 7), (900, 600)])
    # 50 / 100; 400 / 800; both missed; 600 / min(800, 600)
    assert found == pytest.approx([math.log(0.5), math.log(0.5), 0.0, 0.0])


def test_a_mean_return_is_the_area_under_the_curve_over_its_steps() -> None:
    steps, returns = np.array([10.0, 20.0, 40.0]), np.array([0.0, 10.0, 10.0])
    assert mean_return(steps, returns, 10.0, 40.0) == pytest.approx((5 * 10 + 10 * 20) / 30)
    assert mean_return(steps, returns, 15.0, 20.0) == pytest.approx(7.5)
    assert mean_return(steps, returns, 20.0, 20.0) == pytest.approx(10.0)
