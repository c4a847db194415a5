"""`--resume` of a finished run changes nothing."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.config import Config, build
from penstock.errors import ConfigurationError
from penstock.local import launcher
from penstock.runs.folder import RunFolder
from penstock.runs.summary import EvaluationOutcome, Summary
from tests.support.machine.timing import start_patience_s

FINISHED = Summary(
    run_dir="run",
    env_id="CartPole-v1",
    seed=1,
    env_steps=1_010,
    wall_s=46.8,
    env_steps_per_s=12_020.0,
    evaluation=EvaluationOutcome(20, 480.0, 1.0),
    env_steps_to_threshold=900,
    learn_wall_s_to_threshold=1.0,
    policy_version=25,
    staleness_mean=1.5,
    samples_per_insert=2.0,
    stopped="total_steps",
    best_evaluation=EvaluationOutcome(20, 490.0, 1.0),
)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    folder.config.write_text(config_of(folder).repeatable().to_toml())
    folder.metrics.write_text('{"env_steps": 5}\nnot a record\n')
    return folder


def config_of(folder: RunFolder, **run: object) -> Config:
    return build({"run": {"dir": str(folder.root), "total_steps": 1_000, **run}})


def files_of(folder: RunFolder) -> dict[Path, tuple[bytes, int]]:
    return {
        path: (path.read_bytes(), path.stat().st_mtime_ns) for path in sorted(folder.root.rglob("*")) if path.is_file()
    }


@pytest.mark.parametrize(
    ("summary", "run", "reason"),
    [
        (FINISHED, {}, r"this run has already trained 1,000 steps; raise --total-steps to continue"),
        (
            replace(FINISHED, env_steps=500, stopped="stop_at_return"),
            {"stop_at_return": 475.0},
            r"has already reached its return of 475 \(an evaluation of 490\.0\); raise --stop-at-return",
        ),
    ],
)
def test_a_finished_run_is_neither_resumed_nor_changed(
    folder: RunFolder, summary: Summary, run: dict[str, object], reason: str
) -> None:
    summary.write(folder.summary)
    before = files_of(folder)
    with pytest.raises(ConfigurationError, match=reason):
        launcher.train(config_of(folder, **run), resume=True)
    assert files_of(folder) == before


@pytest.mark.nightly
def test_a_learner_started_on_a_finished_run_logs_this_and_exits_with_code_0(folder: RunFolder) -> None:
    FINISHED.write(folder.summary)
    before = files_of(folder)
    command = [sys.executable, "-m", "penstock", "learner", "--config", str(folder.config)]
    command += [f"--run.dir={folder.root}", "--learner.metrics-port=0", "--ppo.epochs=3"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=start_patience_s(), env=dict(os.environ))
    assert ended.returncode == 0, ended.stderr
    assert "run already finished" in ended.stderr and "1,000 steps" in ended.stderr
    assert "ppo.epochs: 3, was " in ended.stderr and "PENSTOCK_RUN=NAME" in ended.stderr
    assert files_of(folder) == before
