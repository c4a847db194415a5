import math

import pytest

from benchmarks.peers.loop_run import Course


def test_the_start_of_a_peers_processes_is_not_counted() -> None:
    # The processes take 40 s until their first report, after 2,000 steps; then they report 1,000 steps per second.
    course = Course(threshold=475.0)
    for seconds, env_steps, mean_return in ((140.0, 2_000, math.nan), (142.0, 4_000, 300.0), (146.0, 8_000, 480.0)):
        course.add(seconds, env_steps, mean_return)
    # No episode ended in the last second.
    course.add(147.0, 9_000, math.nan)
    outcome = course.outcome("training episodes", "")
    assert outcome.env_steps_per_s == pytest.approx(1_000.0)
    assert outcome.learn_wall_s_to_threshold == pytest.approx(8.0)
    assert (outcome.env_steps_to_threshold, outcome.final_return) == (8_000, 480.0)


def test_a_peer_that_does_not_reach_the_threshold_has_no_time_to_it() -> None:
    course = Course(threshold=475.0)
    course.add(0.0, 0)
    course.add(1.0, 500, 474.9)
    # Reported again without a new step.
    course.add(9.0, 500, 500.0)
    outcome = course.outcome("", "")
    assert (outcome.learn_wall_s_to_threshold, outcome.env_steps_to_threshold) == (None, None)
    assert outcome.env_steps_per_s == pytest.approx(500.0)
