"""Tests windows from the first offer until they are stored."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import InvalidSegment, Overloaded, PlaceLost, SchemaMismatch, Unavailable
from penstock.replay.admission import ActorKey
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.intake import Intake
from penstock.replay.store.layout import State
from penstock.types.block import Fragment, Schema
from penstock.types.replay import StoreCounts, Window, WindowHead
from penstock.types.run import LARGEST_VERSION_JUMP
from tests.support.segments.direct_buffer import (
    Actor,
    append,
    commit,
    fragments_of,
    gather,
    intake_of,
    make_buffer,
    make_open_buffer,
    read_rows,
    take,
    train,
)
from tests.support.segments.segments import PLAN, SCHEMA, assert_same_columns, make_columns, make_window

FRESH_ONLY = replace(PLAN, batch_segments=2)


def knows_version(buffer: ReplayBuffer, head: WindowHead) -> bool:
    return intake_of(buffer, head).knows_version(head)


def test_a_resent_window_is_stored_once() -> None:
    buffer = make_buffer()
    actor = Actor(buffer)
    actor.send()
    actor.send()
    before = buffer.counts()
    assert append(buffer, make_window(1), 0.0) == 4
    assert append(buffer, make_window(3), 0.0) == 4
    assert buffer.counts() == before


def test_the_missing_segments_of_a_partly_stored_window_are_stored() -> None:
    buffer = make_buffer(replace(FRESH_ONLY, off_policy_degree=2))
    actor = Actor(buffer)
    actor.send()
    buffer.intakes.issue_grants(0.0)
    assert append(buffer, make_window(2), 0.0) == 3
    assert buffer.counts().inserted == 3
    buffer.intakes.issue_grants(0.0)
    assert append(buffer, make_window(3), 0.0) == 4
    commit(buffer, take(buffer, 0))
    assert_same_columns(take(buffer, 1).columns, make_columns([(0, 1, 3), (0, 1, 4)]))


def test_a_gap_in_the_sequence_is_refused_with_the_expected_number() -> None:
    buffer = make_buffer()
    Actor(buffer).send()
    buffer.intakes.issue_grants(0.0)
    with pytest.raises(InvalidSegment, match="sequence 4 after 2: 3 was expected"):
        append(buffer, make_window(4), 0.0)
    assert buffer.counts().inserted == 2


def test_a_window_without_a_grant_can_be_offered_again() -> None:
    buffer = make_buffer()
    actor = Actor(buffer)
    assert append(buffer, actor.next_window(0), 0.0) is None
    assert buffer.counts().inserted == 0
    actor.send()


def test_a_returning_actor_gets_its_last_stored_sequence() -> None:
    buffer = make_buffer()
    actor = Actor(buffer)
    actor.send()
    actor.intake.close()
    assert buffer.counts().granted == 0
    assert Actor(buffer).sent == 2


def test_an_actor_whose_slot_was_taken_is_refused() -> None:
    buffer = make_buffer()
    actor = Actor(buffer)
    Actor(buffer, incarnation=2).send()
    with pytest.raises(PlaceLost, match="join again"):
        append(buffer, actor.next_window(0), 0.0)
    with pytest.raises(PlaceLost, match="join again"):
        Actor(buffer)


@pytest.mark.parametrize(
    ("segments", "reason"), [(0, "must have segments"), (41, "1 to 40 segments, slot 0 announced 41")]
)
def test_a_window_of_invalid_size_is_refused(segments: int, reason: str) -> None:
    with pytest.raises(InvalidSegment, match=reason):
        Actor(make_buffer(plan=None), segments=segments)


def test_another_schema_is_refused() -> None:
    buffer = make_buffer()
    Actor(buffer)
    with pytest.raises(SchemaMismatch, match="start a new run"):
        buffer.intakes.open(ActorKey(1, 1), Schema(2, SCHEMA.columns), 2, 0.0)


def test_a_refused_window_changes_nothing() -> None:
    # Late windows stop counting as outstanding, so the ring wraps around to a leased row next to a seen row.
    buffer = make_buffer(rows=9)
    actor = Actor(buffer)
    train(buffer, actor, range(3))
    actor.send(version=3)
    take(buffer, 3)
    for _ in range(3):
        actor.send(version=0)
        assert buffer.leases.draw(4) is None
    buffer.intakes.issue_grants(0.0)
    for _ in range(2):
        with pytest.raises(Overloaded, match="9 rows"):
            append(buffer, actor.next_window(0), 0.0)
        assert buffer.counts() == StoreCounts(capacity=9, stored=9, leased=2, inserted=14, late=6)
        buffer.intakes.issue_grants(0.0)


@pytest.mark.parametrize("committed", [0, 3])
def test_a_window_of_an_unpublished_version_is_refused(committed: int) -> None:
    buffer = make_buffer()
    actor = Actor(buffer)
    train(buffer, actor, range(committed))
    actor.send(version=committed)
    buffer.intakes.issue_grants(0.0)
    for version in (committed + 1, committed + 990, 10**15):
        with pytest.raises(InvalidSegment, match=f"sent version {version}, and {committed} is the newest"):
            append(buffer, actor.next_window(version), 0.0)
    # The learner publishes a version before it commits the batch.
    take(buffer, committed)
    actor.send(version=committed + 1)


def test_leases_plans_and_skipped_batches_make_versions_known() -> None:
    buffer = make_buffer(replace(PLAN, next_batch=20))

    def newest() -> int:
        known = [knows_version(buffer, make_window(version=version).head) for version in range(100)]
        assert known == sorted(known, reverse=True)
        return known.count(True) - 1

    actor = Actor(buffer)
    assert newest() == 20
    actor.send(version=20)
    take(buffer, 20)
    assert newest() == 21
    # A learner with several shards continues without this one, and can reopen its stream in the meantime.
    buffer.leases.commit(PLAN.session, 24, np.zeros(0, np.uint64), np.zeros(0))
    assert newest() == 25
    buffer.adopt_plan(replace(PLAN, next_batch=30))
    assert newest() == 30
    buffer.adopt_plan(replace(PLAN, session=9, next_batch=50))
    assert newest() == 50
    furthest = 50 + LARGEST_VERSION_JUMP + 1_000
    assert not knows_version(buffer, make_window(version=furthest).head)
    with pytest.raises(InvalidSegment, match=f"sent version {furthest + 1}, and 50 is the newest"):
        knows_version(buffer, make_window(version=furthest + 1).head)


def test_known_versions_survive_a_restart(tmp_path: Path) -> None:
    buffer = make_buffer(folder=tmp_path)
    Actor(buffer).send(version=0)
    take(buffer, 0)
    again = make_buffer(None, folder=tmp_path)
    assert [knows_version(again, make_window(version=version).head) for version in (1, 2)] == [True, False]


def reserve(buffer: ReplayBuffer, window: Window) -> Intake:
    intake = intake_of(buffer, window.head)
    assert intake.reserve(window.head, 0.0)
    assert intake.keys.size
    return intake


def fragments(window: Window, size: int) -> Iterator[Fragment]:
    for whole in fragments_of(window.columns):
        for start in range(0, whole.data.size, size):
            yield Fragment(whole.column, start, whole.data[start : start + size])


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
@pytest.mark.parametrize("before", [0, 3])
def test_a_window_received_in_fragments_is_stored_across_the_end_of_the_ring(size: int, before: int) -> None:
    buffer = make_open_buffer(rows=14, segments=4)
    for number in range(before):
        assert append(buffer, make_window(4 * number + 1, segments=4, version=number), 0.0) == 4 * number + 4
        lease = buffer.leases.draw(number)
        assert lease is not None
        buffer.leases.commit(PLAN.session, number, lease.keys, np.ones(4))
        buffer.intakes.issue_grants(0.0)
    window = make_window(4 * before + 1, segments=4, version=before)
    reserved = reserve(buffer, window)
    for fragment in fragments(window, size):
        reserved.put(fragment)
    assert reserved.seal(0.0) == window.head.last_sequence
    lease = buffer.leases.draw(before)
    assert lease is not None
    assert_same_columns(gather(buffer, lease).columns, window.columns)


def test_stored_segments_of_a_window_are_skipped() -> None:
    buffer = make_open_buffer(segments=2)
    assert append(buffer, make_window(1), 0.0) == 2
    window = make_window(2, segments=2)
    reserved = reserve(buffer, window)
    keys = reserved.keys
    assert (reserved._first, keys.tolist()) == (1, [3])
    for fragment in fragments(window, 5):
        reserved.put(fragment)
    assert reserved.seal(0.0) == 3
    assert buffer.counts().unseen == 3
    store = buffer.store
    came = SCHEMA.empty(1)
    read_rows(store, store.rows(keys), came)
    assert_same_columns(came, make_window(3, segments=1).columns)


def test_reserved_rows_are_not_reserved_again() -> None:
    buffer = make_open_buffer(segments=4)
    first = reserve(buffer, make_window(1, segments=4))
    store = buffer.store
    with pytest.raises(Overloaded, match="full of segments"):
        store.reserve(first.keys + np.uint64(store.capacity))


def test_reserved_rows_count_as_outstanding() -> None:
    buffer = make_open_buffer(segments=4)
    limit = 2 * 4
    reserved = reserve(buffer, make_window(1, segments=4))
    for _ in range(3):
        buffer.intakes.issue_grants(0.0)
        assert buffer.counts().granted == limit - 4
    reserved.release()
    buffer.intakes.issue_grants(0.0)
    assert buffer.counts().granted == limit


def test_a_released_window_leaves_empty_rows_and_unused_keys() -> None:
    buffer = make_open_buffer(segments=4)
    reserved = reserve(buffer, make_window(1, segments=4))
    keys = reserved.keys
    reserved.release()
    counts = buffer.counts()
    assert (counts.stored, counts.unseen, counts.inserted) == (0, 0, 0)
    buffer.intakes.issue_grants(0.0)
    again = reserve(buffer, make_window(1, segments=4))
    assert again.keys.min() > keys.max()


def test_a_window_on_two_streams_is_stored_by_one_of_them() -> None:
    buffer = make_open_buffer(segments=2)
    window = make_window(1)
    first, second = reserve(buffer, window), reserve(buffer, window)
    for reserved in (first, second):
        for fragment in fragments(window, 50):
            reserved.put(fragment)
    assert second.seal(0.0) == 2
    with pytest.raises(Unavailable, match="by another stream"):
        first.seal(0.0)
    assert buffer.counts().inserted == 2
    assert (buffer.store.headers["state"] != State.WRITING).all()


def test_a_window_with_bad_values_is_refused_and_its_rows_are_released() -> None:
    buffer = make_open_buffer(segments=2)
    window = make_window(1)
    window.columns.arrays[0][1, 0, 0] = np.nan
    with pytest.raises(InvalidSegment, match="observation has values that are not finite"):
        append(buffer, window, 0.0)
    assert (buffer.counts().stored, buffer.counts().refused) == (0, 2)
    assert (buffer.store.headers["state"] != State.WRITING).all()
    buffer.intakes.issue_grants(0.0)
    assert append(buffer, make_window(1), 0.0) == 2
    assert buffer.counts().refused == 2
