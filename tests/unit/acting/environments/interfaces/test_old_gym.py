"""An id of Gym names its own environment, in this process and in another Python, and not Gymnasium's."""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from penstock.acting.environments.interfaces.old_gym import GymEnvironment
from penstock.acting.environments.registry import find
from penstock.config import Config
from penstock.errors import ConfigurationError, UnknownEnvironment
from tests.support.environments.made import make_environments

GYM = """
from types import SimpleNamespace
import numpy as np
import gymnasium.spaces as spaces

class Env:
    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"]}
    spec = SimpleNamespace(max_episode_steps=3)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    @property
    def unwrapped(self):
        return self

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.ones(1, np.float32), 1.0, False, self.steps == 3, {"other": object()}

    def action_masks(self):
        return np.array([True, self.steps < 2])

    def render(self):
        return np.zeros((2, 2, 3), np.uint8)

    def close(self):
        self.steps = -1


def make(env_id, disable_env_checker=None, **kwargs):
    assert env_id == "CartPole-v1" and disable_env_checker
    return Env(**kwargs)
"""
"""A module with the interface of Gym 0.26, for machines without it."""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "gym.py").write_text(GYM)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for name in [each for each in sys.modules if each == "gym" or each.startswith("gym.")]:
        monkeypatch.delitem(sys.modules, name)
    yield
    sys.modules.pop("gym", None)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("python", [None, sys.executable])
def test_the_rows_of_an_environment_of_gym(python: str | None) -> None:
    with closing(make_environments("gym:CartPole-v1", 2, kwargs={}, python=python)) as made:
        assert made.timed and made.spec.mask_bits == 2
        made.reset([1, 2])
        assert made.observation[0].tolist() == [[0.0], [0.0]]
        ends = [made.step((np.zeros(2, np.int64),)).truncated.tolist() for _ in range(3)]
        assert ends == [[False] * 2] * 2 + [[True] * 2]
        assert made.observation[0].tolist() == [[1.0], [1.0]]


@pytest.mark.usefixtures("stand_in")
def test_an_environment_of_gym_renders_and_closes() -> None:
    env = GymEnvironment("CartPole-v1", render_mode="rgb_array")
    assert env.render_mode == "rgb_array" and env.metadata == {"render_modes": ["rgb_array"]}
    _, info = env.reset(seed=1)
    assert info == {} and np.shape(env.render()) == (2, 2, 3)
    env.close()


def test_the_names_of_known_interfaces_are_no_code_of_a_file() -> None:
    assert not Config(env_id="gym:CartPole-v1").names_code and not Config(env_id="open_spiel:2048").names_code
    assert Config(env_id="gym:package:CartPole-v1").names_code and Config(env_id="gymlike:CartPole-v1").names_code


@pytest.mark.parametrize(
    ("name", "module", "installed"), [("gym:A-v0", "gym", "gym==0.26.2"), ("open_spiel:2048", "pyspiel", "openspiel")]
)
def test_a_missing_package_is_named_with_its_installation(
    name: str, module: str, installed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda each, *rest: None if each == module else found(each, *rest))
    with pytest.raises(UnknownEnvironment, match=rf"'{name}' needs \w+; install it with: pip install .*{installed}"):
        find(name)


def test_gym_itself() -> None:
    gym = pytest.importorskip("gym")
    made = make_environments("gym:CartPole-v1", 1, kwargs={})
    assert made.timed
    made.reset([7])
    for _ in range(5):
        outcome = made.step((np.array([1]),))
    assert outcome.reward.tolist() == [1.0]
    with pytest.raises(ConfigurationError, match="CartPole"):
        make_environments("gym:CartPol-v1", 1, kwargs={})
    assert isinstance(gym.__version__, str)
