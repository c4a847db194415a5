import errno
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Overloaded, SchemaMismatch
from penstock.learning.durable.retried_writes import RetriedWrites
from penstock.learning.members.roster import Roster, spread_temperatures
from penstock.types.block import Schema
from penstock.types.run import Assignment
from penstock.types.spaces import BoxSpace, DiscreteSpace, EnvironmentSpec, Tree
from tests.support.segments.segments import SCHEMA

SPEC = EnvironmentSpec("Counting-v0", Tree.of(BoxSpace("float32", (1,), (0.0,), (1.0,))), Tree.of(DiscreteSpace(2)))
REJOIN_TIMEOUT_S = 10.0
UNIX_S = 2e9


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "roster.json"


def open_roster(
    path: Path,
    *,
    now: float = 0.0,
    max_actors: int = 8,
    seed: int = 5,
    variants: int = 1,
    temperatures: tuple[float, ...] = (1.0,),
    expected: bool = False,
    notices: list[str] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Roster:
    notices = [] if notices is None else notices
    return Roster(
        path,
        seed=seed,
        max_actors=max_actors,
        rejoin_timeout_s=REJOIN_TIMEOUT_S,
        now=now,
        writes=RetriedWrites(notices.append, clock),
        notice=notices.append,
        expected=expected,
        unix_s=lambda: UNIX_S,
        variants=variants,
        temperatures=temperatures,
    )


def join(roster: Roster, environments: int = 2, *, token: bytes = b"", now: float = 0.0) -> Assignment:
    """Admits an actor, as the learner does before it gives out an assignment."""
    place = roster.join(SCHEMA, SPEC, environments, token, now)
    roster.record()
    roster.confirm(place)
    return place


def test_actors_get_the_lowest_free_slots_and_environments(path: Path) -> None:
    roster = open_roster(path)
    first, second, third = (join(roster, environments) for environments in (2, 1, 3))
    assert [assignment.slot for assignment in (first, second, third)] == [0, 1, 2]
    assert [assignment.environments for assignment in (first, second, third)] == [(0, 1), (2,), (3, 4, 5)]
    assert [assignment.incarnation for assignment in (first, second, third)] == [1, 1, 1]
    assert len({assignment.token for assignment in (first, second, third)}) == 3
    assert first.seed == 5
    roster.leave(second, now=1.0)
    late = 1.0 + REJOIN_TIMEOUT_S + 0.1
    successor = join(roster, 3, now=late)
    assert (successor.slot, successor.environments, successor.incarnation) == (1, (2, 6, 7), 2)


def test_a_token_is_valid_until_the_timeout(path: Path) -> None:
    roster = open_roster(path)
    assignment = join(roster)
    roster.leave(assignment, now=100.0)
    assert join(roster, token=assignment.token, now=100.0 + REJOIN_TIMEOUT_S) == assignment
    roster.leave(assignment, now=200.0)
    restarted = join(roster, token=assignment.token, now=200.1 + REJOIN_TIMEOUT_S)
    assert (restarted.slot, restarted.environments) == (assignment.slot, assignment.environments)
    assert restarted.incarnation > assignment.incarnation
    assert restarted.token != assignment.token


def test_a_place_is_reserved_until_the_timeout(path: Path) -> None:
    roster = open_roster(path)
    assignment = join(roster)
    roster.leave(assignment, now=0.0)
    assert join(roster, now=REJOIN_TIMEOUT_S).slot == 1
    assert join(roster, now=REJOIN_TIMEOUT_S + 0.1).slot == 0


def test_a_connected_actor_keeps_its_place_indefinitely(path: Path) -> None:
    roster = open_roster(path)
    assignment = join(roster)
    assert join(roster, now=1e9).slot == 1
    assert join(roster, token=assignment.token, now=2e9) == assignment


def test_the_end_of_an_old_stream_does_not_disconnect_a_rejoined_actor(path: Path) -> None:
    roster = open_roster(path)
    assignment = join(roster)
    assert join(roster, token=assignment.token) == assignment
    roster.leave(assignment, now=1.0)
    assert roster.connected == 1
    assert join(roster, now=1e9).slot == 1
    roster.leave(assignment, now=1e9)
    assert roster.connected == 1
    assert join(roster, now=2e9).slot == 0


def test_an_unknown_token_joins_as_a_new_actor(path: Path) -> None:
    roster = open_roster(path)
    join(roster)
    assert join(roster, token=b"from another run").slot == 1


def test_a_token_with_another_number_of_environments_joins_as_a_new_actor(path: Path) -> None:
    roster = open_roster(path)
    assignment = join(roster, 2)
    roster.leave(assignment, now=0.0)
    other = join(roster, 3, token=assignment.token)
    assert other.slot != assignment.slot
    assert other.environments == (2, 3, 4)


def test_connected_counts_actors_with_an_open_stream(path: Path) -> None:
    roster = open_roster(path)
    assert roster.connected == 0
    first, _ = join(roster), join(roster)
    assert roster.connected == 2
    roster.leave(first, now=0.0)
    assert roster.connected == 1
    join(roster, token=first.token)
    assert roster.connected == 2


def test_more_actors_than_slots_are_refused_until_a_place_is_free(path: Path) -> None:
    roster = open_roster(path, max_actors=2)
    first, second = join(roster), join(roster)
    with pytest.raises(Overloaded, match=r"all 2 slots.*learner\.max_actors"):
        join(roster)
    roster.leave(first, now=0.0)
    with pytest.raises(Overloaded):
        join(roster, now=REJOIN_TIMEOUT_S)
    assert join(roster, token=second.token) == second
    assert join(roster, now=REJOIN_TIMEOUT_S + 0.1).slot == first.slot


@pytest.mark.parametrize(
    ("schema", "spec", "reason"),
    [
        (Schema(4, SCHEMA.columns), SPEC, "have 3 steps.*the actor's 4 steps"),
        (Schema(3, SCHEMA.columns[1:]), SPEC, f"{SCHEMA.hash:016x}"),
        (
            SCHEMA,
            replace(SPEC, action=Tree.of(DiscreteSpace(2, start=1))),
            r"trains Counting-v0 with action Discrete\(2, start=0\), and the actor offered .* Discrete\(2, start=1\);",
        ),
        (SCHEMA, replace(SPEC, mask_bits=2), "with no action masks, .* with action masks of 2 bits; start"),
        (SCHEMA, replace(SPEC, frames=4), "with 1 frames, .* with 4 frames; start"),
        (SCHEMA, replace(SPEC, id="Other-v0"), "offered Other-v0"),
    ],
)
def test_an_actor_of_another_run_is_refused_and_changes_nothing(
    path: Path, schema: Schema, spec: EnvironmentSpec, reason: str
) -> None:
    roster = open_roster(path)
    assignment = join(roster)
    with pytest.raises(SchemaMismatch, match=reason):
        roster.join(schema, spec, 2, b"", 0.0)
    with pytest.raises(SchemaMismatch, match=reason):
        roster.join(schema, spec, 2, assignment.token, 0.0)
    assert (roster.schema, roster.spec, roster.connected) == (SCHEMA, SPEC, 1)
    assert join(roster).slot == 1


def test_the_first_actor_sets_schema_and_spaces_unless_a_checkpoint_did(path: Path) -> None:
    roster = open_roster(path)
    assert (roster.schema, roster.spec) == (None, None)
    roster.spec = SPEC
    with pytest.raises(SchemaMismatch):
        roster.join(SCHEMA, replace(SPEC, id="Other-v0"), 2, b"", 0.0)
    join(roster)
    assert (roster.schema, roster.spec) == (SCHEMA, SPEC)


def test_a_restarted_learner_restores_the_places_of_its_actors(path: Path) -> None:
    roster = open_roster(path)
    before = [join(roster, environments) for environments in (2, 3)]
    restarted = open_roster(path, now=1000.0)
    assert restarted.connected == 0
    # No actor can rejoin without a learner, so the timeout begins with the learner.
    assert [
        join(restarted, len(assignment.environments), token=assignment.token, now=1000.0 + REJOIN_TIMEOUT_S)
        for assignment in before
    ] == before
    assert join(restarted, now=1000.0).slot == 2


def test_actors_that_do_not_rejoin_a_restarted_learner_free_their_places(path: Path) -> None:
    gone = join(open_roster(path))
    roster = open_roster(path, now=1000.0)
    assert join(roster, now=1000.0 + REJOIN_TIMEOUT_S).slot == 1
    successor = join(roster, token=gone.token, now=1000.1 + REJOIN_TIMEOUT_S)
    assert successor.slot == 0
    assert successor.incarnation > gone.incarnation


def test_an_assignment_is_on_disk_before_it_is_sent(path: Path) -> None:
    roster = open_roster(path)
    for _ in range(3):
        assignment = join(roster)
        stored = json.loads(path.read_text())["content"]
        assert [assignment.slot, assignment.incarnation] in stored["slots"]
        assert all([number, assignment.incarnation] in stored["environments"] for number in assignment.environments)
        assert bytes.fromhex(stored["members"][-1]["token"]) == assignment.token


def test_a_dismissed_roster_expects_no_actor_and_keeps_its_counters(path: Path) -> None:
    roster = open_roster(path)
    assignment = join(roster)
    roster.dismiss()
    roster.leave(assignment, now=0.0)
    restarted = open_roster(path)
    newcomer = join(restarted, token=assignment.token)
    assert (newcomer.slot, newcomer.incarnation) == (0, 2)
    assert newcomer.token != assignment.token


def copy_of(path: Path) -> Path:
    return path.with_name("roster.copy.json")


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"slots": [[0, 3]]}', '{"slots": [], "environments": [], "members": [{}]}', None],
)
def test_a_damaged_or_missing_roster_is_reported_and_its_copy_is_used(path: Path, content: str | None) -> None:
    place, notices = join(open_roster(path)), list[str]()
    path.unlink() if content is None else path.write_text(content)
    roster = open_roster(path, notices=notices)
    assert len(notices) == 1
    assert str(path) in notices[0]
    assert "its copy roster.copy.json is used" in notices[0]
    assert join(roster, token=place.token) == place
    assert join(roster).incarnation > place.incarnation


