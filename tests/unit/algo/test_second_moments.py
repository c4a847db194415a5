import numpy as np
import pytest

from penstock.algo.second_moments import moments

RANDOM = np.random.default_rng(5)
SQUARED = RANDOM.exponential(1.0, (40, 1)) ** 2
SCORES = np.sqrt(SQUARED[:, 0]) * np.exp(RANDOM.normal(0.0, 0.7, 40))


def exact(squared: np.ndarray, scores: np.ndarray, age: np.ndarray) -> float:
    """Returns the second moment of g_i a_i / p_i with p proportional to s a, over that with p proportional to a."""
    target = age / age.sum()
    drawn = scores * age / (scores * age).sum()
    return float((target**2 / drawn * squared).sum() / (target * squared).sum())


def test_the_ratio_is_that_of_the_second_moments() -> None:
    uniform = np.ones(40)
    found = moments(SQUARED, SCORES)
    assert found is not None and found.ratio == pytest.approx(exact(SQUARED[:, 0], SCORES, uniform))


@pytest.mark.parametrize("by_priority", [False, True])
def test_the_ratio_does_not_depend_on_how_the_segments_were_drawn(by_priority: bool) -> None:
    age = 2.0 ** -RANDOM.integers(0, 6, 40)
    chances = age * SCORES if by_priority else age
    repeats = np.round(1e9 * chances / chances.sum()).astype(np.int64)
    found = moments(SQUARED, 7.0 * SCORES, SCORES if by_priority else None, repeats)
    assert found is not None and found.ratio == pytest.approx(exact(SQUARED[:, 0], SCORES, age), rel=1e-6)


def test_the_norm_of_the_gradient_is_the_best_score() -> None:
    norm = np.sqrt(SQUARED[:, 0])
    best = moments(SQUARED, norm)
    assert best is not None and best.ratio == pytest.approx(norm.mean() ** 2 / SQUARED.mean())
    for scores in (SCORES, np.ones(40), norm**2, norm**0.5):
        other = moments(SQUARED, scores)
        assert other is not None and other.ratio > best.ratio


def test_equal_scores_change_nothing() -> None:
    found = moments(SQUARED, np.full(40, 3.0))
    assert found is not None and found.ratio == pytest.approx(1.0)


@pytest.mark.parametrize("scale", [1e-12, 1e6])
def test_the_parts_of_a_gradient_count_alike_at_any_scale(scale: float) -> None:
    both = np.concatenate([SQUARED, scale * np.ones((40, 1)), np.zeros((40, 1))], 1)
    alone = [moments(part, SCORES) for part in (SQUARED, np.ones((40, 1)))]
    found = moments(both, SCORES)
    assert found is not None
    assert found.ratio == pytest.approx(np.mean([each.ratio for each in alone if each is not None]))


@pytest.mark.parametrize("wrong", [np.zeros((3, 1)), np.full((3, 1), np.nan), np.full((3, 1), np.inf)])
def test_gradients_that_are_zero_or_not_finite_have_no_ratio(wrong: np.ndarray) -> None:
    assert moments(wrong, np.ones(3)) is None
    assert moments(np.ones((0, 1)), np.ones(0)) is None
    assert moments(np.ones((3, 1)), np.array([1.0, np.inf, 1.0])) is None
