"""The chain of examples/episode_ends.py, and the values of each treatment, compared with learners of tables."""

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import examples.episode_ends as chain
from examples.episode_ends import DISCOUNT, ENV_ID, REWARDS, STATES, TRUNCATION, Treatment, exact_values, report
from tests.support.machine.timing import start_patience_s

SCRIPT = Path(chain.__file__)
END = STATES
"""Index of the observation after the last state."""


class Row(NamedTuple):
    """A step of a vector environment in NEXT_STEP mode; states are indices of observations."""

    state: int
    reward: float
    following: int
    terminated: bool
    truncated: bool
    resets: bool


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    envs = SyncVectorEnv([lambda: gymnasium.make(ENV_ID)] * 16, autoreset_mode=AutoresetMode.NEXT_STEP)
    observation, _ = envs.reset(seed=3)
    found, resets = [], np.zeros(16, np.bool_)
    for _ in range(4_000):
        following, reward, terminated, truncated, _ = envs.step(np.zeros(16, np.int64))
        for each in zip(observation.argmax(1), reward, following.argmax(1), terminated, truncated, resets, strict=True):
            state, gain, then, ended, cut, first = (value.item() for value in each)
            found.append(Row(state, gain, then, ended, cut, first))
        observation, resets = following.copy(), terminated | truncated
    return found


def followed_state(row: Row, treatment: Treatment) -> int | None:
    """The state whose value a treatment adds to the reward of a row; None if it adds nothing."""
    if row.terminated:
        return None
    if row.truncated:
        match treatment:
            case Treatment.TERMINATION | Treatment.RESET_ROW_AND_TERMINATION:
                return None
            case Treatment.NEXT_EPISODE:
                return 0
            case Treatment.STEP_BEFORE:
                return row.state
    return row.following


def learnt(rows: list[Row], treatment: Treatment) -> list[float]:
    """The values that a table learns from these rows: each is the mean of its targets."""
    trains_resets = treatment in (Treatment.RESET_ROW, Treatment.RESET_ROW_AND_TERMINATION)
    reward, count, follow = np.zeros(STATES + 1), np.zeros(STATES + 1), np.zeros((STATES + 1, STATES + 1))
    for row in rows:
        if trains_resets or not row.resets:
            reward[row.state] += row.reward
            count[row.state] += 1
            following = followed_state(row, treatment)
            if following is not None:
                follow[row.state, following] += DISCOUNT
    values, share = np.zeros(STATES + 1), np.maximum(count, 1.0)
    for _ in range(500):
        values = (reward + follow @ values) / share
    return list(values[:STATES])


@pytest.mark.parametrize("treatment", Treatment, ids=lambda each: each.name)
def test_a_table_that_treats_ends_in_this_way_learns_the_exact_values(rows: list[Row], treatment: Treatment) -> None:
    assert report(learnt(rows, treatment)).treatment is treatment


def test_the_correct_values_are_the_discounted_rewards_that_would_have_followed() -> None:
    values = [sum(DISCOUNT**k * reward for k, reward in enumerate(REWARDS[state:])) for state in range(STATES)]
    assert exact_values(Treatment.CORRECT) == pytest.approx(values)


def test_the_correct_values_are_learnt_from_any_rows_without_noise(rows: list[Row]) -> None:
    # Some dozen episodes contain every state. A mean over so few truncations would be far off.
    assert learnt(rows[:200], Treatment.CORRECT) == pytest.approx(list(exact_values(Treatment.CORRECT)))


def test_the_chain_is_truncated_at_random_and_terminates_at_its_end(rows: list[Row]) -> None:
    steps = [row for row in rows if not row.resets]
    assert all(row.reward == REWARDS[row.state] and row.following == row.state + 1 for row in steps)
    assert all(row.terminated == (row.following == END) for row in steps)
    for state in range(STATES - 1):
        cut = [row.truncated for row in steps if row.state == state]
        spread = (TRUNCATION * (1.0 - TRUNCATION) / len(cut)) ** 0.5
        assert np.mean(cut) == pytest.approx(TRUNCATION, abs=5.0 * spread)


def test_the_environment_follows_gymnasiums_rules() -> None:
    check_env(chain.EpisodeEnds(), skip_render_check=True)


def test_values_between_two_treatments_are_not_attributed_to_either() -> None:
    between = (exact_values(Treatment.CORRECT) + exact_values(Treatment.TERMINATION)) / 2.0
    assert report(between).treatment is None
    assert "none is within" in str(report(between))


@pytest.mark.parametrize("values", [[1.0] * (STATES - 1), [1.0] * (STATES - 1) + [float("nan")]], ids=["few", "nan"])
def test_other_than_one_finite_value_per_state_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match=f"expected {STATES} finite numbers, one for each state"):
        report(values)


@pytest.mark.parametrize(
    ("treatment", "code"), [(Treatment.CORRECT, 0), (Treatment.TERMINATION, 1)], ids=["correct", "wrong"]
)
def test_the_script_reports_about_values_on_its_command_line(treatment: Treatment, code: int) -> None:
    command = [sys.executable, str(SCRIPT), *(f"{value:.3f}" for value in exact_values(treatment))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=start_patience_s(), check=False)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (code, f"result: {treatment.value}")


def test_the_script_prints_the_values_of_every_treatment() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=start_patience_s(), check=True
    )
    assert [line.split("  ")[-1] for line in done.stdout.splitlines()] == [each.value for each in Treatment]
