import os
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from prometheus_client import REGISTRY

from penstock.learning.durable import checkpoints
from penstock.learning.durable.checkpoint_writer import CheckpointWriter
from penstock.learning.durable.checkpoints import RunProgress
from penstock.learning.durable.retried_writes import RetriedWrites
from penstock.runs.folder import RunFolder
from penstock.types.replay import Batch
from tests.support.machine.timing import PATIENCE_S, wait_for
from tests.support.services.in_process import InProcess, conclude, open_session
from tests.support.training.training import make_batch, make_learner, same_parameters


class SlowDisk:
    """A disk on which the syncs of other threads than the first wait until it is open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.waiting = threading.Event(), threading.Event()
        original = os.fsync

        def fsync(descriptor: int) -> None:
            if threading.current_thread() is not threading.main_thread():
                self.waiting.set()
                assert self.open.wait(PATIENCE_S)
            original(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    disk = SlowDisk(monkeypatch)
    yield disk
    disk.open.set()


def progress(batches: int) -> RunProgress:
    return RunProgress(version=batches, env_steps=100 * batches)


def test_training_continues_while_a_checkpoint_is_written_and_does_not_change_it(
    folder: RunFolder, disk: SlowDisk
) -> None:
    learner, restored, writes = make_learner(), make_learner(seed=9), RetriedWrites(lambda text: None)
    learner.train(make_batch(), 0.0)
    expected = checkpoints.take(learner, progress(1))
    with closing(CheckpointWriter(learner, folder, writes, keep=3)) as writer:
        writer.begin(progress(1))
        assert disk.waiting.wait(PATIENCE_S)
        learner.train(make_batch(), 0.0)
        # Also the retries of the training thread do not wait for the file.
        writes.retry()
        assert folder.numbered_checkpoints() == []
        disk.open.set()
    assert [path.read_bytes() for path in folder.numbered_checkpoints()] == [expected.data]
    assert checkpoints.restore(restored, folder.numbered_checkpoints()[0]) == progress(1)
    assert not same_parameters(learner, restored)


def test_metrics_show_what_would_be_lost_without_the_newest_checkpoint(folder: RunFolder) -> None:
    began, writes = time.monotonic(), RetriedWrites(lambda text: None)
    with closing(CheckpointWriter(make_learner(), folder, writes, keep=2)) as writer:
        writer.save(progress(1))
        saved = time.monotonic()
        assert REGISTRY.get_sample_value("penstock_learner_checkpoint_environment_steps") == 100
        age_s = REGISTRY.get_sample_value("penstock_learner_checkpoint_age_seconds")
        assert age_s is not None and age_s <= time.monotonic() - began
        folder.checkpoints.rename(folder.root / "elsewhere")
        writer.save(progress(2))
        # The write has failed.
        assert REGISTRY.get_sample_value("penstock_learner_checkpoint_environment_steps") == 100
        age_s = REGISTRY.get_sample_value("penstock_learner_checkpoint_age_seconds")
        assert age_s is not None and age_s >= time.monotonic() - saved - 0.001


def test_the_next_checkpoint_waits_for_the_previous_one(folder: RunFolder, disk: SlowDisk) -> None:
    with closing(CheckpointWriter(make_learner(), folder, RetriedWrites(lambda text: None), keep=2)) as writer:
        writer.begin(progress(1))
        assert disk.waiting.wait(PATIENCE_S)
        second = threading.Thread(target=writer.save, args=(progress(2),))
        second.start()
        second.join(0.2)
        assert second.is_alive() and folder.numbered_checkpoints() == []
        disk.open.set()
        second.join(PATIENCE_S)
        assert folder.numbered_checkpoints() == [folder.checkpoint(100), folder.checkpoint(200)]
        writer.begin(progress(3))
    assert folder.numbered_checkpoints() == [folder.checkpoint(200), folder.checkpoint(300)]


def test_an_error_other_than_a_failed_write_is_raised_by_the_next_checkpoint(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise ValueError("can't be encoded")

    with closing(CheckpointWriter(make_learner(), folder, RetriedWrites(lambda text: None), keep=2)) as writer:
        with monkeypatch.context() as patch:
            patch.setattr(checkpoints, "save", refuse)
            writer.begin(progress(1))
            with pytest.raises(ValueError, match="can't be encoded"):
                writer.save(progress(2))
        writer.save(progress(3))
    assert folder.numbered_checkpoints() == [folder.checkpoint(300)]


class Clocked(InProcess):
    """Takes 20 seconds for each batch on a clock of its own, and notes the newest checkpoint before it."""

    def __init__(self, folder: RunFolder) -> None:
        super().__init__()
        self.now_s, self.saved, self._folder = 0.0, list[int](), folder

    def next(self, timeout_s: float) -> Batch | None:
        # The clock begins with the first batch, and a minute is three batches.
        due = max(0, self.batches - 1) // 3
        wait_for(lambda: len(self._folder.numbered_checkpoints()) == due, "checkpoint", poll_s=0.001)
        newest = checkpoints.newest(self._folder)
        self.saved.append(checkpoints.read_progress(newest).version if newest else 0)
        self.now_s += 20.0
        return super().next(timeout_s)


def test_by_default_a_learner_that_dies_loses_a_minute_of_training(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = Clocked(folder)
    session = open_session(folder, outside, batches=12)
    monkeypatch.setattr(session.statistics, "_clock", lambda: outside.now_s)
    session.run.run()
    # Batches have different numbers of steps, so there may be one more.
    assert outside.saved[:12] == [0, 0, 0, 0, 4, 4, 4, 7, 7, 7, 10, 10]


def test_checkpoints_by_time_do_not_change_training(folder: RunFolder) -> None:
    learners = []
    for name, interval in (("often", 1e-9), ("never", 1e9)):
        own = RunFolder(folder.root / name)
        own.create()
        checkpoint = {"save_interval_minutes": interval, "max_checkpoints": 100}
        learners.append(conclude(own, InProcess(), lambda: False, batches=6, checkpoint=checkpoint)[1])
        assert len(own.numbered_checkpoints()) == (6 if name == "often" else 1)
    assert same_parameters(*learners)
