"""`penstock tune` as processes: studies that are killed, continued by two processes at once, and of failing runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.config import Config, load_toml
from penstock.errors import INTERRUPTED, USAGE_ERROR
from penstock.runs.folder import RunFolder
from tests.integration.test_many_runs import BASE
from tests.support.services.processes import Command, end_in_time, end_of, run

SPACE = "[ppo]\nlearning_rate = { low = 1e-4, high = 1e-2, log = true }\nepochs = [2, 4]\n"
WORDS = ("tune", "base.toml", "--space", "space.toml", "--trials", "4", "--parallel", "2")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "base.toml").write_text(BASE)
    (tmp_path / "space.toml").write_text(SPACE)
    return tmp_path


def records(study: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (study / "study.journal").read_text().splitlines()]


@pytest.mark.nightly
def test_a_study_is_killed_and_continued_by_two_processes(folder: Path) -> None:
    study = folder / "tune" / "base"
    with Command(*WORDS, directory=folder) as command:
        first = RunFolder(study / "trials" / "0" / "seed-0")
        command.until(first.metrics.exists, "the first trial to train")
        command.kill()
        command.wait()
        with Command(*WORDS, directory=folder) as one, Command(*WORDS, directory=folder) as other:
            ended = [end_of(one), end_of(other)]
    assert [each.code for each in ended] == [0, 0], [each.stderr for each in ended]
    assert all("best: trial" in each.stdout for each in ended)
    # The numbers of operations of Optuna's journal: a new trial, its end, and an evaluation of it.
    ends = [each["trial_id"] for each in records(study) if each["op_code"] == 6]
    assert sorted(ends) == [0, 1, 2, 3]
    reports = [(each["trial_id"], each["step"]) for each in records(study) if each["op_code"] == 7]
    assert len(set(reports)) == len(reports) >= 4
    best = Config(**load_toml(study / "best.toml"))
    # The settings of the runs have what was found about the environment as well.
    assert best in [Config(**load_toml(study / "trials" / str(number) / "settings.toml")) for number in range(4)]
    assert best.ppo in [Config.load(study / "trials" / str(number) / "seed-0").ppo for number in range(4)]
    assert all(not (study / "trials" / str(number) / "seed-0" / "replay").exists() for number in range(4))


@pytest.mark.nightly
def test_ctrl_c_leaves_the_trials_to_the_next_command(folder: Path) -> None:
    with Command(*WORDS, directory=folder) as command:
        first = RunFolder(folder / "tune" / "base" / "trials" / "0" / "seed-0")
        command.until(first.metrics.exists, "the first trial to train")
        command.interrupt()
        stopped = end_in_time(command)
    assert stopped.code == INTERRUPTED
    assert stopped.left_behind == []
    assert "Continue with:" in stopped.stdout and "tune base.toml --space space.toml" in stopped.stdout
    assert not list((folder / "tune" / "base" / "trials").glob("*/claim.json"))


def test_a_base_that_can_not_be_trained_ends_the_study(folder: Path) -> None:
    (folder / "base.toml").write_text(BASE.replace("CartPole-v1", "Nothing-v7").replace('"native"', '"sync"'))
    ended = run(*WORDS, directory=folder)
    assert ended.code == USAGE_ERROR
    (line,) = ended.stderr.splitlines()
    assert "the first trial, which has the settings to start from, must succeed" in line and "Nothing" in line
    assert ended.left_behind == []
