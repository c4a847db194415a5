"""Event files, read by TensorBoard's own reader."""

import errno
import itertools
import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.learning.durable import event_files
from penstock.learning.durable.event_files import EventFiles
from penstock.learning.durable.journal import Journal
from penstock.learning.durable.records import Record, Records
from penstock.learning.durable.retried_writes import RetriedWrites

accumulators = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator", reason="TensorBoard is not installed"
)

SETTINGS: dict[str, str | float | bool] = {"ppo.epochs": 4, "ppo.v_trace": True, "environment.id": "CartPole-v1"}


def training(step: int, **values: float | None) -> Record:
    return Record("training", step, {"return_mean": float(step), **values})


class Run:
    """The sinks of one run, of which each session opens new ones."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.journal, self.notices = folder, folder / "metrics.jsonl", list[str]()
        self.writes, self.size = RetriedWrites(self.notices.append), 0

    def session(self, resumed_at: int = 0) -> Records:
        journal = Journal(self.journal, writes=self.writes, notice=self.notices.append)
        events = EventFiles(
            self.folder / "tensorboard",
            self.journal,
            writes=self.writes,
            notice=self.notices.append,
            hyperparameters=SETTINGS,
        )
        return Records([journal, events], resumed_at=resumed_at)

    def read(self) -> Any:
        found = accumulators.EventAccumulator(
            str(self.folder / "tensorboard"), {"scalars": 0, "histograms": 0, "tensors": 0}
        )
        found.Reload()
        return found

    def steps(self, tag: str = "return/return_mean") -> list[int]:
        scalars = self.read().Scalars(tag)
        assert [each.value for each in scalars] == [float(each.step) for each in scalars]
        return [each.step for each in scalars]

    def recorded(self) -> list[int]:
        return [json.loads(line)["env_steps"] for line in self.journal.read_text().splitlines()]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_the_checksum_is_that_of_its_definition() -> None:
    # The check value of CRC-32C; a record masks it.
    (masked,) = struct.unpack("<I", event_files._masked_crc(b"123456789"))
    assert masked == ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_numbers_histograms_and_settings_are_read_back(run: Run) -> None:
    records, random = run.session(), np.random.default_rng(0)
    ages, priorities = random.integers(0, 9, 64), random.lognormal(size=64)
    distributions = {"age": ages, "priority": priorities}
    records.write(
        Record("training", 512, {"policy_loss": -0.25, "entropy": None, "batch_wait_s": 1.5}, (), distributions)
    )
    records.write(Record("evaluation", 512, {"return_mean": 195.5}))
    found = run.read()
    assert sorted(found.Tags()["scalars"]) == ["evaluation/return_mean", "loss/policy_loss", "time/batch_wait_s"]
    (loss,) = found.Scalars("loss/policy_loss")
    assert (loss.step, loss.value) == (512, -0.25)
    for name, values in distributions.items():
        (histogram,) = found.Histograms(f"histogram/{name}")
        shown = histogram.histogram_value
        assert (shown.num, shown.min, shown.max) == (64, values.min(), values.max())
        assert shown.sum == pytest.approx(values.sum()) and sum(shown.bucket) == 64
        edges = np.array(shown.bucket_limit)
        assert [int((values <= edge).sum()) for edge in edges[-1:]] == [64]
    metadata = found.summary_metadata["_hparams_/session_start_info"].plugin_data
    parsed = pytest.importorskip("tensorboard.plugins.hparams.plugin_data_pb2").HParamsPluginData
    hparams = parsed.FromString(metadata.content).session_start_info.hparams
    assert {name: value.WhichOneof("kind") for name, value in hparams.items()} == {
        "ppo.epochs": "number_value",
        "ppo.v_trace": "bool_value",
        "environment.id": "string_value",
    }
    assert hparams["ppo.epochs"].number_value == 4.0


def test_twenty_kills_lose_no_record_and_double_none(run: Run) -> None:
    random, saved = np.random.default_rng(1), 0
    for _ in range(20):
        records = run.session(saved)
        first = saved + 10
        steps = range(first, first + 10 * int(random.integers(1, 30)), 10)
        for step in steps:
            records.write(training(step))
        # A kill leaves any part of the last event, and the next session resumes from an earlier checkpoint.
        newest = max((run.folder / "tensorboard").iterdir())
        newest.write_bytes(newest.read_bytes()[: -int(random.integers(0, 60)) or None])
        saved = int(random.choice([saved, *steps]))
    run.session(saved)
    assert run.steps() == run.recorded() and len(run.steps()) > 50


def test_sessions_that_are_killed_before_a_checkpoint_double_no_record(run: Run) -> None:
    records = run.session()
    for step in (10, 20, 30):
        records.write(training(step))
    # The next session leaves no record, and the one after it only records that the last one drops.
    run.session(20)
    run.session(20).write(training(40))
    run.session(20).write(training(50))
    assert run.steps() == run.recorded() == [10, 20, 50]


def test_a_record_that_a_kill_left_only_in_the_journal_is_added(run: Run) -> None:
    records = run.session()
    records.write(training(10))
    with run.journal.open("a") as journal:
        for kind, step in (("evaluation", 10), ("training", 20), ("training", 30)):
            journal.write(json.dumps({"kind": kind, "env_steps": step, "return_mean": float(step)}) + "\n")
    run.session(20)
    assert run.steps() == [10, 20] and run.steps("evaluation/return_mean") == [10]


def test_a_full_disk_delays_events_and_loses_none(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    records, write = run.session(), os.pwrite
    records.write(training(10))

    def full(descriptor: int, data: bytes, position: int) -> int:
        if position + 20 > run.size:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, bytes(data)[:20], position)

    run.size = max(path.stat().st_size for path in (run.folder / "tensorboard").iterdir()) + 30
    with monkeypatch.context() as disk:
        disk.setattr(os, "pwrite", full)
        for step in range(20, 60, 10):
            records.write(training(step))
    assert any("event files" in notice for notice in run.notices)
    records.write(training(60))
    run.writes.finish("advice")
    assert run.steps() == list(range(10, 70, 10))


def test_the_number_of_events_grows_with_the_logarithm_of_that_of_records(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_files, "_ALL_UP_TO", 64)
    records = run.session()
    for step in range(1, 64 * 32 + 1):
        records.write(training(step))
    steps = run.steps()
    assert steps[:64] == list(range(1, 65)) and len(steps) <= 64 * (1 + 5 / 2) + 1 and steps[-1] > 64 * 31
    gaps = [after - before for before, after in itertools.pairwise(steps)]
    assert gaps == sorted(gaps) and max(gaps) == 32


def test_an_unreadable_folder_is_a_notice_and_the_run_goes_on(run: Run) -> None:
    (run.folder / "tensorboard").write_text("a file")
    records = run.session(10)
    records.write(training(20))
    assert any("TensorBoard" in notice for notice in run.notices)
    assert run.recorded() == [20]
