"""metrics.jsonl loses no line without a notice and contains no incomplete line."""

import errno
import itertools
import json
import os
from pathlib import Path

import numpy as np
import pytest

from penstock.learning.durable import journal
from penstock.learning.durable.journal import Journal, thinned
from penstock.learning.durable.records import Record, Records
from penstock.learning.durable.retried_writes import RetriedWrites
from penstock.runs.metrics import RecordReader, load_metrics
from penstock.telemetry import metrics
from penstock.types.evaluation import EvaluationSummary


def record(env_steps: int, mean: float = 1.0) -> Record:
    evaluation = EvaluationSummary(version=1, env_steps=env_steps, episodes=2, return_mean=mean, return_std=0.0)
    return Record.of_evaluation(evaluation, 1.0, final=False)


def open_journal(
    path: Path, resumed_at: int = 10**9, notices: list[str] | None = None, writes: RetriedWrites | None = None
) -> Records:
    notices = [] if notices is None else notices
    writes = writes or RetriedWrites(notices.append)
    return Records([Journal(path, writes=writes, notice=notices.append)], resumed_at=resumed_at)


def steps_of(path: Path) -> list[int]:
    return [json.loads(line)["env_steps"] for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def test_records_after_the_resumed_step_are_dropped(path: Path) -> None:
    sink, notices = open_journal(path), list[str]()
    for env_steps in (10, 20, 30):
        sink.write(record(env_steps))
    resumed = open_journal(path, resumed_at=20, notices=notices)
    resumed.write(record(25))
    assert steps_of(path) == [10, 20, 25]
    assert notices == []


@pytest.mark.parametrize("stray", [b'{"env_steps": 2', b"\xff\xfe", b"[1]", b'{"kind": "training"}'])
def test_damaged_lines_are_moved_aside_and_reported(path: Path, stray: bytes) -> None:
    open_journal(path).write(record(10))
    path.write_bytes(stray + b"\n" + path.read_bytes() + stray)
    notices = list[str]()
    open_journal(path, notices=notices).write(record(20))
    assert steps_of(path) == [10, 20]
    assert len(notices) == 1
    assert "2 lines" in notices[0] and "metrics.damaged" in notices[0]
    assert path.with_name("metrics.damaged").read_bytes() == 2 * (stray + b"\n")


def test_a_partially_written_line_is_rewritten_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notices = list[str]()
    writes = RetriedWrites(notices.append)
    journal = open_journal(path, notices=notices, writes=writes)
    journal.write(record(10))
    write = os.pwrite

    def half(descriptor: int, data: bytes, position: int) -> int:
        if len(data) > 20:
            return write(descriptor, bytes(data)[:20], position)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "pwrite", half)
        journal.write(record(20))
    assert "metrics.jsonl" in notices[0] and "No space left" in notices[0]
    # Later records are kept in order until the next attempt to write.
    journal.write(record(30))
    writes.finish("advice")
    assert steps_of(path) == [10, 20, 30]


def test_a_number_without_a_json_form_is_null(path: Path) -> None:
    open_journal(path).write(record(10, mean=float("inf")))
    assert json.loads(path.read_text())["return_mean"] is None


def long_journal(path: Path, records: int, begin: int = 1, every: int = 100) -> None:
    journal = Journal(path, writes=RetriedWrites(print), notice=print)
    journal.resume(10**9)
    for step in range(begin, begin + records):
        journal.write(Record("training", 10 * step, {"loss": 1.0 / step, "filler": 0.1}))
        if step % every == 0:
            journal.write(record(10 * step))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(journal, "MOST_BYTES", 2**16)
    return 2**16


def test_a_long_journal_is_bounded_and_keeps_the_shape_of_its_curves(path: Path, small: int) -> None:
    for part in range(4):
        long_journal(path, 5_000, begin=1 + 5_000 * part)
        assert path.stat().st_size <= small
    found = load_metrics(path.parent)
    steps = found.training["env_steps"]
    assert (steps[0], steps[-1]) == (10, 200_000)
    assert (np.diff(steps) > 0).all()
    # The newest part has not been thinned yet. In the rest of the run, the gaps are alike.
    gaps = np.diff(steps)
    thin = gaps[gaps > 10]
    assert thin.size > 100
    assert thin.max() < 5.0 * np.median(thin)
    assert found.evaluation["env_steps"].size > 50
    assert found.evaluation["env_steps"][-1] == 200_000
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_what_is_removed_is_counted(path: Path, small: int) -> None:
    before = metrics.THINNED_RECORDS._value.get()
    long_journal(path, 3_000)
    removed = metrics.THINNED_RECORDS._value.get() - before
    assert removed == 3_000 + 30 - len(steps_of(path))


