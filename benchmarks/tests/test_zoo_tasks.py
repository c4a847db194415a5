"""Thresholds, the criterion, and the continuation of an interrupted comparison with rl-zoo's PPO."""

import dataclasses
import io
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.peers.zoo_settings import SETTINGS
from benchmarks.returns import RANDOM_RETURNS
from benchmarks.side_by_side import Run
from benchmarks.zoo_goals import GOALS, LEAST_SAVING, SHARES, Goal
from benchmarks.zoo_report import (
    PENSTOCK,
    SYSTEMS,
    ZOO,
    Comparison,
    Measured,
    claim,
    comparisons,
    meets_criterion,
    read,
    table,
    write,
)
from benchmarks.zoo_tasks import Wanted, configuration, measured_until, missing_runs, up_to_date, wanted_runs
from penstock.config import build

CARTPOLE = GOALS[0]


def measured(wanted: Wanted, *, steps: int | None, value: float) -> Measured:
    """A run that had this return from the threshold on."""
    total = wanted.course.total_steps
    run = Run(
        wanted.system,
        wanted.seed,
        steps,
        None if steps is None else steps / 1000,
        None if steps is None else steps / 500,
        ((total // 2, 0.0), (total, value)),
        "",
    )
    digest = configuration(wanted.system, wanted.course, wanted.goal.actions)
    return Measured(wanted.goal.name, digest, "abc", total, 60.0, run)


def compared(
    goal: Goal,
    *,
    ours: Sequence[int | None],
    our_score: float,
    theirs: Sequence[int | None],
    their_score: float = 1.0,
) -> Comparison:
    """A comparison with these steps to the threshold and these final scores."""
    random = RANDOM_RETURNS[goal.env_id]
    our_return, their_return = (random + score * (goal.reported_return - random) for score in (our_score, their_score))
    return Comparison(
        goal,
        tuple(measured(Wanted(goal, PENSTOCK, seed), steps=each, value=our_return) for seed, each in enumerate(ours)),
        tuple(measured(Wanted(goal, ZOO, seed), steps=each, value=their_return) for seed, each in enumerate(theirs)),
    )


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: goal.name)
def test_a_threshold_is_below_the_reported_return_and_far_above_a_random_one(goal: Goal) -> None:
    assert RANDOM_RETURNS[goal.env_id] < goal.threshold < goal.reported_return
    assert goal.score(goal.threshold) == pytest.approx(0.9)
    assert goal.score(goal.reported_return) == pytest.approx(1.0)


def test_a_threshold_is_nine_tenths_of_the_way_to_the_reported_return() -> None:
    # From -182 to 242.119.
    assert next(goal for goal in GOALS if goal.env_id == "LunarLander-v3").threshold == pytest.approx(199.707, abs=1e-3)


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: goal.name)
def test_penstock_has_no_more_steps_than_the_peer_and_its_last_fifth_has_evaluations(goal: Goal) -> None:
    assert goal.penstock_steps <= goal.zoo_steps == SETTINGS[goal.env_id].total_steps
    assert goal.interval_steps <= goal.penstock_steps / 25


def test_there_are_ten_tasks_and_minigrid_is_judged_in_both_ways() -> None:
    assert len({goal.env_id for goal in GOALS}) == 10
    assert len({goal.name for goal in GOALS}) == len(GOALS) == 11
    (door_key,) = {goal.env_id for goal in GOALS if goal.actions == "sampled"}
    by_actions = {goal.actions: goal for goal in GOALS if goal.env_id == door_key}
    assert by_actions["sampled"].judged_as_reported
    assert not by_actions["deterministic"].judged_as_reported
    assert all(goal.judged_as_reported for goal in GOALS if goal.env_id != door_key)
    # The training is the same; the stored runs of one are not those of the other.
    digests = {configuration(ZOO, Wanted(goal, ZOO, 0).course, goal.actions) for goal in by_actions.values()}
    assert len(digests) == 2


def test_a_row_counts_only_if_the_peer_does_what_its_authors_report() -> None:
    assert compared(CARTPOLE, ours=[1], our_score=1.0, theirs=[1], their_score=0.9).counts
    missed = compared(CARTPOLE, ours=[1], our_score=1.0, theirs=[None], their_score=0.89)
    assert not missed.counts
    at_equal_steps, row = (line for line in table([missed]).splitlines() if line.startswith("| CartPole-v1 |"))
    assert at_equal_steps.endswith("| peer not reproduced |")
    # No ratio, which would be 0.
    assert row.split("|")[6].strip() == ""
    assert "Of the 0 rows that count" in table([missed])


