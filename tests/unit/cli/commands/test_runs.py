"""`penstock runs` lists runs in every state, the newest first."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.cli.main import _run
from penstock.config import Config
from penstock.learning.durable.records import Record
from penstock.runs.folder import RunFolder
from penstock.runs.summary import EvaluationOutcome
from tests.unit.runs.test_runs_metrics import write
from tests.unit.runs.test_summary import SUMMARY


def make_run(root: Path, name: str, started: int) -> RunFolder:
    folder = RunFolder(root / name)
    folder.root.mkdir(parents=True)
    folder.config.write_text(Config(environment={"id": "Pendulum-v1"}).to_toml())
    os.utime(folder.config, (started, started))
    return folder


def test_ended_killed_and_unstarted_runs_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    ended = replace(
        SUMMARY,
        env_steps=30_123,
        minutes=2.5,
        stopped="total_steps",
        best_evaluation=EvaluationOutcome(5, -150.25, 3.0),
    )
    ended.write(make_run(tmp_path / "runs", "ended", 10).summary)
    killed = make_run(tmp_path / "runs", "killed", 20)
    write(
        killed.root,
        Record("training", 400, {"training_s": 90.0}),
        Record("evaluation", 300, {"return_mean": -7.0}),
        Record("evaluation", 400, {"return_mean": -9.0}),
    )
    make_run(tmp_path / "runs", "unstarted", 30)
    assert _run(["runs"]) == 0
    heading, *lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert heading[:7] == ["run", "environment", "state", "steps", "best", "minutes", "started"]
    assert heading[7:] == ["folder", "store", "snapshots"]
    assert [line[:6] for line in lines] == [
        ["unstarted", "Pendulum-v1", "interrupted", "-", "-", "-"],
        ["killed", "Pendulum-v1", "interrupted", "400", "-7.00", "1.5"],
        ["ended", "Pendulum-v1", "total_steps", "30,123", "-150.2", "2.5"],
    ]


def test_without_runs_a_line_says_how_to_start_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["runs", str(tmp_path)]) == 0
    assert "there is no run in" in capsys.readouterr().out


@pytest.mark.parametrize(("given", "meant"), [("trian", "train"), ("evalute", "evaluate"), ("stats", "status")])
def test_an_unknown_command_has_a_suggestion(given: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run([given]) == 2
    assert f"unknown command '{given}'; did you mean {meant}? The commands are: train, " in capsys.readouterr().err
