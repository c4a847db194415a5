import pytest

from benchmarks.many_actors import rates_between
from penstock.types.status import ActorState


def test_rates_and_shares_follow_from_two_looks_at_the_actors() -> None:
    before = [ActorState("a", steps=100, segments=10), ActorState("b", steps=50, segments=5)]
    after = [
        ActorState("b", steps=150, segments=15),
        ActorState("a", steps=400, segments=40),
        ActorState("c", steps=200, segments=20),
    ]
    rates = rates_between(before, after, 10.0)
    assert (rates.steps_per_s, rates.segments_per_s) == (60.0, 6.0)
    # The actors have delivered 10, 30 and 20 segments.
    assert (rates.least_share, rates.largest_share) == (0.5, 1.5)
    assert rates.jain == pytest.approx(60.0**2 / (3 * (10.0**2 + 30.0**2 + 20.0**2)))
