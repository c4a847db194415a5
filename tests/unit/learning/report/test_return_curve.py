"""The curve of a session, compared with the returns that it was given."""

from collections.abc import Iterable

import numpy as np
import pytest

from penstock.learning.report.return_curve import ReturnCurve
from penstock.types.evaluation import EvaluationSummary
from penstock.types.run import Episode
from penstock.types.statistics import Returns


def episodes(returns: Iterable[float], steps: int = 7) -> list[Episode]:
    return [Episode(value, steps, environment=0, truncated=False) for value in returns]


def evaluation(mean: float, env_steps: int = 100, *, unfinished: int = 0) -> EvaluationSummary:
    return EvaluationSummary(1, env_steps, episodes=5, return_mean=mean, return_std=0.5, unfinished=unfinished)


def are_of(found: Returns | None, returns: Iterable[float]) -> bool:
    values = np.array(list(returns))
    expected = pytest.approx((values.size, values.mean(), values.std()))
    return found is not None and (found.episodes, found.mean, found.std) == expected


@pytest.mark.parametrize("count", [40, 1000, 12_345])
def test_the_first_and_the_newest_episodes_are_at_most_a_tenth_of_a_session(count: int) -> None:
    returns = np.random.default_rng(count).normal(50.0, 20.0, count) + np.arange(count)
    curve = ReturnCurve()
    curve.ended(episodes(returns))
    found = curve.curve()
    assert found.first is not None and found.newest is not None
    assert are_of(found.first, returns[: found.first.episodes])
    assert 20 <= found.first.episodes <= max(20, count / 10)
    assert 20 <= found.newest.episodes <= max(20, count / 3)
    assert found.newest.mean > found.first.mean
    assert (found.low, found.high) == (returns.min(), returns.max())


def test_blocks_do_not_depend_on_how_episodes_are_reported() -> None:
    returns = np.random.default_rng(3).normal(0.0, 1.0, 800)
    one, many = ReturnCurve(), ReturnCurve()
    one.ended(episodes(returns))
    for value in returns:
        many.ended(episodes([value]))
    first, other = one.curve().first, many.curve().first
    assert first is not None and other is not None
    assert are_of(other, returns[: first.episodes])


def test_few_episodes_and_resumed_runs_have_no_first_ones() -> None:
    curve = ReturnCurve()
    curve.ended(episodes([1.0] * 39))
    assert curve.curve().first is curve.curve().newest is None
    resumed = ReturnCurve(resumed=True)
    resumed.ended(episodes([1.0] * 100))
    assert resumed.curve().first is None and resumed.curve().newest == Returns(20, 1.0, 0.0)


def test_a_point_has_the_evaluation_with_the_last_hundred_training_episodes() -> None:
    curve = ReturnCurve(comparable=True)
    curve.evaluated(evaluation(3.0))
    curve.ended(episodes(float(number) for number in range(150)))
    curve.evaluated(evaluation(2.0, 200, unfinished=4))
    found = curve.curve()
    assert found.points[0].training is None and are_of(found.points[1].training, range(50, 150))
    assert [(point.env_steps, point.unfinished) for point in found.points] == [(100, 0), (200, 4)]
    assert (found.best, found.worst) == (Returns(5, 3.0, 0.5), Returns(5, 2.0, 0.5))
    assert found.comparable and curve.recent_mean == pytest.approx(99.5)


def test_only_the_last_evaluations_are_kept_beside_the_best_and_the_worst() -> None:
    curve = ReturnCurve()
    for number, mean in enumerate([5.0, -5.0, *[1.0] * 30]):
        curve.evaluated(evaluation(mean, number))
    found = curve.curve()
    assert [point.env_steps for point in found.points] == list(range(22, 32))
    assert found.best is not None and found.worst is not None
    assert (found.best.mean, found.worst.mean) == (5.0, -5.0)


def test_the_longest_of_the_last_hundred_episodes_is_known() -> None:
    curve = ReturnCurve()
    assert curve.longest_steps == 0
    curve.ended(episodes([0.0], steps=5000))
    curve.ended(episodes([0.0] * 99, steps=13))
    assert curve.longest_steps == 5000
    curve.ended(episodes([0.0], steps=13))
    assert curve.longest_steps == 13


def test_returns_of_extreme_magnitude_do_not_overflow() -> None:
    curve = ReturnCurve()
    for _ in range(30):
        curve.ended(episodes([1e100, -1e100]))
    first = curve.curve().first
    assert first is not None and first.std == pytest.approx(1e100)
