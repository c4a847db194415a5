"""The pace of runs over long round trips, in simulated time, compared with the physical limit."""

import pytest

from tests.support.services.simulated_run import Distant, SimulatedRun, most_batches_per_s
from tests.support.tiers import gate_of

ROUND_TRIP_S = 0.1
ACTORS = 2
BATCHES = 120


@pytest.mark.parametrize("windows_per_actor", [1, 4])
@pytest.mark.parametrize("degree", [1, 2, 8])
@pytest.mark.parametrize("window_s", gate_of(1, [0.02, 0.005, 0.1, 1.0]))
def test_distant_actors_reach_the_pace_that_the_degree_and_the_round_trip_permit(
    window_s: float, degree: int, windows_per_actor: int
) -> None:
    actors = [Distant(window_s, ROUND_TRIP_S)] * ACTORS
    pace = SimulatedRun(actors, degree=degree, batch_s=0.01, windows_per_actor=windows_per_actor).run(BATCHES)
    limit = most_batches_per_s(
        degree=degree,
        windows_per_actor=windows_per_actor,
        window_s=window_s,
        batch_s=0.01,
        round_trip_s=ROUND_TRIP_S,
    )
    assert 0.95 * limit < pace.batches_per_s < 1.03 * limit
    assert pace.late < 0.05


def test_two_grants_of_each_actor_would_not_suffice() -> None:
    def pace(*, reports: bool) -> float:
        actors = [Distant(0.01, ROUND_TRIP_S, reports)] * ACTORS
        return SimulatedRun(actors, degree=8, batch_s=0.01, windows_per_actor=4).run(BATCHES).batches_per_s

    assert pace(reports=False) < 0.25 * pace(reports=True)


@pytest.mark.parametrize("degree", [1, 2, 8])
def test_near_actors_need_no_report(degree: int) -> None:
    actors = [Distant(0.01)] * ACTORS
    pace = SimulatedRun(actors, degree=degree, batch_s=0.01, windows_per_actor=4).run(BATCHES)
    limit = most_batches_per_s(degree=degree, windows_per_actor=4, window_s=0.01, batch_s=0.01, round_trip_s=0.0)
    assert pace.batches_per_s > 0.95 * limit


@pytest.mark.parametrize("degree", [1, 2, 4, 8])
def test_a_distant_learner_reaches_its_limit_with_all_batches_that_the_gate_can_fill_requested(degree: int) -> None:
    actors = [Distant(0.01)] * ACTORS
    prefetch = max(1, degree - 1)
    run = SimulatedRun(
        actors, degree=degree, batch_s=0.01, learner_round_trip_s=ROUND_TRIP_S, prefetch=prefetch, jitter=0.0
    )
    limit = most_batches_per_s(
        degree=degree, windows_per_actor=1, window_s=0.01, batch_s=0.01, round_trip_s=ROUND_TRIP_S
    )
    assert run.run(BATCHES).batches_per_s > 0.95 * limit
    more = SimulatedRun(
        actors, degree=degree, batch_s=0.01, learner_round_trip_s=ROUND_TRIP_S, prefetch=prefetch + 5, jitter=0.0
    )
    assert more.run(BATCHES).batches_per_s < 1.01 * limit


def test_a_distant_actor_takes_nothing_from_near_ones_while_training_is_slower_than_collection() -> None:
    near, far = Distant(0.01), Distant(0.01, ROUND_TRIP_S)
    pace = SimulatedRun([near, near, far, far], degree=4, batch_s=0.2).run(60)
    assert pace.batches_per_s > 0.95 / 0.2
    assert pace.late == 0.0
