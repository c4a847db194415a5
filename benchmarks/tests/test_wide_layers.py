"""The ratios of `make bench-wide-layers`."""

from benchmarks.like_for_like import Pace
from benchmarks.wide_layers import case_of, ratios_of


def test_penstock_is_compared_with_the_best_peer_in_each_number() -> None:
    cases = [
        case_of(64, "penstock", [Pace(100.0, 200.0, 3.0), Pace(300.0, 600.0, 5.0), Pace(200.0, 400.0, 4.0)]),
        case_of(64, "sb3", [Pace(50.0, 100.0, 8.0)]),
        case_of(64, "pufferlib", [Pace(40.0, 80.0, 6.0)]),
        case_of(128, "penstock", [Pace(1.0, 1.0, 1.0)]),
    ]
    pace, cost = ratios_of(cases, 64)
    assert (pace, round(cost, 3)) == (4.0, 0.667)


def test_no_goal_is_met_without_a_result_of_each_system() -> None:
    cases = [case_of(64, "penstock", [Pace(100.0, 200.0, 3.0)]), case_of(64, "sb3", [])]
    assert ratios_of(cases, 64) == (0.0, float("inf"))