def test_a_task_that_its_authors_judge_by_other_actions_does_not_count() -> None:
    by_actions = {goal.actions: goal for goal in GOALS if goal.env_id == "MiniGrid-DoorKey-5x5-v0"}
    assert compared(by_actions["sampled"], ours=[1], our_score=1.0, theirs=[1]).counts
    assert not compared(by_actions["deterministic"], ours=[1], our_score=1.0, theirs=[1]).counts


def test_returns_are_compared_after_shares_of_the_steps_that_both_have() -> None:
    def run(system: str, total: int, curve: tuple[tuple[int, float], ...]) -> Measured:
        return Measured(CARTPOLE.env_id, "", "abc", total, 1.0, Run(system, 0, None, None, None, curve, ""))

    ours = run(PENSTOCK, 100, ((10, 30.0), (25, 100.0), (50, 480.0), (85, 490.0), (95, 500.0)))
    theirs = run(ZOO, 1_000, ((21, 90.0), (24, 110.0), (50, 485.0), (100, 400.0), (1_000, 500.0)))
    found = Comparison(CARTPOLE, (ours,), (theirs,))
    assert [found.returns_at(share) for share in SHARES] == [(100.0, 100.0), (480.0, 485.0), (495.0, 400.0)]
    # The peer's whole run counts for its reproduction and for the final return.
    assert found.counts
    text = table([found])
    assert "higher on 0 after 25%, 0 after 50%, 1 after 100% of the steps, and lower on 0, 1, 0" in text
    assert "0 after 25%, 0 after 50%, 1 after 100% of the same environment steps, and lower on 0, 1, 0" in claim(
        [found]
    )


def test_settings_are_marked_as_tuned_where_rl_zoo_marks_them() -> None:
    assert {env_id for env_id, settings in SETTINGS.items() if settings.tuned} == {
        "CartPole-v1",
        "MountainCarContinuous-v0",
        "Pendulum-v1",
        "Hopper-v5",
        "Walker2d-v5",
    }


def test_penstock_gets_no_preset_and_both_systems_the_same_threshold() -> None:
    ours, theirs = (Wanted(CARTPOLE, system, 0).course for system in SYSTEMS)
    assert ours.preset == "none"
    assert (ours.env_id, ours.threshold, ours.interval_steps) == (
        theirs.env_id,
        theirs.threshold,
        theirs.interval_steps,
    )
    assert Wanted(CARTPOLE, PENSTOCK, 0, steps=500).course.total_steps == 500


def test_a_ratio_of_steps_of_exactly_seven_tenths_suffices() -> None:
    assert compared(CARTPOLE, ours=[70, 70, 70], our_score=1.0, theirs=[100, 100, 100]).saves_steps
    assert not compared(CARTPOLE, ours=[71, 71, 71], our_score=1.0, theirs=[100, 100, 100]).saves_steps


def test_seeds_that_miss_the_threshold_are_the_slowest() -> None:
    assert not compared(CARTPOLE, ours=[10, None, None], our_score=1.0, theirs=[100, 100, 100]).saves_steps
    assert compared(CARTPOLE, ours=[10, 10, None], our_score=1.0, theirs=[100, None, None]).saves_steps
    assert not compared(CARTPOLE, ours=[None], our_score=1.0, theirs=[None]).saves_steps


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: goal.name)
def test_a_final_return_may_be_lower_by_a_hundredth_of_the_scale(goal: Goal) -> None:
    assert compared(goal, ours=[1], our_score=0.991, theirs=[1]).keeps_return
    assert not compared(goal, ours=[1], our_score=0.989, theirs=[1]).keeps_return


def test_the_criterion_needs_seven_tasks_with_fewer_steps_and_all_final_returns() -> None:
    counted = [goal for goal in GOALS if goal.judged_as_reported]

    def outcome(saving: int, *, last_score: float = 1.0) -> bool:
        return meets_criterion(
            [
                compared(
                    goal,
                    ours=[50 if number < saving else 90],
                    our_score=last_score if goal is counted[-1] else 1.0,
                    theirs=[100],
                )
                for number, goal in enumerate(counted)
            ]
        )

    assert outcome(LEAST_SAVING)
    assert not outcome(LEAST_SAVING - 1)
    assert not outcome(len(counted), last_score=0.9)