@pytest.mark.parametrize("content", ["", "{", None])
def test_without_roster_and_copy_no_incarnation_of_the_run_repeats(path: Path, content: str | None) -> None:
    place = join(open_roster(path))
    for file in (path, copy_of(path)):
        file.unlink() if content is None else file.write_text(content)
    notices = list[str]()
    # A run with a checkpoint must have had a roster.
    new = join(open_roster(path, notices=notices, expected=True), token=place.token)
    assert len(notices) == 1
    assert "incarnations continue from the clock" in notices[0]
    assert new.incarnation == UNIX_S + 1
    assert new.token != place.token


def test_a_new_run_reports_nothing(path: Path) -> None:
    notices = list[str]()
    assert join(open_roster(path, notices=notices)).incarnation == 1
    assert notices == []


def test_a_truncated_roster_is_never_read_as_a_different_one(path: Path) -> None:
    roster = open_roster(path)
    places = [join(roster, environments) for environments in (1, 2, 3)]
    whole = path.read_bytes()
    for end in range(0, len(whole), 7):
        path.write_bytes(whole[:end])
        notices = list[str]()
        restarted = open_roster(path, notices=notices)
        assert len(notices) == 1
        assert [join(restarted, len(place.environments), token=place.token) for place in places] == places


def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)


