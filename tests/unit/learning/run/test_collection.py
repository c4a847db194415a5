"""Weights of the variants in collection, by each rule."""

from typing import Any

import numpy as np
import pytest

from penstock.config import SamplingConfig, build
from penstock.errors import ConfigurationError
from penstock.learning.run.collection import (
    CollectionWeights,
    by_error,
    by_learnability,
    by_return,
    normalised,
)
from tests.support.training.training import make_batch, make_learner

NOTHING: list[list[float]] = [[], []]


def reviews(
    weights: CollectionWeights, batches: int, returns: list[list[float]] | None = None
) -> list[tuple[float, ...]]:
    found = [weights.review(lambda: returns or NOTHING, 0.0) for _ in range(batches)]
    return [each for each in found if each is not None]


def by_rule(rule: Any, variants: int = 2, threshold: float | None = None) -> CollectionWeights:
    return CollectionWeights(SamplingConfig(collection=rule), [{}] * variants, threshold)


def test_equal_collection_never_changes_the_plan() -> None:
    weights = by_rule("equal")
    weights.observe(np.array([0, 1], np.uint32), np.array([9.0, 1.0]))
    assert reviews(weights, 100) == []


def test_weights_by_error_are_the_squared_mean_errors_of_the_variants_that_the_slots_have() -> None:
    weights = by_rule("error")
    # Slots 1 and 3 have variant 1. The means are 2 and 6.
    weights.observe(np.array([0, 1, 2, 3], np.uint32), np.array([1.0, 2.0, 3.0, 10.0]))
    assert reviews(weights, 3) == []
    [found] = reviews(weights, 1)
    assert found == pytest.approx((0.2, 1.8))


def test_old_errors_are_forgotten() -> None:
    weights = by_rule("error")
    for error in (100.0, 1.0):
        weights.observe(np.array([0] * 40 + [1] * 40, np.uint32), np.array([error] * 40 + [1.0] * 40))
    assert reviews(weights, 4) == [(1.0, 1.0)]


def test_a_batch_without_slots_tells_nothing() -> None:
    weights = by_rule("error")
    weights.observe(np.zeros(0, np.uint32), np.array([1.0, 2.0]))
    assert reviews(weights, 4) == [(1.0, 1.0)]


@pytest.mark.parametrize(
    ("rule", "threshold", "expected"),
    [("return", None, (0.0, 2.0)), ("return", 12.0, (0.4, 1.6)), ("learnability", 3.0, (0.0, 2.0))],
)
def test_weights_follow_the_returns_that_the_actors_report(
    rule: str, threshold: float | None, expected: tuple[float, ...]
) -> None:
    [found] = reviews(by_rule(rule, threshold=threshold), 4, [[10.0, 10.0], [2.0, 6.0]])
    assert found == pytest.approx(expected)


def test_the_rule_by_return_measures_the_distance_from_the_threshold_or_the_best_variant() -> None:
    returns = [[-100.0, -200.0], [-450.0], [-50.0]]
    assert by_return(returns, None) == [100.0, 400.0, 0.0]
    assert by_return(returns, -100.0) == [50.0, 350.0, 0.0]
    assert by_return([[1.0], []], None) == [0.0, None]
    assert by_return(NOTHING, None) == [None, None]


def test_the_rule_by_learnability_prefers_what_is_neither_solved_nor_hopeless() -> None:
    always, sometimes, never = [5.0] * 4, [5.0, 0.0, 0.0, 0.0], [0.0] * 4
    assert by_learnability([always, sometimes, never], 5.0) == [0.0, 0.1875, 0.0]
    # The median of all 12 is 0, which no episode of the last variant exceeds.
    assert by_learnability([always, sometimes, never], None) == [0.0, 0.1875, 0.0]
    assert by_learnability([[], sometimes], 5.0) == [None, 0.1875]
    assert by_learnability(NOTHING, None) == [None, None]


def test_only_recent_episodes_count() -> None:
    assert by_return([[-1000.0] * 50 + [-1.0] * 20], 0.0) == [1.0]
    assert by_learnability([[0.0] * 50 + [1.0] * 20], 1.0) == [0.0]


def test_weights_have_mean_1_and_unknown_variants_count_as_average() -> None:
    assert normalised([1.0, 3.0, None]) == (0.5, 1.5, 1.0)
    assert normalised([0.0, 0.0]) == normalised([None, None]) == (1.0, 1.0)
    assert by_error([[2.0, 4.0], []]) == [9.0, None]


def test_a_batch_yields_the_mean_absolute_error_of_each_fresh_segment() -> None:
    learner, batch = make_learner(), make_batch(segments=6, fresh=4)
    # The rewards of a batch are scaled by returns that include its own.
    learner.policy.begin_returns(batch.discounted_return[:4][batch.valid[:4]])
    estimated = learner.estimate(batch, 0.0)
    outcome = make_learner().train(batch, 0.0)
    size, usable = estimated.correction.abs(), estimated.usable
    expected = [float(size[row][usable[row]].mean()) for row in range(4)]
    assert outcome.fresh_errors.tolist() == pytest.approx(expected, rel=1e-5)
    assert outcome.priorities.size == 6


# Settings

VARIED: dict[str, dict[str, object]] = {
    "environment": {"id": "Pendulum-v1", "variants": [{"g": 8.0}, {"g": 12.0}]},
    "sampling": {"collection": "error"},
}


def changed(**sections: dict[str, object]) -> dict[str, object]:
    return {name: {**VARIED.get(name, {}), **sections.get(name, {})} for name in {*VARIED, *sections}}


def test_a_run_with_variants_may_divide_collection() -> None:
    assert build(changed()).sampling.collection == "error"


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        (
            {"environment": {"variants": []}},
            "sampling.collection error divides collection between environment.variants, and there are 0; give at least"
            " two, or set sampling.collection to equal",
        ),
        ({"sampling": {"off_policy_degree": 0}}, "no effect with sampling.off_policy_degree 0"),
        (
            {
                "sampling": {"fresh_fraction": 0.0},
                "policy": {"normalise_observations": False, "normalise_returns": False},
            },
            "no effect with sampling.fresh_fraction 0",
        ),
        ({"sampling": {"least_share": 0.0}}, "sampling.least_share 0 would exclude slots .* such as 0.2"),
        ({"sampling": {"least_share": 1.5}}, "sampling.least_share 1.5 .* at most 1, such as 0.2"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_in_one_line(
    sections: dict[str, dict[str, object]], reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=reason) as refused:
        build(changed(**sections))
    assert "\n" not in str(refused.value)
