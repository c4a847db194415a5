"""The callbacks of docs/callbacks.md are short, and do in a run what the page says."""

from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.config import Config, build
from tests.docs.pages import ROOT, blocks, files_of
from tests.support.training.single_process import train

PAGE = ROOT / "docs" / "callbacks.md"
FILES = files_of(PAGE)
CALLBACKS = {"early_stop.py": "EarlyStop", "weight_norm.py": "WeightNorm"}
ENVIRONMENT = """
import gymnasium as gym
import numpy as np

class MyEnv(gym.Env):
    observation_space, action_space = gym.spaces.Box(-1, 1, (1,), np.float32), gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}
    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), float(action), self.steps == 4, False, {"success": bool(action)}
"""


def config_of(folder: Path, file: str, env_id: str) -> Config:
    (folder / file).write_text(FILES[file])
    return build(
        {
            "learner": {"callbacks": [f"{folder / file}:{CALLBACKS[file]}"]},
            "environment": {"id": env_id, "info_metrics": ["success"] if file == "early_stop.py" else []},
            "run": {"total_steps": 40_000 if file == "early_stop.py" else 8192},
            "actor": {"environments": 8},
            "ppo": {"epochs": 2, "minibatches": 2},
            "evaluation": {"episodes": 2, "interval_steps": 1024, "max_episode_steps": 20},
        }
    )


def test_the_page_has_these_examples_of_at_most_40_lines() -> None:
    assert FILES.keys() == CALLBACKS.keys()
    for text in FILES.values():
        assert len(text.splitlines()) <= 40
    commands = [block.text for block in blocks(PAGE) if block.language == "sh"]
    for file, name in CALLBACKS.items():
        assert any(f"--learner.callbacks {file}:{name}\n" in command for command in commands)


def test_a_run_ends_when_two_evaluations_reach_the_success_rate(tmp_path: Path) -> None:
    (tmp_path / "my_env.py").write_text(ENVIRONMENT)
    train(config_of(tmp_path, "early_stop.py", f"{tmp_path / 'my_env.py'}:MyEnv"), folder=tmp_path / "run")
    found = penstock.load_metrics(tmp_path / "run")
    success = found.evaluation["info_success"]
    assert len(success) >= 2 and (success[-2:] >= 0.9).all()
    assert found.training["env_steps"][-1] < 20_000


@pytest.mark.nightly
def test_the_norm_of_the_weights_is_in_the_records(tmp_path: Path) -> None:
    train(config_of(tmp_path, "weight_norm.py", "CartPole-v1"), folder=tmp_path / "run")
    training = penstock.load_metrics(tmp_path / "run").training
    for name in ("callback_weight_norm", "callback_largest_norm"):
        assert np.nanmin(training[name]) > 0.0
