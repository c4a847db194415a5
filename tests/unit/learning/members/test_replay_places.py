import asyncio

from penstock.learning.members.replay_places import ReplayPlaces
from penstock.types.location import Place
from penstock.types.run import largest_incarnation

CONFIGURED = ("a:1", "b:1")
PLACE = Place(("node1:7431", "10.0.0.1:7431"), 7)


def test_actors_are_spread_over_the_services_by_their_slots() -> None:
    places = ReplayPlaces(CONFIGURED)
    places.note(1, PLACE)
    assert [places.of_slot(slot) for slot in range(4)] == [Place(), PLACE, Place(), PLACE]


def test_the_configured_address_stands_in_until_the_service_has_answered() -> None:
    places = ReplayPlaces(CONFIGURED)
    assert places.addresses == [("a:1",), ("b:1",)]
    places.note(0, PLACE)
    assert places.addresses == [PLACE.addresses, ("b:1",)]
    assert [places.address(slot) for slot in range(3)] == ["node1:7431", "b:1", "node1:7431"]


def test_a_service_that_is_named_by_a_file_has_no_address_until_it_has_answered() -> None:
    places = ReplayPlaces(["file:replay.json"])
    assert (list(places.addresses), places.address(0)) == ([()], "")
    places.note(0, PLACE)
    assert places.address(0) == "node1:7431"


def test_a_service_that_only_its_own_host_can_reach_is_isolated() -> None:
    places = ReplayPlaces(CONFIGURED)
    assert places.isolated == ""
    places.note(0, Place(("127.0.0.1:1", "node1:1")))
    assert places.isolated == ""
    places.note(1, Place(("127.0.0.1:2", "unix:/run/replay.sock")))
    assert places.isolated == "127.0.0.1:2"


def test_only_a_change_is_reported() -> None:
    places = ReplayPlaces(CONFIGURED)
    assert places.note(0, PLACE)
    assert not places.note(0, PLACE)


def test_a_wait_ends_when_the_service_of_the_slot_moves_and_not_when_another_does() -> None:
    async def run() -> list[Place]:
        places = ReplayPlaces(CONFIGURED)
        waits = [asyncio.create_task(places.other_than(slot, Place())) for slot in range(2)]
        await asyncio.sleep(0)
        places.note(1, PLACE)
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        assert not waits[0].done()
        places.note(0, PLACE)
        return await asyncio.gather(*waits)

    assert asyncio.run(run()) == [PLACE, PLACE]


UNIX_S = 1_800_000_000.0
HOUR_S = 3600


def test_a_service_limits_incarnations_by_its_own_clock() -> None:
    places = ReplayPlaces(CONFIGURED, unix_s=lambda: UNIX_S)
    behind, ahead = (largest_incarnation(UNIX_S + hours * HOUR_S) for hours in (-5, 5))
    places.note_incarnations(0, behind, now=100.0)
    places.note_incarnations(1, ahead, now=100.0)
    assert [places.largest_incarnation(slot, now=100.0) for slot in range(3)] == [behind, ahead, behind]
    # The limit grows with the service's clock, so that no incarnation is the last one.
    assert places.largest_incarnation(0, now=107.5) == behind + 7


def test_without_a_services_word_the_limit_is_below_what_the_learners_clock_implies() -> None:
    places = ReplayPlaces(CONFIGURED, unix_s=lambda: UNIX_S)
    unknown = places.largest_incarnation(0, now=0.0)
    assert largest_incarnation(UNIX_S - 600.0) < unknown < largest_incarnation(UNIX_S)
    places.note_incarnations(0, 5, now=0.0)
    places.note_incarnations(0, 0, now=0.0)
    assert places.largest_incarnation(0, now=0.0) == unknown
