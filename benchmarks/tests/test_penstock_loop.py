"""Runs of `penstock train` as the benchmarks observe them."""

import subprocess

import pytest
from prometheus_client import generate_latest

from benchmarks.penstock_loop import Pace, _pace, _Reading, exchange_of
from benchmarks.side_by_side import Course, penstock
from penstock.telemetry import metrics


def test_a_run_that_fails_shows_its_last_output(capfd: pytest.CaptureFixture[str]) -> None:
    course = Course("Missing-v0", "none", threshold=1.0, interval_steps=100, total_steps=100)
    with pytest.raises(subprocess.CalledProcessError):
        penstock(course, 0, {"env-id": course.env_id})
    assert "can't make the environment 'Missing-v0'" in capfd.readouterr().err


def test_the_cpu_time_of_the_exchange_is_read_from_a_services_metrics() -> None:
    with metrics.exchange_cpu_time("publishing"):
        sum(range(200_000))
    found = exchange_of(generate_latest().decode())
    assert found["publishing"] > 0.0
    with pytest.raises(ValueError, match="penstock_exchange_cpu_seconds_total"):
        exchange_of("penstock_replay_segments 3.0")


def test_the_share_of_the_path_counts_main_threads_and_the_launcher() -> None:
    def reading(seconds: float) -> _Reading:
        cpu_s = {
            "actor": 3 * seconds,
            "learner": 4 * seconds,
            "replay": seconds,
            "evaluator": 0.0,
            "launcher": 2 * seconds,
        }
        # An activity may be counted for the first time after the first reading.
        path_s = {"threads": seconds, "replay": seconds} | ({"sending": 3.0} if seconds > 4.0 else {})
        return _Reading(seconds, int(1e6 * seconds), cpu_s, path_s)

    # The first quarter and the last reading are left out.
    pace = _pace([reading(seconds) for seconds in (1.0, 2.0, 4.0, 8.0, 12.0, 14.0, 16.0, 20.0)])
    assert pace == Pace(
        1e6,
        {"actor": 3.0, "learner": 4.0, "replay": 1.0, "evaluator": 0.0, "launcher": 2.0},
        {"threads": 1.0, "replay": 1.0, "sending": 0.25},
        (12.0 + 12.0 + 3.0) / 120.0,
    )
