"""Short form of `make stress-attacks`: some attacks on a run, and the judgement of what they leave."""

import math
from dataclasses import replace

import pytest

from stress.attackers import CONTROL
from stress.attacks import Attacked, Measured, measure

pytestmark = pytest.mark.nightly

SOME = [CONTROL, "3.9 MB on streams", "actors that join and leave", "plans of other sessions"]


def test_a_run_outlives_attacks_and_attackers_make_requests() -> None:
    measured = measure("full pace", SOME, certified=True, highest=math.inf, span_s=1.0)
    assert measured.ended == []
    assert [each.attack for each in measured.attacks] == SOME
    assert measured.versions_per_s > 0.0
    control, *others = measured.attacks
    assert control.requests_per_s == 0.0
    for each in others:
        assert each.requests_per_s > 0.0 and each.health_answered, each


def attacked(attack: str, kept: float) -> Attacked:
    return Attacked(attack, 10.0, 20.0, 20.0 * kept, kept, True, (100.0, 200.0), (30, 40))


def test_an_attack_is_compared_with_clients_that_only_compute() -> None:
    attacks = [attacked(CONTROL, 0.5), attacked("fair", 0.45), attacked("slow", 0.39)]
    measured = Measured(False, "full pace", 20.0, attacks, [])
    assert measured.broken == ["slow: kept 39%"]
    deaf = replace(measured, attacks=[attacks[0], replace(attacks[1], health_answered=False)])
    assert deaf.broken == ["fair: no answer to a health check"]
    assert replace(measured, attacks=attacks[:2], ended=["replay ended"]).broken == ["replay ended"]
