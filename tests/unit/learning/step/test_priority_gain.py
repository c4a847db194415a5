import numpy as np
import pytest

from penstock.learning.step.priority_gain import PriorityGain


def due(gain: PriorityGain, replayed: int, batches: int) -> list[int]:
    return [number for number in range(1, batches + 1) if gain.is_due(replayed)]


@pytest.mark.parametrize(
    ("updates", "measured"),
    [
        (1, [8, 16, 32, 64, 96]),
        (40, [8, 16, 32, 48, 64, 80, 96]),
        (80, list(range(8, 101, 8))),
        (10**6, list(range(8, 101, 8))),
    ],
)
def test_batches_are_measured_more_often_the_more_gradient_steps_each_takes(updates: int, measured: list[int]) -> None:
    assert due(PriorityGain(0.6, 1e-3, updates), 8, 100) == measured


def test_batches_with_hardly_any_replay_are_not_measured() -> None:
    assert due(PriorityGain(0.6, 1e-3, 1), 3, 100) == []


@pytest.mark.parametrize("alpha_of_the_draw", [0.0, 0.6, 1.0])
def test_the_gain_is_that_of_draws_with_alpha_whatever_the_draws_were(alpha_of_the_draw: float) -> None:
    random = np.random.default_rng(2)
    pool, epsilon = random.exponential(1.0, 500), 1e-3
    squared = (pool + 0.2 * random.random(500)) ** 2
    scores = (pool + epsilon) ** 0.6
    expected = 1.0 - scores.mean() * (squared / scores).mean() / squared.mean()
    gain, drawn = PriorityGain(0.6, epsilon, 1), (pool + epsilon) ** alpha_of_the_draw
    assert gain.gain is None
    for number in range(400):
        rows = random.choice(500, 28, p=drawn / drawn.sum())
        # The scales of gradients and priorities change during a run, and that of the draw is not known.
        scale = 1.01**number
        gain.observe(scale * squared[rows, None], pool[rows], 3.0 * drawn[rows])
    assert gain.gain == pytest.approx(expected, abs=0.05)


def test_after_one_measurement_the_gain_is_the_measured_one() -> None:
    random = np.random.default_rng(3)
    priorities, squared, epsilon = random.exponential(1.0, 28), random.exponential(1.0, 28), 1e-3
    scores = (priorities + epsilon) ** 0.6
    expected = 1.0 - scores.mean() * (squared / scores).mean() / squared.mean()
    gain = PriorityGain(0.6, epsilon, 1)
    for _ in range(3):
        gain.observe(squared[:, None], priorities, np.ones(28))
        assert gain.gain == pytest.approx(expected, abs=1e-12)


def test_a_measurement_that_is_not_finite_counts_for_nothing() -> None:
    gain = PriorityGain(0.6, 1e-3, 1)
    gain.observe(np.full((4, 1), np.nan), np.ones(4), np.ones(4))
    gain.observe(np.zeros((4, 1)), np.ones(4), np.ones(4))
    assert gain.gain is None
