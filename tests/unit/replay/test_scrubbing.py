"""Tests that scrubbing finds damage between recoveries and drops no intact segment."""

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from penstock.replay import scrubbing
from penstock.replay.admission import ActorKey, Gate
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.scrubbing import Scrub
from penstock.replay.store.ring_store import RingStore
from tests.support.segments.direct_buffer import append
from tests.support.segments.segments import PLAN, SCHEMA, capacity_bytes, make_window

ACTOR = ActorKey(0, 1)


def open_buffer(windows: int = 10, **plan: Any) -> tuple[RingStore, ReplayBuffer]:
    """Opens a store of 40 rows with windows of 4 segments. The default plan only replays."""
    store = RingStore(None, capacity_bytes(40))
    buffer = ReplayBuffer(store, Gate(1e9, max_actors=8))
    buffer.adopt_plan(replace(PLAN, **{"fresh_segments": 0, "batch_segments": 20, **plan}))
    buffer.intakes.open(ACTOR, SCHEMA, 4, 0.0)
    for window in range(windows):
        insert(buffer, window)
    return store, buffer


def insert(buffer: ReplayBuffer, window: int) -> None:
    buffer.intakes.issue_grants(0.0)
    assert append(buffer, make_window(1 + 4 * window, segments=4), 0.0) == 4 + 4 * window


def test_a_damaged_segment_is_dropped_and_never_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrubbing, "STEP_BYTES", 16 * SCHEMA.segment_bytes)
    store, buffer = open_buffer()
    row = int(store.rows(np.array([29], np.uint64))[0])
    store.columns[-1][row, 3] ^= 1
    scrub = Scrub(buffer)
    # A step scrubs 16 of the 40 rows. Key 29 is in the second step.
    assert [scrub.step() for _ in range(6)] == [0, 1, 0, 0, 0, 0]
    assert buffer.counts().stored == 39
    for number in range(20):
        lease = buffer.leases.draw(number)
        assert lease is not None and 29 not in lease.keys
        buffer.leases.commit(PLAN.session, number, lease.keys, np.ones(20))
    # The ring wraps around and uses the row again.
    for window in range(10, 20):
        insert(buffer, window)
    assert buffer.counts().stored == 40


def test_priorities_for_a_dropped_segment_are_ignored_and_counted() -> None:
    store, buffer = open_buffer()
    lease = buffer.leases.draw(0)
    assert lease is not None
    key = lease.keys[:1]
    store.columns[0][store.rows(key), 0] ^= 255
    assert Scrub(buffer).step() == 1
    outcome = buffer.leases.commit(PLAN.session, 0, lease.keys, np.ones(20))
    assert outcome.overwritten == buffer.leases.ignored_priorities > 0


def test_unseen_and_leased_segments_are_not_scrubbed() -> None:
    store, buffer = open_buffer(9, fresh_segments=4, batch_segments=4, off_policy_degree=8)
    lease = buffer.leases.draw(0)
    assert lease is not None
    store.columns[0][:, 0] ^= 255
    assert Scrub(buffer).step() == 0
    assert (buffer.counts().unseen, buffer.counts().leased) == (32, 4)


def test_an_empty_store_has_nothing_to_scrub() -> None:
    store = RingStore(None, capacity_bytes(40))
    assert Scrub(ReplayBuffer(store, Gate(1e9, max_actors=8))).step() == 0


def test_segments_overwritten_during_a_scrub_do_not_count_as_damaged() -> None:
    _, buffer = open_buffer()
    scrub, done, dropped = Scrub(buffer), threading.Event(), []

    def run() -> None:
        while not done.is_set():
            dropped.append(scrub.step())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        for window in range(10, 100_000):
            insert(buffer, window)
            if window >= 1_000 and len(dropped) > 20:
                break
    finally:
        done.set()
        thread.join()
    assert len(dropped) > 20
    assert sum(dropped) == 0
    assert buffer.counts().stored == 40
