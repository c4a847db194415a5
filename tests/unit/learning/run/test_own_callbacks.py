"""Callbacks of a user see a run, add numbers to its records and end it; mistakes of theirs end it in one line."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from penstock.callbacks import Callback, Training
from penstock.cli.screen.hints import MOST_IN_CALLBACKS, hints
from penstock.config import Config, build
from penstock.errors import ConfigurationError, TrainingFailed
from penstock.learning.durable import checkpoints
from penstock.learning.run.own_callbacks import OwnCallbacks
from penstock.runs.folder import RunFolder
from penstock.runs.metrics import load_metrics, tag_of
from penstock.types.statistics import CoordinatorStatistics, LearningNumbers, MeanTimes
from tests.support.tiers import gate_of
from tests.support.training.single_process import train
from tests.support.training.training import make_learner

WATCHER = """
import torch
from penstock.callbacks import Callback

class Watcher(Callback):
    def __init__(self):
        self.events, self.values = [], []

    def on_start(self, training):
        self.events.append("start")
        assert training.config.environment.id == "CartPole-v1" and training.env_steps == 0

    def on_batch(self, training, record):
        assert not torch.is_grad_enabled() and record["version"] == training.version
        assert record["env_steps"] == training.env_steps > 0 and record["policy_loss"] is not None
        self.events.append("batch")
        training.log("norm", next(training.policy.parameters()).norm())
        training.log("batches", training.version)
        training.log("nan", float("nan"))

    def on_evaluation(self, training, record):
        self.events.append("evaluation")
        training.log("evaluated", record["return_mean"])

    def on_end(self, training, stopped):
        print("events", self.events.count("batch"), self.events.count("evaluation"), self.events[0], stopped)

class Second(Callback):
    def on_batch(self, training, record):
        {does}
"""


def config_of(folder: Path, *names: str, does: str = "pass", **run: Any) -> Config:
    (folder / "watcher.py").write_text(WATCHER.format(does=does))
    return build(
        {
            "learner": {"callbacks": [f"{folder / 'watcher.py'}:{name}" for name in names]},
            "environment": {"id": "CartPole-v1"},
            "run": {"total_steps": 4096, **run},
            "actor": {"environments": 8},
            "ppo": {"epochs": 1, "minibatches": 2},
            "evaluation": {"episodes": 2, "interval_steps": 2048, "max_episode_steps": 20},
            "checkpoint": {"save_interval": 1},
        }
    )


def test_callbacks_see_a_run_and_their_numbers_are_in_its_records(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    train(config_of(tmp_path, "Watcher", "Second"), folder=tmp_path / "run")
    found = load_metrics(tmp_path / "run")
    training, batches = found.training, int(found.training["version"][-1])
    assert (training["callback_norm"] > 0.0).all() and training["batch_callbacks_s"].max() > 0.0
    # The mean over the batches since the last record.
    assert training["callback_batches"][-1] <= batches and "callback_nan" in training
    assert found.evaluation["callback_evaluated"] == pytest.approx(found.evaluation["return_mean"])
    assert found.final_evaluation["callback_evaluated"] == pytest.approx(found.final_evaluation["return_mean"])
    ended = re.search(r"events (\d+) (\d+) start total_steps", capfd.readouterr().out)
    assert ended is not None and int(ended[1]) == batches and int(ended[2]) >= 1
    assert tag_of("training", "callback_norm") == "callback/norm"
    assert tag_of("evaluation", "callback_norm") == "evaluation/norm"


def test_a_callback_ends_a_run_with_its_reason(tmp_path: Path) -> None:
    does = 'training.stop("two\\nbatches") if training.version >= 2 else None'
    train(config_of(tmp_path, "Second", does=does), folder=tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert max(json.loads(line).get("version", 0) for line in lines) == 2


@pytest.mark.parametrize(
    ("does", "message"),
    gate_of(
        1,
        [
            ("raise ValueError('no')", "failed in on_batch: ValueError: no ({file}, line 30); correct it"),
            ("training.log('Big Name', 1)", "logged the name 'Big Name' in on_batch ({file}, line 30); use up to 40"),
            ("training.log('x', 'text')", "logged 'text' as x in on_batch ({file}, line 30); log a number"),
            (
                "[training.log(f'x{n}', 1) for n in range(65)]",
                "logged 65 names in on_batch ({file}, line 30); log at most 64",
            ),
            (
                "next(training.policy.parameters()).mul_(2.0)",
                "changed the parameters of the policy in on_batch; a callback",
            ),
            ("sys.exit(3)", "failed in on_batch: NameError: name 'sys' is not defined ({file}, line 30); correct it"),
        ],
    ),
)
def test_a_mistake_ends_a_run_in_one_line_and_its_checkpoints_stay_usable(
    does: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "watcher.py"
    after = f"\n        if training.version > 3:\n            {does}"
    config = config_of(tmp_path, "Second", does="pass" + after)
    with pytest.raises(TrainingFailed) as failed:
        train(config, folder=tmp_path / "run")
    expected = f"learner.callbacks '{file}:Second' {message.format(file=file)}".replace("line 30", "line 32")
    assert str(failed.value).startswith(expected) and "\n" not in str(failed.value)
    recovered = checkpoints.recover(RunFolder(tmp_path / "run"))
    assert recovered.path is not None and recovered.progress.version == 4


REFUSED = """
from penstock.callbacks import Callback
class NoCallback: pass
class Needs(Callback):
    def __init__(self, rate): pass
