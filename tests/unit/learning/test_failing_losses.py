"""A run whose own loss fails ends in one line, and continues from its newest checkpoint with a corrected loss."""

from pathlib import Path

import pytest

from penstock.config import Config, build
from penstock.errors import ConfigurationError, Diverged, TrainingFailed
from penstock.learning.durable import checkpoints
from penstock.learning.run.assembly import learner_of
from penstock.runs.folder import RunFolder
from tests.support.environments.tiny import spec_of
from tests.support.training.single_process import train
from tests.support.training.training import CPU

ENV_ID = "CartPole-v1"
LOSS = """
from penstock.losses import ppo


class Late:
    calls = 0

    def __call__(self, policy, batch, settings):
        self.calls += 1
        loss, statistics = ppo(policy, batch, settings)
        if self.calls > {after}:
            {fault}
        return loss, statistics
"""
TRIAL = 3
"""Calls before the first batch."""

STEPS_OF_BATCH = 4
"""Gradient steps of a batch."""


def config_of(folder: Path, *, fault: str, after: int) -> Config:
    (folder / "late.py").write_text(LOSS.format(fault=fault, after=after))
    return build(
        {
            "learner": {"loss": f"{folder / 'late.py'}:Late"},
            "environment": {"id": ENV_ID},
            "run": {"total_steps": 100_000},
            "actor": {"environments": 8},
            "ppo": {"epochs": 2, "minibatches": 2, "max_refused_batches": 2},
            "checkpoint": {"save_interval": 1},
        }
    )


def newest_of(run: Path, config: Config) -> int:
    """Returns the version of the newest checkpoint, from which a learner continues."""
    recovered = checkpoints.recover(RunFolder(run))
    assert recovered.path is not None and recovered.complaints == ()
    learner = learner_of(config, spec_of(ENV_ID), CPU)
    checkpoints.restore(learner, recovered.path)
    learner.check_finite()
    return recovered.progress.version


def test_an_exception_ends_a_run_in_one_line_and_its_checkpoints_stay_usable(tmp_path: Path) -> None:
    # In the second step of the fourth batch.
    config = config_of(tmp_path, fault='raise ValueError("no\\nmore")', after=TRIAL + 3 * STEPS_OF_BATCH + 1)
    with pytest.raises(TrainingFailed) as failed:
        train(config, folder=tmp_path / "run")
    file = tmp_path / "late.py"
    assert str(failed.value).startswith(f"learner.loss '{file}:Late' failed: ValueError: no more ({file}, ")
    assert str(failed.value).endswith("; correct it")
    assert newest_of(tmp_path / "run", config) == 3


def test_a_loss_that_becomes_nan_ends_a_run_and_is_named(tmp_path: Path) -> None:
    config = config_of(tmp_path, fault='loss = loss * float("nan")', after=TRIAL + 3 * STEPS_OF_BATCH)
    with pytest.raises(Diverged, match=rf"2 batches in a row .* correct learner.loss {tmp_path}/late.py:Late"):
        train(config, folder=tmp_path / "run")
    assert newest_of(tmp_path / "run", config) >= 3


def test_a_loss_that_fails_at_once_is_a_mistake_of_the_settings(tmp_path: Path) -> None:
    config = config_of(tmp_path, fault="raise SystemExit(1)", after=0)
    with pytest.raises(ConfigurationError, match=r"failed: SystemExit: 1 \(.*late.py, line 12\); correct it"):
        train(config, folder=tmp_path / "run")
    assert checkpoints.newest(RunFolder(tmp_path / "run")) is None