def test_both_systems_take_turns_and_every_task_comes_before_the_next_seed() -> None:
    wanted = wanted_runs(GOALS[:2], SYSTEMS, 2)
    first, second = (goal.env_id for goal in GOALS[:2])
    assert [(each.seed, each.goal.env_id, each.system) for each in wanted] == [
        (seed, env_id, system) for seed in (0, 1) for env_id in (first, second) for system in (PENSTOCK, ZOO)
    ]


def test_an_interrupted_measurement_continues_with_the_missing_runs(tmp_path: Path) -> None:
    wanted = wanted_runs(GOALS, SYSTEMS, 2)
    path = tmp_path / "results" / "zoo.json"
    done = [measured(each, steps=100, value=1.0) for each in wanted[:7]]
    write(path, done)
    assert read(path) == done
    assert missing_runs(wanted, up_to_date(read(path))) == wanted[7:]


def test_runs_with_other_settings_are_measured_again_and_those_with_further_seeds_are_kept() -> None:
    wanted = wanted_runs(GOALS[:1], SYSTEMS, 3)
    stored = [measured(each, steps=100, value=1.0) for each in wanted]
    assert up_to_date(stored) == stored
    changed = [dataclasses.replace(stored[0], configuration="other"), *stored[1:]]
    assert missing_runs(wanted_runs(GOALS[:1], SYSTEMS, 2), up_to_date(changed)) == wanted[:1]
    assert [each.run.seed for each in up_to_date(changed)] == [0, 1, 1, 2, 2]
    # A trial has other steps.
    assert up_to_date(stored, steps=500) == []


def test_the_configuration_depends_on_the_defaults_and_the_peers_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = (Wanted(CARTPOLE, system, 0).course for system in SYSTEMS)
    before = configuration(PENSTOCK, ours), configuration(ZOO, theirs)
    configuration.cache_clear()
    assert (configuration(PENSTOCK, ours), configuration(ZOO, theirs)) == before
    configuration.cache_clear()
    changed = build({"environment": {"id": CARTPOLE.env_id}, "ppo": {"epochs": 7}})
    monkeypatch.setattr("benchmarks.zoo_tasks.preset", lambda name, **sections: changed)
    monkeypatch.setitem(SETTINGS, CARTPOLE.env_id, SETTINGS["Pendulum-v1"])
    assert configuration(PENSTOCK, ours) != before[0]
    assert configuration(ZOO, theirs) != before[1]
    configuration.cache_clear()


def test_no_run_begins_after_the_end() -> None:
    ended = time.monotonic()
    assert list(measured_until(wanted_runs(GOALS, SYSTEMS, 1), ended, Console(file=io.StringIO()))) == []


def test_only_seeds_that_both_systems_have_are_compared() -> None:
    first, second = GOALS[:2]
    wanted = [
        *(Wanted(first, PENSTOCK, seed) for seed in (0, 1, 2)),
        *(Wanted(first, ZOO, seed) for seed in (2, 1)),
        Wanted(second, PENSTOCK, 0),
    ]
    (found,) = comparisons([measured(each, steps=100 + each.seed, value=1.0) for each in wanted])
    assert found.goal is first
    assert [each.run.seed for each in found.ours] == [each.run.seed for each in found.theirs] == [1, 2]


def test_a_table_has_the_figures_of_every_task() -> None:
    ours = [
        measured(Wanted(CARTPOLE, PENSTOCK, seed), steps=steps, value=value)
        for seed, (steps, value) in enumerate([(10_000, 500.0), (20_000, 480.0), (None, 490.0)])
    ]
    theirs = [measured(Wanted(CARTPOLE, ZOO, seed), steps=40_000, value=500.0) for seed in range(3)]
    text = table(comparisons([*ours, *theirs]))
    row = next(line for line in text.splitlines() if line.startswith("| CartPole-v1 | yes"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == [
        "CartPole-v1",
        "yes",
        "100k, 100k",
        # 22.2 + 0.9 * 477.8.
        "452.2",
        "20.0k (2 of 3), 40.0k",
        "0.50, 0.50, 0.50",
        "490.0 [480.0, 500.0]",
        "500.0 [500.0, 500.0]",
    ]
    # A score lower by 10 of 477.8 is not equal.
    assert "Of the 1 rows that count, the final return is at least equal on 0 (goal" in text
    assert "at most 0.7 on 1 (goal" in text


def test_a_table_without_a_comparison_has_no_rows() -> None:
    assert "Of the 0 rows that count" in table([])