class Starts(Callback):
    def on_start(self, training): raise RuntimeError("not today")
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NoCallback", "does not name a subclass of penstock.callbacks.Callback in"),
        ("Nothing", "names nothing in"),
        ("Needs", "can't be made without arguments: TypeError"),
    ],
)
def test_what_is_no_callback_is_refused_before_training(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "refused.py").write_text(REFUSED)
    config = Config(learner={"callbacks": [f"{tmp_path / 'refused.py'}:{name}"]})
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        OwnCallbacks(config, make_learner("CartPole-v1"), lambda seconds: None)


def test_a_callback_that_fails_at_the_start_is_a_mistake_of_the_settings(tmp_path: Path) -> None:
    (tmp_path / "refused.py").write_text(REFUSED)
    config = Config(learner={"callbacks": [f"{tmp_path / 'refused.py'}:Starts"]})
    callbacks = OwnCallbacks(config, make_learner("CartPole-v1"), lambda seconds: None)
    with pytest.raises(ConfigurationError, match=r"failed in on_start: RuntimeError: not today .*line 7\); correct it"):
        callbacks.start()


class WithRate(Callback):
    def __init__(self, rate: float = 0.5) -> None:
        self.rate = rate

    def on_batch(self, training: Training, record: object) -> None:
        del training, record


def test_a_class_or_an_object_without_arguments_is_named() -> None:
    expected = Config(learner={"callbacks": [WithRate]}).learner.callbacks
    assert expected[0].endswith(":WithRate")
    for given in ([WithRate()], WithRate, WithRate(), expected[0]):
        assert Config(learner={"callbacks": given}).learner.callbacks == expected
    with pytest.raises(ConfigurationError, match="can't have an object of WithRate with arguments"):
        Config(learner={"callbacks": [WithRate(0.7)]})
    with pytest.raises(
        ConfigurationError, match=r"subclasses of penstock\.callbacks\.Callback; got the function config_of"
    ):
        Config(learner={"callbacks": [config_of]})


@pytest.mark.parametrize(("share", "hinted"), [(0.5 * MOST_IN_CALLBACKS, False), (2.0 * MOST_IN_CALLBACKS, True)])
def test_slow_callbacks_are_hinted_at(share: float, hinted: bool) -> None:
    times = MeanTimes(batch_train_s=1.0 - share, batch_callbacks_s=share)
    statistics = CoordinatorStatistics("asynchronous", 1, times=times, recent=LearningNumbers(), recent_batches=100)
    found = [hint.text for hint in hints(statistics) if hint.observation == "callbacks are slow"]
    assert bool(found) == hinted
    assert all("learner.callbacks took 10% of the learner's time, 100 ms per batch" in text for text in found)
