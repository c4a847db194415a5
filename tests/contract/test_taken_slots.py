"""After segments under any incarnation, the next actor of the slot has a larger one."""

import time
from pathlib import Path

import grpc
import pytest

from penstock.errors import PlaceLost
from penstock.rpc import methods
from penstock.rpc.clients.membership import Membership
from penstock.rpc.clients.replay_watch import ReplayWatch
from penstock.types.location import Place
from penstock.types.run import Assignment, largest_incarnation
from tests.support.machine.timing import PATIENCE_S
from tests.support.machine.wall_clock import HOUR_S
from tests.support.services.servers import LiveReplay, Loopback, open_request, plan_with, until, window_request


def assigned(member: Membership) -> Assignment:
    return until(lambda: member.assignment(0.1), "an assignment")


def take_slot(loopback: Loopback, server: LiveReplay, slot: int, incarnation: int) -> None:
    """Stores a window as a client without a place in the run."""
    stored = loopback.replay_status(server).counts.stored
    stranger = loopback.plain(server, methods.APPEND_SEGMENTS)
    stranger.send(open_request(slot, incarnation=incarnation), window_request(1, slot=slot, incarnation=incarnation))
    until(lambda: loopback.replay_status(server).counts.stored == stored + 2, "the stranger's window")
    stranger.close()


@pytest.mark.parametrize("incarnation", [2**32 - 1, 3 * 10**9])
def test_an_impossible_incarnation_is_refused(loopback: Loopback, incarnation: int) -> None:
    server = loopback.replay()
    loopback.source(server, plan_with())
    stranger = loopback.plain(server, methods.APPEND_SEGMENTS)
    stranger.send(open_request(incarnation=incarnation), window_request(1, incarnation=incarnation))
    code, details = stranger.status()
    assert (code, f"announced incarnation {incarnation}" in details) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    take_slot(loopback, server, 0, 1)


@pytest.mark.parametrize("hours", [0, 5, -5])
def test_an_actor_whose_slot_was_taken_receives_it_above_the_intruders_incarnation_whatever_the_clocks(
    loopback: Loopback, tmp_path: Path, hours: int
) -> None:
    store = loopback.replay(clock_ahead_s=hours * HOUR_S)
    run = loopback.run(tmp_path / "roster.json", rejoin_timeout_s=0.0)
    loopback.source(store, plan_with())
    loopback._client(ReplayWatch(run.thread, [store.address], run.places, lambda: None))
    until(lambda: run.places.of_slot(0) != Place(), "the service's word")
    member = loopback.membership(run)
    place = assigned(member)
    stranger = largest_incarnation(time.time() + hours * HOUR_S) - 1_000
    take_slot(loopback, store, place.slot, stranger)
    sink = loopback.sink(place.slot, store, incarnation=place.incarnation)
    with pytest.raises(PlaceLost) as lost:
        sink.next_grant(PATIENCE_S)
    assert lost.value.taken_by == stranger
    member.join_again(lost.value.taken_by)
    again = assigned(member)
    # While its former stream ends, its former slot may still be in use; the next actor gets it then.
    places = [again, assigned(loopback.membership(run))]
    (same,) = [each for each in places if each.slot == place.slot]
    assert same.incarnation == stranger + 1
    welcome = loopback.sink(same.slot, store, incarnation=same.incarnation)
    assert until(lambda: welcome.next_grant(0.5), "a grant in the slot") is not None
