"""Gym 0.21 in Python 3.9, installed as docs/your-environment.md says, trains through environment.python."""

import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.support.environments.made import make_environments
from tests.support.services.processes import run

pytestmark = pytest.mark.nightly

INSTALLED = ("gym==0.21.0", "numpy<1.24")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Returns an interpreter with Gym 0.21; skips the test where there is no Python 3.9 or no package index."""
    interpreter = shutil.which("python3.9")
    if interpreter is None or subprocess.run([interpreter, "-c", ""], capture_output=True).returncode:
        pytest.skip("there is no Python 3.9")
    folder = tmp_path_factory.mktemp("gym") / "venv"
    subprocess.run([interpreter, "-m", "venv", folder], check=True)
    pip = [str(folder / "bin" / "pip"), "install", "--quiet"]
    for wanted in (["setuptools<66", "wheel<0.40", "pip<24.1"], ["--no-build-isolation", *INSTALLED]):
        ended = subprocess.run([*pip, *wanted], capture_output=True, text=True, timeout=600)
        if ended.returncode:
            pytest.skip(f"Gym 0.21 can't be installed: {ended.stderr[-300:]}")
    return str(folder / "bin" / "python")


@pytest.mark.parametrize("name", ["CartPole-v1", "gym:CartPole-v1"])
def test_rows_are_those_of_gym_and_time_limits_truncate(python: str, name: str) -> None:
    wrappers = [{"name": "TimeLimit", "max_episode_steps": 5}]
    with closing(make_environments(name, 2, kwargs={}, python=python, wrappers=wrappers)) as made:
        assert made.timed
        made.reset([1, 2**61])
        actions = (np.array([0, 1]),)
        ends = [made.step(actions).truncated.tolist() for _ in range(5)]
        assert ends == [[False] * 2] * 4 + [[True] * 2]


def test_a_run_trains_and_is_evaluated(python: str, tmp_path: Path) -> None:
    options = ["--total-steps=2000", "--actors=1", "--evaluation.episodes=2", f"--environment.python={python}"]
    ended = run("train", "gym:CartPole-v1", *options, f"--run-dir={tmp_path / 'run'}")
    assert ended.code == 0, ended.stderr
    evaluated = run("evaluate", str(tmp_path / "run"), "--episodes=2", "--trust-code")
    assert "return" in evaluated.stdout, evaluated.stderr
    assert sys.version_info >= (3, 11)
