"""Medians and ratios of runs to a threshold, and the score of random moves."""

import gymnasium
import pytest

from benchmarks.masked_tasks import random_score
from benchmarks.side_by_side import Run, median, ratio, ratios_of
from examples.colour_lines import ColourLines


def run(seconds: float | None, system: str = "penstock") -> Run:
    return Run(system, 0, None if seconds is None else int(100 * seconds), seconds, None, ((100, 1.0),), "")


def test_a_run_that_missed_the_threshold_counts_as_the_slowest() -> None:
    assert median([run(3.0), run(None), run(1.0)], "learn_wall_s_to_threshold") == 3.0
    assert median([run(3.0), run(None), run(None)], "learn_wall_s_to_threshold") is None


def test_a_ratio_is_that_of_the_medians() -> None:
    ours, theirs = [run(1.0), run(2.0), run(9.0)], [run(8.0), run(4.0), run(5.0)]
    assert ratio(ours, theirs, "learn_wall_s_to_threshold") == pytest.approx(0.4)
    assert ratio(ours, theirs, "env_steps_to_threshold") == pytest.approx(0.4)


def test_there_is_no_ratio_if_penstock_missed_the_threshold_and_it_is_0_if_only_the_peer_did() -> None:
    assert ratio([run(None)], [run(1.0)], "learn_wall_s_to_threshold") is None
    assert ratio([run(None)], [run(None)], "learn_wall_s_to_threshold") is None
    assert ratio([run(1.0)], [run(None)], "learn_wall_s_to_threshold") == 0.0


def test_random_moves_are_measured_with_their_standard_error() -> None:
    # On a small board with lines of three, moves often score.
    gymnasium.register(
        "SmallLines-v0", f"{ColourLines.__module__}:ColourLines", kwargs={"size": 5, "line": 3, "colours": 3}
    )
    measured = random_score("SmallLines-v0", 50)
    again = random_score("SmallLines-v0", 50)
    assert measured == again
    assert measured.mean > 4.0
    assert 0.0 < measured.standard_error < measured.mean
    assert 1.0 < measured.turns_per_scoring_move < 50.0
    assert 0.0 <= measured.share_without_score < 1.0


def test_every_peer_has_its_ratios() -> None:
    runs = [run(1.0), run(4.0, "maskable_moves"), run(None, "maskable_linear")]
    assert ratios_of(runs) == {
        "wall time over maskable_linear": 0.0,
        "steps over maskable_linear": 0.0,
        "wall time over maskable_moves": 0.25,
        "steps over maskable_moves": 0.25,
    }
