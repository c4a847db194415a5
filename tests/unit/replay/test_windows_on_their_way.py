"""Windows between their first part and their last: reserved rows, and what happens to them."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from helpers.direct_buffer import append, fragments_of, gather, intake_of, read_rows
from helpers.segments import PLAN, SCHEMA, assert_same_columns, capacity_bytes, make_window
from penstock.errors import InvalidSegment, Overloaded, Unavailable
from penstock.replay.admission import ActorKey, Gate
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.intake import Intake
from penstock.replay.store.layout import State
from penstock.replay.store.ring_store import RingStore
from penstock.types.block import Fragment
from penstock.types.replay import Window


def make_buffer(rows: int = 12, segments: int = 4, **plan: int) -> ReplayBuffer:
    buffer = ReplayBuffer(RingStore(None, capacity_bytes(rows)), Gate(10.0, max_actors=8))
    buffer.adopt_plan(replace(PLAN, batch_segments=4, fresh_segments=4, **plan))
    buffer.open_actor(ActorKey(0, 1), SCHEMA, segments, 0.0)
    buffer.issue_grants(0.0)
    return buffer


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
def test_a_window_that_comes_in_pieces_is_stored_whole_also_round_the_end_of_the_ring(size: int, before: int) -> None:
    buffer = make_buffer(rows=14, segments=4)
    for number in range(before):
        assert append(buffer, make_window(4 * number + 1, segments=4, version=number), 0.0) == 4 * number + 4
        lease = buffer.leases.draw(number)
        assert lease is not None
        buffer.leases.commit(PLAN.session, number, lease.keys, np.ones(4))
        buffer.issue_grants(0.0)
    window = make_window(4 * before + 1, segments=4, version=before)
    reserved = reserve(buffer, window)
    for fragment in fragments(window, size):
        reserved.put(fragment)
    assert reserved.seal(0.0) == window.head.last_sequence
    lease = buffer.leases.draw(before)
    assert lease is not None
    assert_same_columns(gather(buffer, lease).columns, window.columns)


def test_what_is_stored_already_of_a_window_is_passed_over() -> None:
    buffer = make_buffer(segments=2)
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


def test_rows_that_a_window_is_on_its_way_into_are_not_given_to_another() -> None:
    buffer = make_buffer(segments=4)
    first = reserve(buffer, make_window(1, segments=4))
    store = buffer.store
    with pytest.raises(Overloaded, match="full of segments"):
        store.reserve(first.keys + np.uint64(store.capacity))


def test_a_window_on_its_way_counts_among_what_is_outstanding() -> None:
    buffer = make_buffer(segments=4)
    limit = 2 * 4
    reserved = reserve(buffer, make_window(1, segments=4))
    for _ in range(3):
        buffer.issue_grants(0.0)
        assert buffer.counts().granted == limit - 4
    reserved.release()
    buffer.issue_grants(0.0)
    assert buffer.counts().granted == limit


def test_a_window_that_is_given_up_leaves_empty_rows_and_its_keys_are_not_used_again() -> None:
    buffer = make_buffer(segments=4)
    reserved = reserve(buffer, make_window(1, segments=4))
    keys = reserved.keys
    reserved.release()
    counts = buffer.counts()
    assert (counts.stored, counts.unseen, counts.inserted) == (0, 0, 0)
    buffer.issue_grants(0.0)
    again = reserve(buffer, make_window(1, segments=4))
    assert again.keys.min() > keys.max()


def test_of_two_streams_that_bring_the_same_window_one_is_stored() -> None:
    buffer = make_buffer(segments=2)
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


def test_a_window_with_bad_values_is_refused_and_its_rows_are_given_up() -> None:
    buffer = make_buffer(segments=2)
    window = make_window(1)
    window.columns.arrays[0][1, 0, 0] = np.nan
    with pytest.raises(InvalidSegment, match="observation has values that are not finite"):
        append(buffer, window, 0.0)
    assert (buffer.counts().stored, buffer.counts().refused) == (0, 2)
    assert (buffer.store.headers["state"] != State.WRITING).all()
    buffer.issue_grants(0.0)
    assert append(buffer, make_window(1), 0.0) == 2
    assert buffer.counts().refused == 2


# Plans without fresh segments, and plans that change


def test_without_fresh_segments_what_is_stored_is_replayed_at_once_at_the_largest_priority() -> None:
    buffer = make_buffer(segments=2)
    buffer.adopt_plan(replace(PLAN, session=9, fresh_segments=0, batch_segments=6, min_replay_segments=2))
    assert buffer.leases.draw(0) is None
    assert buffer.training_waits_for() == "fresh segments"
    for sequence in (1, 3, 5, 7, 9, 11, 13):
        # The store has 12 rows, and nothing is ever committed: the gate stays open all the same.
        buffer.issue_grants(0.0)
        assert append(buffer, make_window(sequence), 0.0) == sequence + 1
    lease = buffer.leases.draw(0)
    assert lease is not None
    assert (lease.fresh_segments, lease.keys.size) == (0, 6)
    assert set(lease.keys.tolist()) <= set(range(3, 15))
    assert lease.priorities.tolist() == [1.0] * 6
    buffer.leases.commit(9, 0, lease.keys, np.full(6, 5.0))
    buffer.issue_grants(0.0)
    append(buffer, make_window(15), 0.0)
    assert buffer.store.headers["priority"][buffer.store.rows(np.array([15], np.uint64))].tolist() == [5.0]


def test_segments_that_wait_when_a_plan_without_fresh_ones_comes_are_replayed() -> None:
    buffer = make_buffer(segments=4)
    append(buffer, make_window(1, segments=4), 0.0)
    buffer.adjust_plan(replace(PLAN, fresh_segments=0, batch_segments=4))
    lease = buffer.leases.draw(0)
    assert lease is not None
    assert (buffer.counts().unseen, lease.fresh_segments, lease.keys.size) == (0, 0, 4)


def test_a_plan_that_is_adjusted_opens_the_gate_and_leaves_grants_and_leases_alone() -> None:
    buffer = make_buffer(rows=60, segments=2)
    for sequence in (1, 3, 5, 7):
        buffer.issue_grants(0.0)
        assert append(buffer, make_window(sequence), 0.0) == sequence + 1
    assert buffer.issue_grants(0.0) == []
    lease = buffer.leases.draw(0)
    buffer.adjust_plan(replace(PLAN, batch_segments=4, fresh_segments=4, off_policy_degree=2))
    granted = buffer.issue_grants(0.0)
    assert [grant.batch for _, grant in granted] == [2, 2]
    buffer.adjust_plan(replace(PLAN, batch_segments=4, fresh_segments=4, off_policy_degree=1))
    # Fewer would be given now; those that are out are good.
    assert buffer.counts().granted == 4
    assert append(buffer, make_window(9), 0.0) == 10
    assert lease is not None
    assert buffer.leases.draw(0) is lease
    assert buffer.leases.commit(PLAN.session, 0, lease.keys, np.ones(4)).updated == 4