def test_a_thinned_journal_resumes_and_is_thinned_again(path: Path, small: int) -> None:
    long_journal(path, 3_000)
    notices = list[str]()
    open_journal(path, resumed_at=20_000, notices=notices).write(record(20_001))
    assert notices == []
    assert steps_of(path)[-1] == 20_001
    assert max(steps_of(path)[:-1]) <= 20_000


def test_a_journal_of_evaluations_alone_is_bounded(path: Path, small: int) -> None:
    sink = open_journal(path)
    sink.write(Record("final_evaluation", 1, {"return_mean": 0.0}))
    for step in range(2_000):
        sink.write(record(step + 1))
    assert path.stat().st_size <= small
    assert load_metrics(path.parent).final_evaluation["env_steps"].tolist() == [1]
    assert load_metrics(path.parent).evaluation["env_steps"][[0, -1]].tolist() == [1, 2_000]


def test_records_of_one_step_are_bounded_too(path: Path, small: int) -> None:
    sink = open_journal(path)
    for _ in range(2_000):
        sink.write(record(7))
    assert path.stat().st_size <= small


def test_damaged_lines_stay_where_they_are_when_a_journal_is_thinned(path: Path, small: int) -> None:
    long_journal(path, 100)
    path.write_bytes(b"no record\n" + path.read_bytes())
    assert thinned(path.read_bytes().splitlines(keepends=True), 2_000)[0] == b"no record\n"


def test_a_full_disk_delays_the_thinning_and_loses_no_record(
    path: Path, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_journal(path, 700)
    last = steps_of(path)[-1]
    with monkeypatch.context() as disk:

        def refuse(*arguments: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        disk.setattr(journal, "write_atomically", refuse)
        sink = Journal(path, writes=RetriedWrites(lambda reason: None, clock=lambda: 0.0), notice=print)
        sink.resume(10**9)
        for step in range(200):
            sink.write(record(last + step + 1))
            sink._writes._kinds[path.name].due_at = 0.0
    assert path.stat().st_size > small
    sink.write(record(last + 1_000))
    assert path.stat().st_size <= small
    assert steps_of(path)[-1] == last + 1_000


def test_records_that_a_disk_refuses_for_too_long_are_dropped_with_a_notice(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "MAX_WAITING", 3)
    hours, notices = itertools.count(0.0, 3_600.0), list[str]()
    sink = open_journal(path, notices=notices, writes=RetriedWrites(notices.append, clock=lambda: next(hours)))
    with monkeypatch.context() as disk:

        def refuse(*arguments: object, **options: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        disk.setattr(journal, "append", refuse)
        for env_steps in range(1, 6):
            sink.write(record(env_steps))
    assert not any("lacks" in notice for notice in notices)
    sink.write(record(6))
    assert steps_of(path) == [4, 5, 6]
    assert [notice for notice in notices if "lacks" in notice] == [
        f"{path} lacks 3 records of the time in which the disk accepted none"
    ]


def test_a_reader_sees_every_new_record_once_while_a_journal_is_thinned(path: Path, small: int) -> None:
    long_journal(path, 200)
    reader = RecordReader(path.parent)
    sink, seen = Journal(path, writes=RetriedWrites(print), notice=print), list[int]()
    sink.resume(10**9)
    for step in range(3_000):
        sink.write(record(10_000 + step))
        if step % 7 == 0:
            seen += [each["env_steps"] for each in reader.read()]
    seen += [each["env_steps"] for each in reader.read()]
    assert len(seen) == len(set(seen))
    assert set(seen) <= set(range(10_000, 13_000))
    # What was written and removed between two reads alone is missing.
    assert len(seen) > 2_900
