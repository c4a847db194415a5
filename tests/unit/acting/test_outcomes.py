"""The columns and the episodes of windows are those that a loop over steps and environments finds."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.acting.environments.single_environments import StepOutcome
from penstock.acting.outcomes import Outcomes
from penstock.acting.values.spaces import segment_schema
from penstock.errors import EnvironmentFailed
from penstock.types.block import Columns
from penstock.types.run import Episode
from tests.support.environments.tiny import spec_of

DISCOUNT = np.float32(0.9)
NUMBERS = (4, 9, 2, 7, 11)


@dataclass
class Oracle:
    """Counts the rewards of one environment, one step after another."""

    environment: int
    total: float = 0.0
    steps: int = 0
    discounted: np.float32 = field(default_factory=lambda: np.float32(0.0))

    def take(
        self, reward: float, *, terminated: bool, truncated: bool, valid: bool
    ) -> tuple[np.float32, list[Episode]]:
        """Returns the discounted return after a row, and the episode that ended with it."""
        self.total, self.steps = self.total + reward, self.steps + valid
        self.discounted = self.discounted * DISCOUNT + np.float32(reward)
        discounted, ended = self.discounted, []
        if terminated or truncated:
            ended = [Episode(self.total, self.steps, self.environment, truncated)]
            self.total, self.steps, self.discounted = 0.0, 0, np.float32(0.0)
        return discounted, ended


def columns_of(count: int, steps: int) -> Columns:
    return segment_schema(spec_of("CartPole-v1"), steps).empty(count)


def outcome_of(reward: NDArray[np.float32], ends: NDArray[np.int64], valid: NDArray[np.bool_]) -> StepOutcome:
    """Returns an outcome whose `ends` are 0 for none, 1 for terminated, 2 for truncated and 3 for both."""
    return StepOutcome(reward, ends % 2 == 1, ends >= 2, valid, ends > 0)


@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, len(NUMBERS)),
    steps=st.integers(1, 7),
    share=st.sampled_from([0.0, 0.2, 0.6, 1.0]),
)
def test_windows_are_those_of_a_loop_over_steps(seed: int, count: int, steps: int, share: float) -> None:
    random, columns = np.random.default_rng(seed), columns_of(count, steps)
    outcomes, oracles = Outcomes(columns, NUMBERS[:count], float(DISCOUNT)), [Oracle(each) for each in NUMBERS[:count]]
    for _ in range(4):
        reward = random.normal(size=(steps, count)).astype(np.float32)
        ends = np.where(random.random((steps, count)) < share, random.integers(1, 4, (steps, count)), 0)
        valid = random.random((steps, count)) < 0.8
        episodes = []
        for step in range(steps):
            outcomes.record(step, outcome_of(reward[step], ends[step], valid[step]))
        discounted = np.zeros((count, steps), np.float32)
        for step in range(steps):
            for index, oracle in enumerate(oracles):
                discounted[index, step], ended = oracle.take(
                    float(reward[step, index]),
                    terminated=ends[step, index] % 2 == 1,
                    truncated=bool(ends[step, index] >= 2),
                    valid=bool(valid[step, index]),
                )
                episodes += ended
        found = outcomes.finish()
        assert [(each.environment, each.steps, each.truncated) for each in found] == [
            (each.environment, each.steps, each.truncated) for each in episodes
        ]
        assert [each.episode_return for each in found] == pytest.approx([each.episode_return for each in episodes])
        for name, expected in (
            ("reward", reward.T),
            ("terminated", ends.T % 2 == 1),
            ("truncated", ends.T >= 2),
            ("valid", valid.T),
            ("discounted_return", discounted),
        ):
            np.testing.assert_array_equal(columns.column(name), expected, err_msg=name)


def test_a_huge_episode_leaves_the_next_return_exact() -> None:
    columns = columns_of(1, 3)
    outcomes = Outcomes(columns, (0,), 0.9)
    for step, (reward, end) in enumerate([(3e38, 1), (0.25, 0), (0.5, 1)]):
        outcomes.record(step, outcome_of(np.array([reward], np.float32), np.array([end]), np.array([True])))
    assert [each.episode_return for each in outcomes.finish()] == [float(np.float32(3e38)), 0.75]


def test_a_lost_episode_is_not_reported() -> None:
    outcomes = Outcomes(columns := columns_of(2, 3), (0, 1), 0.5)
    one, valid, none = np.ones(2, np.float32), np.ones(2, np.bool_), np.zeros(2, np.int64)
    outcomes.record(0, outcome_of(one, none, valid))
    cut = outcome_of(np.array([0.0, 1.0], np.float32), np.array([2, 0]), np.array([False, True]))
    outcomes.record(1, cut._replace(lost={0: EnvironmentFailed("gone")}))
    outcomes.record(2, outcome_of(one, np.array([1, 1]), valid))
    assert outcomes.finish() == [Episode(1.0, 1, 0, False), Episode(3.0, 3, 1, False)]
    assert columns.column("discounted_return").tolist() == [[1.0, 0.5, 1.0], [1.0, 1.5, 1.75]]


def test_a_failure_forgets_the_rows_before_it() -> None:
    outcomes = Outcomes(columns := columns_of(2, 1), (0, 1), 0.9)
    one, valid = np.ones(2, np.float32), np.ones(2, np.bool_)
    outcomes.record(0, outcome_of(one, np.zeros(2, np.int64), valid))
    assert outcomes.finish() == []
    outcomes.forget()
    outcomes.record(0, outcome_of(one, np.ones(2, np.int64), valid))
    assert outcomes.finish() == [Episode(1.0, 1, 0, False), Episode(1.0, 1, 1, False)]
    assert columns.column("discounted_return").tolist() == [[1.0], [1.0]]
