import json
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import ConfigurationError
from penstock.summary import EvaluationOutcome, Summary
from penstock.types import Ages, CoordinatorStatistics, Drops, LearningNumbers, MeanTimes, Wait

STATISTICS = CoordinatorStatistics(
    mode="asynchronous",
    off_policy_degree=1,
    lag=Ages(1.0, 0.5, 2),
    times=MeanTimes(batch_train_s=0.1),
    waits=(Wait("fresh segments", 1.0, 0.5),),
    drops=Drops(late_segments=3),
    recent=LearningNumbers(entropy=0.5),
)
SUMMARY = Summary(
    run_dir="run",
    env_id="CartPole-v1",
    seed=1,
    env_steps=1_000,
    wall_s=2.0,
    env_steps_per_s=500.0,
    evaluation=EvaluationOutcome(2, 10.0, 1.0),
    env_steps_to_threshold=None,
    learn_wall_s_to_threshold=None,
    policy_version=7,
    staleness_mean=1.5,
    samples_per_insert=2.0,
    stopped="total_steps",
    statistics=STATISTICS,
)


@pytest.mark.parametrize("summary", [SUMMARY, replace(SUMMARY, statistics=None, evaluation=None)])
def test_a_summary_is_read_as_it_was_written(tmp_path: Path, summary: Summary) -> None:
    summary.write(tmp_path / "summary.json")
    assert Summary.read(tmp_path / "summary.json") == summary


def test_a_summary_from_before_there_were_statistics_is_read(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    SUMMARY.write(path)
    values = json.loads(path.read_text())
    del values["statistics"]
    path.write_text(json.dumps(values))
    assert Summary.read(path) == replace(SUMMARY, statistics=None)


def test_a_summary_that_is_cut_short_is_refused_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    SUMMARY.write(path)
    path.write_text(path.read_text()[:-20])
    with pytest.raises(ConfigurationError, match=r"can't read the summary .*summary\.json"):
        Summary.read(path)
