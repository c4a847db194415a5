"""Runs of `penstock train` that fail."""

import subprocess

import pytest

from benchmarks.side_by_side import Course, penstock


def test_a_run_that_fails_shows_its_last_output(capfd: pytest.CaptureFixture[str]) -> None:
    course = Course("Missing-v0", "none", threshold=1.0, interval_steps=100, total_steps=100)
    with pytest.raises(subprocess.CalledProcessError):
        penstock(course, 0, {"env-id": course.env_id})
    assert "can't make the environment 'Missing-v0'" in capfd.readouterr().err
