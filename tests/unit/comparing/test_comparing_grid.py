"""Grids of settings and their best cell."""

import pytest

from penstock.comparing.grid import best, cells, with_cell
from penstock.comparing.outcomes import Means
from penstock.comparing.statistics import Estimate
from penstock.config import Config
from penstock.errors import ConfigurationError


def test_a_grid_has_every_combination() -> None:
    found = cells(["ppo.learning_rate=1e-4,3e-4", "ppo.epochs=2,4"])
    assert found == [{"ppo.learning_rate": rate, "ppo.epochs": epochs} for rate in (1e-4, 3e-4) for epochs in (2, 4)]


def test_values_may_be_lists_words_and_short_names() -> None:
    (small, large) = cells(["policy.hidden_sizes=[64,64],[256]"])
    assert with_cell(Config(), small).policy.hidden_sizes == (64, 64)
    assert with_cell(Config(), large).policy.hidden_sizes == (256,)
    assert cells(["learner.device=cpu,auto"]) == [{"learner.device": "cpu"}, {"learner.device": "auto"}]
    assert cells(["learning_rate=1e-4"]) == [{"ppo.learning_rate": 1e-4}]


@pytest.mark.parametrize(
    ("grid", "reason"),
    [
        (["ppo.epochs"], "has no values"),
        (["ppo.epochs="], "has no values"),
        (["run.seed=1,2"], "--seeds"),
        (["environment.id=CartPole-v1,Pendulum-v1"], "can't be compared"),
        (["evaluation.threshold=1,2"], "can't be compared"),
        (["ppo.epochs=2,2"], "repeats"),
        (["ppo.epochs=2", "epochs=4"], "repeats"),
    ],
)
def test_a_wrong_grid_is_refused(grid: list[str], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        cells(grid)


@pytest.mark.parametrize("grid", ["ppo.epoch=2,3", "ppo.epochs=-2", "nothing=1"])
def test_a_wrong_setting_or_value_is_refused(grid: str) -> None:
    with pytest.raises(ConfigurationError):
        with_cell(Config(), cells([grid])[0])


def means(steps: float, final: float) -> Means:
    return Means(3, Estimate(final, final, final), Estimate(steps, steps, steps), 3)


def test_the_best_takes_the_fewest_steps_and_then_has_the_largest_return() -> None:
    found = [means(200.0, 9.0), means(100.0, 7.0), means(100.0, 8.0)]
    assert best(found, threshold=True) == 2
    assert best(found, threshold=False) == 0
