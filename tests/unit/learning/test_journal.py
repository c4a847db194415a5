"""metrics.jsonl: no line is lost without a word, none is written by halves."""

import errno
import json
import os
from pathlib import Path

import pytest

from penstock.learning.journal import Journal
from penstock.learning.retried_writes import RetriedWrites
from penstock.types import EvaluationSummary


def evaluation(env_steps: int, mean: float = 1.0) -> EvaluationSummary:
    return EvaluationSummary(version=1, env_steps=env_steps, episodes=2, return_mean=mean, return_std=0.0)


def open_journal(path: Path, resumed_at: int = 10**9, told: list[str] | None = None) -> Journal:
    told = [] if told is None else told
    return Journal(path, resumed_at=resumed_at, writes=RetriedWrites(told.append), notice=told.append)


def steps_of(path: Path) -> list[int]:
    return [json.loads(line)["env_steps"] for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def test_records_of_a_future_that_was_lost_are_dropped(path: Path) -> None:
    journal, told = open_journal(path), list[str]()
    for env_steps in (10, 20, 30):
        journal.evaluation(evaluation(env_steps), 1.0, final=False)
    again = open_journal(path, resumed_at=20, told=told)
    again.evaluation(evaluation(25), 1.0, final=False)
    assert steps_of(path) == [10, 20, 25]
    assert told == []


@pytest.mark.parametrize("stray", [b'{"env_steps": 2', b"\xff\xfe", b"[1]", b'{"kind": "training"}'])
def test_lines_that_are_no_records_are_kept_aside_and_told(path: Path, stray: bytes) -> None:
    open_journal(path).evaluation(evaluation(10), 1.0, final=False)
    path.write_bytes(stray + b"\n" + path.read_bytes() + stray)
    told = list[str]()
    open_journal(path, told=told).evaluation(evaluation(20), 1.0, final=False)
    assert steps_of(path) == [10, 20]
    assert len(told) == 1
    assert "2 lines" in told[0] and "metrics.damaged" in told[0]
    assert path.with_name("metrics.damaged").read_bytes() == 2 * (stray + b"\n")


def test_a_line_of_which_the_disk_took_half_is_written_again_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[str]()
    writes = RetriedWrites(told.append)
    journal = Journal(path, resumed_at=10**9, writes=writes, notice=told.append)
    journal.evaluation(evaluation(10), 1.0, final=False)
    write = os.pwrite

    def half(descriptor: int, data: bytes, position: int) -> int:
        if len(data) > 20:
            return write(descriptor, bytes(data)[:20], position)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "pwrite", half)
        journal.evaluation(evaluation(20), 1.0, final=False)
    assert "metrics.jsonl" in told[0] and "No space left" in told[0]
    # What follows within the delay waits, in order, for the disk to be tried again.
    journal.evaluation(evaluation(30), 1.0, final=False)
    writes.finish("advice")
    assert steps_of(path) == [10, 20, 30]


def test_a_number_that_json_does_not_have_is_null(path: Path) -> None:
    open_journal(path).evaluation(evaluation(10, mean=float("inf")), 1.0, final=False)
    assert json.loads(path.read_text())["return_mean"] is None
