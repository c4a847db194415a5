"""Correlation of stored priorities with current ones, with and without reanalysis."""

from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from benchmarks.study import stored_priorities_report
from benchmarks.study.hypotheses import REANALYSIS
from benchmarks.study.running import Run
from benchmarks.study.stored_priorities import AGES, POINTS, Probed, measure_run, name_of, points_of
from benchmarks.study.tasks import TASKS
from helpers.rule import PENSTOCK
from helpers.single_process import train

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("task", REANALYSIS.tasks)
def test_there_is_a_point_within_the_run_at_each_number_of_batches_since_a_recomputation(task: str) -> None:
    config = REANALYSIS.configuration(TASKS[task], REANALYSIS.settings[0], 0)
    points = points_of(config)
    assert {point % POINTS for point in points} == set(range(POINTS))
    assert config.run.total_steps is not None
    assert max(points) * config.actor.unroll_length * config.sampling.fresh_segments < config.run.total_steps


def test_reanalysis_raises_the_correlation_of_old_segments(tmp_path: Path) -> None:
    plain, reanalysed = (Run(REANALYSIS, "MountainCarContinuous-v0", setting, 0) for setting in REANALYSIS.settings[:2])
    found = {run: measure_run(run, tmp_path) for run in (plain, reanalysed)}

    def correlation(run: Run, ages: tuple[int, int]) -> float:
        known = [value for point in found[run]["points"] if (value := point["correlations"][name_of(ages)]) is not None]
        assert len(known) >= POINTS - 2
        return float(mean(known))

    assert {len(each["points"]) for each in found.values()} == {POINTS}
    assert correlation(reanalysed, AGES[-1]) > correlation(plain, AGES[-1]) + 0.1
    # Young segments were trained a few batches ago.
    assert correlation(plain, AGES[0]) > correlation(plain, AGES[-1]) + 0.1
    assert found[plain]["reanalysis_share"] == 0.0 < found[reanalysed]["reanalysis_share"] < 0.5


def test_a_measurement_compares_stored_priorities_with_those_under_the_current_parameters() -> None:
    config = REANALYSIS.configuration(TASKS["CartPole-v1"], REANALYSIS.settings[0], 0)
    config = config.changed(
        # Nothing changes the priorities of a segment: neither parameters nor normalisers.
        {"ppo": {"learning_rate": 1e-30}, "policy": {"normalise_observations": False, "normalise_returns": False}}
    ).changed({"run": {"total_steps": 8_000}, "evaluation": {"interval_steps": 10**9, "episodes": 1}})
    probed = Probed(PENSTOCK)
    train(config, rule=probed)
    ((probe, _),) = probed.made
    for point in probe.points:
        assert all(value is None or value > 0.999 for value in point.correlations.values())
    assert len(probe.points) == POINTS and probe.points[-1].correlations[name_of(AGES[-1])] is not None


def test_a_table_has_the_medians_over_points_and_seeds() -> None:
    def run(share: float, *values: float | None) -> dict[str, Any]:
        first, *others = [name_of(each) for each in AGES]
        points = [{"version": 1, "correlations": {first: value, **dict.fromkeys(others)}} for value in values]
        return {"points": points, "reanalysis_share": share}

    measured = {"A": {"plain": [run(0.0, 0.1, 0.2), run(0.0, 0.9, None)], "rule": [run(0.02, 0.5), run(0.04, 0.7)]}}
    lines = stored_priorities_report.table(measured).splitlines()
    assert "2 seeds" in lines[0]
    assert lines[-2:] == ["| A | plain | 0.20 | - | - | 0.0% |", "| A | rule | 0.60 | - | - | 3.0% |"]
