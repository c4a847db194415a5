"""Names that an installed package registers mean its classes, and nothing is imported to find them."""

import sys
from pathlib import Path

import pytest

import penstock
from penstock.cli.commands.doctor import check_extensions
from penstock.config import Config, build
from penstock.config.foreign_code import FileNames
from penstock.errors import ConfigurationError
from penstock.machine.extensions import extensions, resolved
from penstock.runs.folder import RunFolder
from penstock.tracking.trackers import TrackedRun, open_tracker
from tests.support.training.single_process import train

MODULE = """
import gymnasium as gym
import numpy as np
from penstock.callbacks import Callback
from penstock.losses import ppo

def plain(policy, batch, settings):
    loss, statistics = ppo(policy, batch, settings)
    return loss, {**statistics, "extended": batch.value.mean()}

class Stops(Callback):
    def on_batch(self, training, record):
        training.log("seen", 1.0)

class Listing:
    def __init__(self, run):
        self.place, self.last = run.name, {}
    def send(self, records): pass
    def close(self): pass

class Bare:
    def __init__(self, run): pass

class Walk(gym.Env):
    observation_space, action_space = gym.spaces.Box(-1, 1, (1,), np.float32), gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}
    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), 1.0, self.steps == 5, False, {}
"""
POINTS = """
[penstock.losses]
plain_ppo = {module}:plain

[penstock.callbacks]
stops = {module}:Stops

[penstock.environments]
walk = {module}:Walk
CartPole-v1 = {module}:Walk

[penstock.trackers]
listing = {module}:Listing

[penstock.modules]
broken = {module}
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Installs a distribution into a folder of Python's path, as pip does, and returns the name of its module."""
    name = f"extending_{tmp_path.name.replace('-', '_')}"
    install(tmp_path / "site", name, "extending", MODULE, POINTS.format(module=name))
    monkeypatch.syspath_prepend(tmp_path / "site")
    return name


def install(site: Path, module: str, package: str, text: str, points: str) -> None:
    metadata = site / f"{package}-1.2.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
    (metadata / "entry_points.txt").write_text(points)
    (site / f"{module}.py").write_text(text)


def test_a_name_means_the_class_that_a_package_registers(module: str) -> None:
    config = build(
        {"learner": {"loss": "plain_ppo", "callbacks": "stops"}, "environment": {"id": "walk"}, "policy": {}}
    )
    assert config.learner.loss == f"{module}:plain" and config.learner.callbacks == (f"{module}:Stops",)
    assert config.environment.id == f"{module}:Walk"
    assert module not in sys.modules
    # In a run's file they name code, as if they were written in full.
    assert FileNames.all_in(Path("config.toml"), config).names == {
        "learner.loss",
        "learner.callbacks",
        "environment.id",
    }
    assert penstock.configure("walk").environment.id == f"{module}:Walk"


def test_ids_of_gymnasium_files_and_modules_are_unchanged(module: str) -> None:
    for name in ("CartPole-v1", "ALE/Pong-v5", "file.py:Walk", f"{module}:Walk", "Taxi"):
        assert resolved(name, "penstock.environments") == name


def test_an_unknown_name_is_refused_with_the_known_ones(module: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        build({"learner": {"loss": "plain_pp"}})
    text = str(refused.value)
    assert "a name that a package registers (penstock.losses); got 'plain_pp'" in text and "\n" not in text
    assert "Known: plain_ppo. did you mean plain_ppo?" in text
    with pytest.raises(ConfigurationError, match="whose entry point has no class"):
        build({"policy": {"module": "broken"}})
    assert module not in sys.modules


def test_without_packages_an_unknown_name_is_refused() -> None:
    assert not extensions("penstock.losses")
    with pytest.raises(ConfigurationError, match=r"got 'dual_clip'\. Known: none\."):
        build({"learner": {"loss": "dual_clip"}})


def test_a_name_of_two_packages_is_refused_with_both(module: str, tmp_path: Path) -> None:
    install(tmp_path / "site", "second", "second", "", "[penstock.losses]\nplain_ppo = second:loss\n")
    with pytest.raises(ConfigurationError, match=rf"extending 1\.2, {module}:plain\) and .*second 1\.2, second:loss"):
        build({"learner": {"loss": "plain_ppo"}})


def test_doctor_lists_them_with_their_packages(module: str) -> None:
    found = {each.detail for each in check_extensions()}
    assert f"learner.loss may be plain_ppo (extending 1.2, {module}:plain)" in found
    assert f"learner.callbacks may be stops (extending 1.2, {module}:Stops)" in found
    assert module not in sys.modules


def test_a_tracker_of_a_package_is_opened_with_the_run(module: str, tmp_path: Path) -> None:
    name = build({"tracking": {"tracker": "listing"}}).tracking.tracker
    assert name == f"{module}:Listing"
    assert Config(tracking={"tracker": name}).names_code and not Config(tracking={"tracker": "wandb"}).names_code
    run = TrackedRun.of(RunFolder(tmp_path / "run"), "penstock")
    assert open_tracker(name, run).place == "run"
    with pytest.raises(ConfigurationError, match="has no place; "):
        open_tracker(f"{module}:Bare", run)
    with pytest.raises(ConfigurationError, match="correct the part after the colon"):
        open_tracker(f"{module}:Nothing", run)
    with pytest.raises(
        ConfigurationError, match=r"got 'listin'\. Known: wandb, mlflow, trackio, listing\. did you mean listing"
    ):
        build({"tracking": {"tracker": "listin"}})


@pytest.mark.nightly
def test_a_run_trains_with_them(module: str, tmp_path: Path) -> None:
    config = build(
        {
            "learner": {"loss": "plain_ppo", "callbacks": "stops"},
            "environment": {"id": "walk"},
            "run": {"total_steps": 1024},
            "ppo": {"epochs": 1, "minibatches": 1},
            "evaluation": {"episodes": 2, "interval_steps": 1024},
        }
    )
    train(config, folder=tmp_path / "run")
    training = penstock.load_metrics(tmp_path / "run").training
    assert {"loss_extended", "callback_seen"} <= training.keys()
