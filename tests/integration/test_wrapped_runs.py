"""A run whose environments are wrapped trains, is evaluated and filmed with the same wrappers."""

import sys
from pathlib import Path

import pytest

from tests.support.services.processes import run

pytestmark = pytest.mark.nightly

OWN = """
import gymnasium

class Doubled(gymnasium.RewardWrapper):
    def __init__(self, env, factor=1.0):
        super().__init__(env)
        self.factor = factor

    def reward(self, reward):
        return reward * self.factor
"""
OPTIONS = ["--total-steps=2000", "--actors=1", "--envs-per-actor=4", "--evaluation.episodes=2"]


@pytest.mark.parametrize(
    "form", [[], ["--environment.vectorization=process"], [f"--environment.python={sys.executable}"]]
)
def test_a_run_repeats_its_wrappers(form: list[str], tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    folder = tmp_path / "run"
    # An episode of at most five steps with twice the reward returns 10.
    wrappers = f"--environment.wrappers=TimeLimit(max_episode_steps=5),{tmp_path / 'own.py'}:Doubled(factor=2.0)"
    ended = run("train", "CartPole-v1", wrappers, *OPTIONS, *form, f"--run-dir={folder}")
    assert ended.code == 0, ended.stdout + ended.stderr
    assert "environment.wrappers needs single environments" in ended.stdout
    refused = run("evaluate", str(folder), "--episodes=2")
    assert refused.code == 2 and "names code that would run: environment." in refused.stderr
    evaluated = run("evaluate", str(folder), "--episodes=2", "--trust-code", "--record-video")
    assert "return 10.0 ± 0.0 over 2 episodes" in evaluated.stdout, evaluated.stdout + evaluated.stderr
    assert list((folder / "videos").glob("*.mp4"))


def test_a_wrapper_that_does_not_exist_ends_the_command_before_anything_starts(tmp_path: Path) -> None:
    ended = run("train", "CartPole-v1", "--environment.wrappers=TimeLimits", *OPTIONS, f"--run-dir={tmp_path / 'run'}")
    assert ended.code == 2 and ended.stderr.splitlines()[-1].startswith("penstock: can't wrap the environment")
    assert not (tmp_path / "run").exists()
