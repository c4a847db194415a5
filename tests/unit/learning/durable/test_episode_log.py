"""episodes.jsonl has each training episode once, and keeps the newest."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from penstock.learning.durable import episode_log
from penstock.learning.durable.episode_log import EpisodeLog
from penstock.learning.durable.records import Record
from penstock.learning.durable.retried_writes import RetriedWrites
from penstock.types.run import ActorReport, Episode
from penstock.types.statistics import Timing

RECORD = Record("training", 10, {})


def report(*returns: float, info: float = 1.0) -> ActorReport:
    episodes = tuple(Episode(each, 5, 3, truncated=True, info=(info,)) for each in returns)
    return ActorReport(5, 1.0, episodes, Timing(), info_metrics=("success",))


def opened(path: Path, resumed_at: int = 0) -> EpisodeLog:
    notices = list[str]()
    log = EpisodeLog(path, writes=RetriedWrites(notices.append), notice=notices.append)
    log.resume(resumed_at)
    return log


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "episodes.jsonl"


def test_a_line_has_the_episode_and_its_numbers(path: Path) -> None:
    log = opened(path)
    log.ended(report(2.5), 1, 40)
    log.ended(report(3.5, info=math.nan), 0, 50)
    log.ended(report(), 0, 60)
    log.write(RECORD)
    log.write(RECORD)
    first = {"env_steps": 40, "return": 2.5, "steps": 5, "truncated": True, "environment": 3, "variant": 1}
    assert lines(path) == [
        {**first, "info": {"success": 1.0}},
        {**first, "env_steps": 50, "return": 3.5, "variant": 0, "info": {"success": None}},
    ]


def test_a_resumed_run_drops_later_episodes_and_an_incomplete_line(path: Path) -> None:
    log = opened(path)
    for steps in (10, 20, 30):
        log.ended(report(float(steps)), 0, steps)
    log.write(RECORD)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"env_steps": 2')
    resumed = opened(path, 30)
    resumed.ended(report(31.0), 0, 31)
    resumed.write(RECORD)
    assert [each["return"] for each in lines(path)] == [10.0, 20.0, 30.0, 31.0]
    again = opened(path, 20)
    again.ended(report(21.0), 0, 21)
    again.write(RECORD)
    assert [each["return"] for each in lines(path)] == [10.0, 20.0, 21.0]


def test_a_file_above_its_bound_loses_its_older_half(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_log, "MOST_BYTES", 4096)
    log = opened(path)
    for number in range(200):
        log.ended(report(float(number)), 0, number)
        log.write(RECORD)
        assert path.stat().st_size <= 4096
    kept = [each["return"] for each in lines(path)]
    assert len(kept) > 10 and kept == [float(number) for number in range(200 - len(kept), 200)]
