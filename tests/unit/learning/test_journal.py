"""metrics.jsonl loses no line without a notice and contains no incomplete line."""

import errno
import json
import os
from pathlib import Path

import pytest

from penstock.learning.journal import Journal
from penstock.learning.records import Record, Records
from penstock.learning.retried_writes import RetriedWrites
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
    journal, notices = open_journal(path), list[str]()
    for env_steps in (10, 20, 30):
        journal.write(record(env_steps))
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