def test_actors_join_while_the_disk_is_full_and_no_incarnation_repeats_after_a_kill(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notices, streams = list[str](), set[tuple[int, int]]()
    roster = open_roster(path, notices=notices)
    join(roster)
    with monkeypatch.context() as disk:
        full_disk(disk)
        for _ in range(5):
            places = [join(roster) for _ in range(3)]
            streams |= {(number, place.incarnation) for place in places for number in place.environments}
            for place in places:
                roster.leave(place, now=-2 * REJOIN_TIMEOUT_S)
    assert len(notices) == 1
    assert "roster.json" in notices[0] and "No space left" in notices[0]
    # The learner is killed here.
    new = join(open_roster(path))
    assert not streams & {(number, new.incarnation) for number in new.environments}


def test_a_learner_started_on_a_full_disk_readmits_its_actors_and_refuses_others_with_the_reason(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = join(open_roster(path))
    with monkeypatch.context() as disk:
        full_disk(disk)
        roster = open_roster(path)
        assert join(roster, token=known.token) == known
        for _ in range(2):
            with pytest.raises(Overloaded, match=r"can't be recorded in .*roster\.json: .*free space"):
                join(roster)
        assert roster.connected == 1
    # Other actors are admitted once the disk is writable.
    assert join(open_roster(path)).incarnation > known.incarnation


def test_a_new_run_refuses_an_actor_that_it_cannot_record(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as disk:
        full_disk(disk)
        with pytest.raises(Overloaded, match="can't be recorded"):
            join(open_roster(path))


def test_a_roster_is_written_once_the_disk_recovers(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notices, now = list[str](), [0.0]
    roster = open_roster(path, notices=notices, clock=lambda: now[0])
    join(roster)
    with monkeypatch.context() as disk:
        full_disk(disk)
        unrecorded = join(roster)
    now[0] = 100.0
    recorded = join(roster)
    stored = json.loads(path.read_text())["content"]
    tokens = [bytes.fromhex(member["token"]) for member in stored["members"]]
    assert {unrecorded.token, recorded.token} <= set(tokens)
    assert notices[-1] == "roster.json can be written again"


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["join", "rejoin", "leave", "restart"]),
            st.integers(0, 9),
            st.integers(1, 3),
            st.floats(0, 15),
        ),
        max_size=30,
    )
)
def test_no_incarnation_or_random_stream_repeats_and_no_place_is_shared(
    steps: list[tuple[str, int, int, float]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("roster") / "roster.json"
    roster, now = open_roster(path, max_actors=100), 0.0
    connected: list[Assignment] = []
    known: list[Assignment] = []
    stays: set[tuple[int, int]] = set()
    streams: set[tuple[int, int]] = set()
    for action, choice, environments, pause in steps:
        now += pause
        if action == "leave" and connected:
            roster.leave(connected.pop(choice % len(connected)), now)
        elif action == "restart":
            roster, connected = open_roster(path, now=now, max_actors=100), []
        elif action in ("join", "rejoin"):
            away = [assignment for assignment in known if assignment not in connected]
            former = away[choice % len(away)] if action == "rejoin" and away else None
            count = len(former.environments) if former else environments
            assignment = join(roster, count, token=former.token if former else b"", now=now)
            if assignment != former:
                stay = (assignment.slot, assignment.incarnation)
                new_streams = {(number, assignment.incarnation) for number in assignment.environments}
                assert stay not in stays
                assert not new_streams & streams
                known.append(assignment)
                stays.add(stay)
                streams |= new_streams
            connected.append(assignment)
        slots = [assignment.slot for assignment in connected]
        numbers = [number for assignment in connected for number in assignment.environments]
        assert len(set(slots)) == len(slots)
        assert len(set(numbers)) == len(numbers)
        assert roster.connected == len(connected)


def test_the_first_streams_of_environments_do_not_depend_on_how_many_actors_share_them(tmp_path: Path) -> None:
    def streams(spread: tuple[int, ...]) -> set[tuple[int, int]]:
        roster = open_roster(tmp_path / f"{len(spread)}.json")
        assignments = [join(roster, count) for count in spread]
        return {(number, assignment.incarnation) for assignment in assignments for number in assignment.environments}

    assert streams((8,)) == streams((4, 4)) == streams((2, 2, 2, 2))


def test_without_variants_and_temperatures_all_actors_have_the_defaults(path: Path) -> None:
    roster = open_roster(path)
    assert {(place.variant, place.temperature) for place in [join(roster) for _ in range(4)]} == {(0, 1.0)}


def test_variants_and_temperatures_alternate_independently_by_slot(path: Path) -> None:
    roster = open_roster(path, variants=3, temperatures=(0.5, 2.0))
    places = [join(roster) for _ in range(7)]
    assert [place.variant for place in places] == [0, 1, 2, 0, 1, 2, 0]
    assert [place.temperature for place in places] == [0.5, 2.0, 0.5, 2.0, 0.5, 2.0, 0.5]


def test_a_slot_determines_variant_and_temperature(path: Path) -> None:
    roster = open_roster(path, variants=2, temperatures=(0.5, 1.0, 2.0))
    _, second, _ = (join(roster) for _ in range(3))
    roster.leave(second, now=0.0)
    successor = join(roster, now=REJOIN_TIMEOUT_S + 0.1)
    assert successor.token != second.token
    assert (successor.slot, successor.variant, successor.temperature) == (1, 1, 1.0)


def test_a_restarted_learner_restores_the_variants_and_temperatures_of_its_actors(path: Path) -> None:
    exploration: dict[str, Any] = {"variants": 2, "temperatures": spread_temperatures(0.3, 1.7, 3)}
    roster = open_roster(path, **exploration)
    before = [join(roster) for _ in range(3)]
    restarted = open_roster(path, **exploration)
    assert [join(restarted, token=place.token) for place in before] == before


@pytest.mark.parametrize("exploration", [{"variants": 2}, {"temperatures": (1.0, 2.0)}])
def test_an_actor_whose_variant_or_temperature_changed_joins_as_a_new_actor(
    path: Path, exploration: dict[str, Any]
) -> None:
    roster = open_roster(path)
    first, second = join(roster), join(roster)
    restarted = open_roster(path, **exploration)
    assert join(restarted, token=first.token) == first
    # In its former incarnation it would repeat sequence numbers, and its segments would be dropped as duplicates.
    new = join(restarted, token=second.token)
    assert new.slot == 1
    assert new.incarnation > second.incarnation
    assert (new.variant, new.temperature) != (second.variant, second.temperature)


def test_a_roster_of_a_release_without_variants_is_read(path: Path) -> None:
    place = join(open_roster(path))
    stored = json.loads(path.read_text())["content"]
    for member in stored["members"]:
        del member["variant"], member["temperature"]
    # Those releases wrote no digest either.
    path.write_text(json.dumps(stored))
    notices: list[str] = []
    assert join(open_roster(path, notices=notices), token=place.token) == place
    assert notices == []


def test_temperatures_are_spread_by_a_constant_ratio_from_the_lowest_to_the_highest() -> None:
    assert spread_temperatures(0.5, 2.0, 3) == pytest.approx((0.5, 1.0, 2.0))
    assert spread_temperatures(0.1, 0.1 * 3.0**4, 5) == pytest.approx((0.1, 0.3, 0.9, 2.7, 8.1))


@pytest.mark.parametrize("actors", [1, 2, 7])
def test_without_a_spread_every_temperature_is_exactly_1(actors: int) -> None:
    assert spread_temperatures(1.0, 1.0, actors) == (1.0,) * actors


LARGEST = 2**31
"""Largest incarnation that the replay service of these tests accepts."""


def test_a_taken_slot_is_assigned_with_a_later_incarnation(path: Path) -> None:
    roster = open_roster(path)
    roster.taken(0, 5, LARGEST)
    roster.taken(0, 3, LARGEST)
    roster.taken(1, LARGEST - 1, LARGEST)
    assert [join(roster).incarnation for _ in range(3)] == [6, LARGEST, 1]
    # A claimed incarnation is recorded as if it had been assigned.
    assert join(open_roster(path, now=100.0), now=200.0).incarnation > 6


@pytest.mark.parametrize(("slot", "incarnation"), [(0, 2**32 - 1), (0, LARGEST), (8, 5), (2**31, 5)])
def test_an_impossible_claim_consumes_no_incarnation(path: Path, slot: int, incarnation: int) -> None:
    roster = open_roster(path)
    before = join(roster)
    roster.taken(slot, incarnation, LARGEST)
    roster.leave(before, 0.0)
    assert join(roster, now=100.0).incarnation == 2
