"""Runs that earlier releases have trained: they are played, drawn, listed, read and resumed."""

import json
import shutil
import warnings
from pathlib import Path

import pytest

import penstock
from penstock.config import Config, setting_names
from penstock.config.layers import load_toml
from penstock.config.removed import REMOVED
from penstock.runs.folder import RunFolder
from tests.compatibility.messages import HERE
from tests.support.services.processes import run

pytestmark = pytest.mark.nightly

RUNS = sorted(folder.parent.name for folder in HERE.glob("*/run"))
"""Releases and commits of which a run is kept."""

WITH_REMOVED = {"ed2f2de": ("replay.snapshot_interval_s", "sampling.eta"), "08fe858": ("sampling.eta",), "bb932d0": ()}
"""Removed settings that each of these runs records."""


@pytest.fixture(params=RUNS)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Returns a copy of a run's folder, `NAME` in the temporary folder's `runs`."""
    folder = tmp_path / "runs" / str(request.param)
    shutil.copytree(HERE / request.param / "run", folder)
    return folder


def test_runs_of_the_present_release_and_before_are_kept() -> None:
    assert {*WITH_REMOVED, penstock.__version__} <= set(RUNS)


def noted(text: str, folder: Path) -> set[str]:
    """Returns the removed settings that the one line on standard error names."""
    lines = text.splitlines()
    assert len(lines) <= 1, text
    return {name for name in REMOVED if any(f"{name} (removed in" in line for line in lines)}


def test_the_commands_about_a_finished_run_work(old: Path) -> None:
    removed = set(WITH_REMOVED.get(old.name, ()))
    for arguments in (
        ("evaluate", str(old), "--episodes", "1"),
        ("evaluate", str(old / "checkpoints" / "best.safetensors"), "--env-id", "CartPole-v1", "--episodes", "1"),
        ("plot", str(old)),
        ("report", str(old)),
        ("status", str(old)),
    ):
        end = run(*arguments)
        assert end.code == 0, end.stderr
        assert noted(end.stderr, old) == removed, (arguments, end.stderr)
    assert RunFolder(old).learning_curve.stat().st_size > 0
    status = run("status", str(old), "--json")
    assert json.loads(status.stdout)["state"] == "ended"
    listed = run("runs", str(old.parent))
    assert listed.code == 0, listed.stderr
    assert old.name in listed.stdout and "CartPole-v1" in listed.stdout and "total_steps" in listed.stdout


def test_python_reads_a_finished_run(old: Path) -> None:
    policy = penstock.load_policy(old)
    environment = penstock.make(old)
    observation, _ = environment.reset(seed=1)
    assert policy.act(observation) in (0, 1)
    metrics = penstock.load_metrics(old)
    assert metrics.training["env_steps"][-1] >= 600
    assert metrics.evaluation["return_mean"].size > 0
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        config = Config.load(old)
    assert (config.run.total_steps, config.policy.hidden_sizes) == (600, (4,))
    told = " ".join(str(each.message) for each in warned)
    assert all(name in told for name in WITH_REMOVED.get(old.name, ()))


def test_a_run_is_resumed_and_says_what_has_become_of_its_settings(old: Path) -> None:
    end = run("train", "--resume", str(old), "--run.total-steps", "900")
    assert end.code == 0, end.stderr
    assert all(f"{name} (removed in" in end.stdout for name in WITH_REMOVED.get(old.name, ())), end.stdout
    metrics = penstock.load_metrics(old)
    assert metrics.training["env_steps"][-1] >= 900
    # From now on it is a run of this release.
    again = run("status", str(old))
    assert (again.code, again.stderr) == (0, "")


MATRIX = """
import gymnasium
import numpy as np


class Matrix(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2, 3), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.uniform(-1.0, 1.0, (2, 3)).astype(np.float32), {}

    def step(self, action):
        return self.np_random.uniform(-1.0, 1.0, (2, 3)).astype(np.float32), float(action), True, False, {}
"""


def test_a_policy_keeps_the_encoder_with_which_it_began(tmp_path: Path) -> None:
    file, folder = tmp_path / "matrix.py", tmp_path / "run"
    file.write_text(MATRIX)
    options = [f"--env-id={file}:Matrix", "--preset=none", "--actors=1", "--policy.hidden-sizes=8"]
    options += ["--evaluation.episodes=1", "--evaluation.interval-steps=1000000000"]
    begun = run("train", *options, "--total-steps=600", f"--run-dir={folder}", "--policy.encoders=observation=board")
    assert begun.code == 0, begun.stderr
    # As earlier releases recorded it, whose default this encoder was.
    config = RunFolder(folder).config
    config.write_text(config.read_text().replace('[policy.encoders]\nobservation = "board"', "[policy.encoders]"))
    assert not Config.load(folder).policy.encoders
    resumed = run("train", "--resume", str(folder), "--trust-code", "--total-steps=1200")
    started = run("train", *options, "--total-steps=600", f"--run.start-from={folder}", f"--run-dir={tmp_path / 'b'}")
    for end in (resumed, started):
        assert end.code == 0, end.stderr
        assert "encoders: observation board (policy.encoders)" in end.stdout.splitlines()


@pytest.mark.parametrize("name", RUNS)
def test_every_setting_of_every_release_exists_or_has_its_place_among_the_removed_ones(name: str) -> None:
    listed = HERE / name / "settings.txt"
    recorded = load_toml(HERE / name / "run" / "config.toml")
    settings = {f"{section}.{key}" for section, table in recorded.items() if isinstance(table, dict) for key in table}
    if listed.exists():
        settings |= set(listed.read_text().split())
    assert settings - set(setting_names()) <= set(REMOVED)
