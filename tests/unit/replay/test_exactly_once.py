"""Each segment is stored once and trained fresh once, wherever a stream is cut or the process killed."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers.segments import PLAN, SCHEMA, assert_same_columns, capacity_bytes, make_columns, make_window
from penstock.errors import InvalidSegment, Overloaded, SchemaMismatch, Unavailable
from penstock.replay.admission import ActorKey, Gate
from penstock.replay.buffer import ReplayBuffer, Reservation
from penstock.replay.fresh_segments import FreshSegments
from penstock.replay.priority_index import PriorityIndex
from penstock.replay.ring_store import RingStore, State
from penstock.types import Batch, CommitOutcome, Fragment, SamplingPlan, Window

WIDE = replace(PLAN, batch_segments=8, fresh_segments=4, off_policy_degree=2)
ANY = replace(PLAN, fresh_segments=0, batch_segments=4, min_replay_segments=1)


class Killed(BaseException):
    """Where the process was killed; no `except Exception` catches it."""


def open_buffer(
    folder: Path | None = None, plan: SamplingPlan | None = WIDE, *, rows: int = 40
) -> tuple[ReplayBuffer, RingStore]:
    store = RingStore(folder, capacity_bytes(rows))
    buffer = ReplayBuffer(store, Gate(10.0, max_actors=8))
    if plan is not None:
        buffer.adopt_plan(plan)
    return buffer, store


def connect(buffer: ReplayBuffer, slot: int = 0, *, segments: int = 4, incarnation: int = 1) -> int:
    """Connects an actor, and grants all there is room for; the last sequence stored for it."""
    watermark = buffer.open_actor(ActorKey(slot, incarnation), SCHEMA, segments, 0.0)
    buffer.issue_grants(0.0)
    return watermark


def reserve(buffer: ReplayBuffer, window: Window) -> Reservation:
    buffer.issue_grants(0.0)
    reserved = buffer.reserve(window.head, 0.0)
    assert isinstance(reserved, Reservation)
    return reserved


def put(buffer: ReplayBuffer, reserved: Reservation, window: Window, *, from_byte: int = 0, share: float = 1.0) -> None:
    """Puts each column's bytes from one on, up to a share of them."""
    for index, column in enumerate(window.columns.arrays):
        data = np.ascontiguousarray(column).reshape(-1).view(np.uint8)
        buffer.put(reserved, Fragment(index, from_byte, data[from_byte : int(share * data.size)]))


def send(buffer: ReplayBuffer, window: Window) -> int | None:
    buffer.issue_grants(0.0)
    return buffer.append(window, 0.0)


def take(buffer: ReplayBuffer, number: int) -> Batch:
    lease = buffer.lease(number)
    assert lease is not None
    return buffer.gather(lease, SCHEMA.empty(lease.keys.size))


def commit(buffer: ReplayBuffer, batch: Batch, session: int = PLAN.session) -> CommitOutcome:
    return buffer.commit(session, batch.number, batch.keys, np.ones(batch.keys.size), batch.number + 1)


def stored(store: RingStore) -> list[tuple[int, int, int]]:
    """(slot, incarnation, sequence) of all segments in the order of their keys."""
    rows = np.flatnonzero(store.headers["key"])
    rows = rows[np.argsort(store.headers["key"][rows])]
    headers = store.headers[rows]
    names = [(int(h["slot"]), int(h["incarnation"]), int(h["sequence"])) for h in headers]
    into = SCHEMA.empty(rows.size)
    store.gather(rows, into)
    assert_same_columns(into, make_columns(names))
    return names


def sequences(first: int, last: int, slot: int = 0, incarnation: int = 1) -> list[tuple[int, int, int]]:
    return [(slot, incarnation, sequence) for sequence in range(first, last + 1)]


# Killed in the middle of a commit


@pytest.mark.parametrize(
    "before", [(PriorityIndex, "mark_seen"), (PriorityIndex, "note_largest"), (FreshSegments, "close")]
)
def test_a_commit_in_which_the_service_was_killed_is_applied_when_it_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: tuple[type, str]
) -> None:
    buffer, _ = open_buffer(tmp_path)
    connect(buffer)
    send(buffer, make_window(1, segments=4))
    send(buffer, make_window(5, segments=4))
    batch, ahead = take(buffer, 0), take(buffer, 1)

    def die(*arguments: object) -> None:
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(*before, die)
        commit(buffer, batch)
    again, store = open_buffer(tmp_path)
    assert commit(again, batch) == CommitOutcome(updated=4, overwritten=0)
    assert commit(again, batch).repeated
    assert commit(again, ahead) == CommitOutcome(updated=4, overwritten=0)
    assert (store.headers["state"][store.headers["key"] != 0] == State.SEEN).all()
    counts = again.counts()
    assert (counts.unseen, counts.leased) == (0, 0)


def test_the_last_batch_that_was_killed_in_its_commit_is_followed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer, _ = open_buffer(tmp_path)
    connect(buffer)
    send(buffer, make_window(1, segments=4))
    batch = take(buffer, 0)

    def die(*arguments: object) -> None:
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(FreshSegments, "close", die)
        commit(buffer, batch)
    again, _ = open_buffer(tmp_path)
    # A learner sends what was not answered first, but may have asked for what follows on an earlier stream.
    commit(again, batch)
    connect(again)
    send(again, make_window(5, segments=4, version=1))
    assert take(again, 1).keys[:4].tolist() == [5, 6, 7, 8]


def test_batches_without_fresh_segments_outlive_the_service_too(tmp_path: Path) -> None:
    buffer, _ = open_buffer(tmp_path, ANY)
    connect(buffer)
    send(buffer, make_window(1, segments=4))
    batches = [take(buffer, number) for number in range(3)]
    commit(buffer, batches[0])
    again, _ = open_buffer(tmp_path, ANY)
    assert commit(again, batches[1]) == CommitOutcome(updated=4, overwritten=0)
    # The third has arrived, the fourth was asked for and had not.
    assert take(again, 3).keys.size == 4
    assert commit(again, batches[2]).updated == 4


def test_a_batch_that_was_asked_for_when_the_service_died_is_drawn_again(tmp_path: Path) -> None:
    buffer, _ = open_buffer(tmp_path, ANY)
    connect(buffer)
    send(buffer, make_window(1, segments=4))
    take(buffer, 0), take(buffer, 1)
    again, _ = open_buffer(tmp_path, ANY)
    assert take(again, 1).keys.size == 4
    batch = take(again, 0)
    assert commit(again, batch).updated == 4
