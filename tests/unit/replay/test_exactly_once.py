"""Tests that each segment is stored once and trained fresh once, also after cut streams and kills."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import InvalidSegment, Overloaded, PlaceLost, SchemaMismatch, Unavailable
from penstock.replay.admission import ActorKey, Gate
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.intake import Intake
from penstock.replay.priority_index import PriorityIndex
from penstock.replay.segments import FreshSegments
from penstock.replay.store.layout import SEGMENTS_FILE, State
from penstock.replay.store.ring_store import RingStore
from penstock.types.block import Fragment
from penstock.types.replay import Batch, CommitOutcome, SamplingPlan, Window
from tests.support.segments.direct_buffer import append, fragments_of, gather, intake_of, read_rows
from tests.support.segments.segments import PLAN, SCHEMA, assert_same_columns, capacity_bytes, make_columns, make_window

WIDE = replace(PLAN, batch_segments=8, fresh_segments=4, off_policy_degree=2)
ANY = replace(PLAN, fresh_segments=0, batch_segments=4, min_replay_segments=1)


class Killed(BaseException):
    """Simulates a kill of the process. `except Exception` does not catch it."""


def open_buffer(
    folder: Path | None = None, plan: SamplingPlan | None = WIDE, *, rows: int = 40
) -> tuple[ReplayBuffer, RingStore]:
    store = RingStore(folder, capacity_bytes(rows))
    buffer = ReplayBuffer(store, Gate(10.0, max_actors=8))
    if plan is not None:
        buffer.adopt_plan(plan)
    return buffer, store


def connect(buffer: ReplayBuffer, slot: int = 0, *, segments: int = 4, incarnation: int = 1) -> int:
    """Connects an actor, issues all possible grants and returns the last sequence stored for the actor."""
    intake = buffer.intakes.open(ActorKey(slot, incarnation), SCHEMA, segments, 0.0)
    buffer.intakes.issue_grants(0.0)
    return intake.stored_sequence


def reserve(buffer: ReplayBuffer, window: Window) -> Intake:
    buffer.intakes.issue_grants(0.0)
    intake = intake_of(buffer, window.head)
    assert intake.reserve(window.head, 0.0)
    assert intake.keys.size
    return intake


def put(intake: Intake, window: Window, *, from_byte: int = 0, share: float = 1.0) -> None:
    """Puts the bytes of each column from `from_byte` up to a share of the column."""
    for fragment in fragments_of(window.columns):
        data = fragment.data
        intake.put(Fragment(fragment.column, from_byte, data[from_byte : int(share * data.size)]))


def send(buffer: ReplayBuffer, window: Window) -> int | None:
    buffer.intakes.issue_grants(0.0)
    return append(buffer, window, 0.0)


def take(buffer: ReplayBuffer, number: int) -> Batch:
    lease = buffer.leases.draw(number)
    assert lease is not None
    return gather(buffer, lease)


def commit(buffer: ReplayBuffer, batch: Batch, session: int = PLAN.session) -> CommitOutcome:
    return buffer.leases.commit(session, batch.number, batch.keys, np.ones(batch.keys.size))


def stored(store: RingStore) -> list[tuple[int, int, int]]:
    """Returns (slot, incarnation, sequence) of all segments, ordered by key."""
    rows = np.flatnonzero(store.headers["key"])
    rows = rows[np.argsort(store.headers["key"][rows])]
    headers = store.headers[rows]
    names = [(int(h["slot"]), int(h["incarnation"]), int(h["sequence"])) for h in headers]
    if names:
        into = SCHEMA.empty(rows.size)
        read_rows(store, rows, into)
        assert_same_columns(into, make_columns(names))
    return names


def sequences(first: int, last: int, slot: int = 0, incarnation: int = 1) -> list[tuple[int, int, int]]:
    return [(slot, incarnation, sequence) for sequence in range(first, last + 1)]


# Kills during a commit


@pytest.mark.parametrize(
    "before", [(PriorityIndex, "mark_seen"), (PriorityIndex, "note_largest"), (FreshSegments, "close")]
)
def test_a_commit_interrupted_by_a_kill_is_applied_when_repeated(
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


def test_the_next_batch_follows_a_commit_interrupted_by_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    # A learner first resends unanswered commits, but may have requested the next batch on an earlier stream.
    commit(again, batch)
    connect(again)
    send(again, make_window(5, segments=4, version=1))
    assert take(again, 1).keys[:4].tolist() == [5, 6, 7, 8]


def test_batches_without_fresh_segments_survive_a_restart(tmp_path: Path) -> None:
    buffer, _ = open_buffer(tmp_path, ANY)
    connect(buffer)
    send(buffer, make_window(1, segments=4))
    batches = [take(buffer, number) for number in range(3)]
    commit(buffer, batches[0])
    again, _ = open_buffer(tmp_path, ANY)
    assert commit(again, batches[1]) == CommitOutcome(updated=4, overwritten=0)
    # The third batch has arrived. The fourth was requested and has not arrived.
    assert take(again, 3).keys.size == 4
    assert commit(again, batches[2]).updated == 4


def test_a_batch_requested_when_the_service_died_is_drawn_again(tmp_path: Path) -> None:
    buffer, _ = open_buffer(tmp_path, ANY)
    connect(buffer)
    send(buffer, make_window(1, segments=4))
    take(buffer, 0), take(buffer, 1)
    again, _ = open_buffer(tmp_path, ANY)
    assert take(again, 1).keys.size == 4
    batch = take(again, 0)
    assert commit(again, batch).updated == 4


# Streams cut during a window


def test_a_window_cut_in_the_middle_stores_nothing_and_can_be_resent() -> None:
    buffer, store = open_buffer()
    connect(buffer)
    window = make_window(1, segments=4)
    cut = reserve(buffer, window)
    put(cut, window, share=0.5)
    assert stored(store) == []
    cut.release()
    assert buffer.counts().stored == buffer.counts().inserted == 0
    assert send(buffer, window) == 4
    # The rows of the cut window are skipped, because keys are never reused.
    assert store.headers["key"][5:9].tolist() == [5, 6, 7, 8]
    assert stored(store) == sequences(1, 4)
    assert take(buffer, 0).keys.tolist() == [5, 6, 7, 8]


def test_a_cut_window_removes_only_the_segments_in_its_rows() -> None:
    buffer, store = open_buffer(rows=20)
    connect(buffer)
    for number in range(5):
        send(buffer, make_window(1 + 4 * number, segments=4, version=number))
        commit(buffer, take(buffer, number))
    window = make_window(21, segments=4, version=5)
    cut = reserve(buffer, window)
    assert cut.keys.tolist() == [21, 22, 23, 24]
    put(cut, window, share=0.3)
    cut.release()
    assert stored(store) == sequences(5, 20)
    assert buffer.counts().stored == 16
    assert send(buffer, window) == 24
    assert stored(store) == sequences(9, 24)


def test_a_cut_window_no_longer_counts_as_outstanding() -> None:
    buffer, _ = open_buffer()
    connect(buffer)
    for _ in range(10):
        reserve(buffer, make_window(1, segments=4)).release()
    buffer.intakes.issue_grants(0.0)
    assert buffer.counts().granted == 8
    assert [send(buffer, make_window(first, segments=4)) for first in (1, 5, 9)] == [4, 8, 12]
    assert send(buffer, make_window(13, segments=4)) is None


def test_a_window_is_released_while_another_arrives() -> None:
    buffer, store = open_buffer()
    connect(buffer, 0)
    connect(buffer, 1)
    windows = [make_window(1, segments=4, slot=slot) for slot in range(2)]
    first, second = (reserve(buffer, window) for window in windows)
    put(second, windows[1])
    put(first, windows[0], share=0.9)
    first.release()
    assert second.seal(0.0) == 4
    assert stored(store) == sequences(1, 4, slot=1)
    assert send(buffer, windows[0]) == 4
    assert stored(store) == sequences(1, 4, slot=1) + sequences(1, 4)


def test_a_reserved_row_is_not_given_to_another_window() -> None:
    buffer, store = open_buffer(rows=20)
    connect(buffer, 0)
    connect(buffer, 1)
    slow = make_window(1, segments=4, slot=1)
    held = reserve(buffer, slow)
    for number in range(4):
        send(buffer, make_window(1 + 4 * number, segments=4, version=number))
        commit(buffer, take(buffer, number))
    late = make_window(17, segments=4, version=4)
    buffer.intakes.issue_grants(0.0)
    with pytest.raises(Overloaded, match="20 rows"):
        intake_of(buffer, late.head).reserve(late.head, 0.0)
    put(held, slow)
    assert held.seal(0.0) == 4
    assert stored(store) == sequences(1, 4, slot=1) + sequences(1, 16)


# Two streams


def test_a_window_sent_by_two_streams_is_stored_by_one() -> None:
    buffer, store = open_buffer()
    connect(buffer)
    window = make_window(1, segments=4)
    one, other = reserve(buffer, window), reserve(buffer, window)
    for reserved in (one, other):
        put(reserved, window)
    assert other.seal(0.0) == 4
    with pytest.raises(Unavailable, match="another stream"):
        one.seal(0.0)
    assert stored(store) == sequences(1, 4)
    counts = buffer.counts()
    assert (counts.stored, counts.inserted, counts.unseen) == (4, 4, 4)
    assert take(buffer, 0).keys.tolist() == [5, 6, 7, 8]


def test_a_window_of_an_earlier_incarnation_is_refused_and_its_rows_are_released() -> None:
    buffer, store = open_buffer(plan=replace(WIDE, off_policy_degree=4), rows=28)
    connect(buffer)
    window = make_window(1, segments=4)
    former = reserve(buffer, window)
    put(former, window)
    connect(buffer, incarnation=2)
    send(buffer, make_window(1, segments=4, incarnation=2))
    with pytest.raises(PlaceLost, match="join again"):
        former.seal(0.0)
    former.close()
    commit(buffer, take(buffer, 0))
    # The ring wraps around over the rows of the refused window.
    for number in range(1, 9):
        send(buffer, make_window(1 + 4 * number, segments=4, incarnation=2, version=number))
        commit(buffer, take(buffer, number))
    assert stored(store) == sequences(9, 36, incarnation=2)


def test_the_rows_of_a_window_with_bad_values_are_used_again() -> None:
    buffer, store = open_buffer(rows=20)
    connect(buffer)
    bad = make_window(1, segments=4)
    bad.columns.arrays[0][2, 1, 0] = np.nan
    with pytest.raises(InvalidSegment, match="not finite"):
        send(buffer, bad)
    for number in range(7):
        send(buffer, make_window(1 + 4 * number, segments=4, version=number))
        commit(buffer, take(buffer, number))
    assert stored(store) == sequences(9, 28)


# The end of the ring, and kills


@pytest.mark.parametrize("from_byte", [0, 1, 37])
def test_a_window_across_the_end_of_the_ring_is_stored_from_fragments_of_any_size(from_byte: int) -> None:
    buffer, store = open_buffer(rows=21)
    connect(buffer)
    for number in range(4):
        send(buffer, make_window(1 + 4 * number, segments=4, version=number))
        commit(buffer, take(buffer, number))
    for first in (17, 21):
        window = make_window(first, segments=4, version=4)
        reserved = reserve(buffer, window)
        put(reserved, window, from_byte=from_byte)
        for fragment in fragments_of(window.columns):
            reserved.put(Fragment(fragment.column, 0, fragment.data[:from_byte]))
        reserved.seal(0.0)
    assert np.flatnonzero(store.headers["key"] > 20).tolist() == [0, 1, 2, 3]
    assert stored(store) == sequences(4, 24)


@pytest.mark.parametrize("rows", [40, 21])
@pytest.mark.parametrize("whole", range(5))
def test_a_window_partly_stored_at_a_kill_is_completed_when_sent_again(tmp_path: Path, whole: int, rows: int) -> None:
    buffer, store = open_buffer(tmp_path, rows=rows)
    connect(buffer)
    for number in range(5):
        send(buffer, make_window(1 + 4 * number, segments=4, version=number))
        commit(buffer, take(buffer, number))
    window = make_window(21, segments=4, version=5)
    reserved = reserve(buffer, window)
    put(reserved, window)
    keys, watermark = reserved.keys, store._records.watermark(0)
    reserved.seal(0.0)
    # State after a kill: keys are written one by one, then the watermark.
    store.headers["key"][store.rows(keys[whole:])] = 0
    store._records.set_watermark(0, *watermark)

    again, recovered = open_buffer(tmp_path, rows=rows)
    assert recovered.recovery.damaged == 0
    assert connect(again) == 20 + whole
    assert send(again, window) == 24
    assert stored(recovered)[-8:] == sequences(17, 24)
    assert again.counts().unseen == 4
    assert take(again, 5).fresh_segments == 4


@pytest.mark.parametrize("name", ["_raise_watermark", "seal"])
def test_a_kill_before_the_end_of_a_window_loses_and_duplicates_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    buffer, _ = open_buffer(tmp_path)
    connect(buffer)
    send(buffer, make_window(1, segments=4))
    window = make_window(5, segments=4)
    reserved = reserve(buffer, window)
    put(reserved, window)

    def die(*arguments: object) -> None:
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(RingStore, name, die)
        reserved.seal(0.0)
    again, store = open_buffer(tmp_path)
    assert connect(again) == (8 if name == "_raise_watermark" else 4)
    assert send(again, window) == 8
    assert stored(store) == sequences(1, 8)


def test_a_learner_of_another_run_is_refused_and_changes_nothing() -> None:
    buffer, _ = open_buffer()
    connect(buffer)
    send(buffer, make_window(1, segments=4))
    buffer.leases.commit(WIDE.session, 0, take(buffer, 0).keys, np.ones(4))
    with pytest.raises(SchemaMismatch, match="trained up to version 1, and the learner begins at 0"):
        buffer.adopt_plan(replace(WIDE, session=9, next_batch=0))
    assert (buffer.session, buffer.version) == (WIDE.session, 1)
    # A learner that continues the run begins at the stored version or later.
    buffer.adopt_plan(replace(WIDE, session=9, next_batch=1))
    assert buffer.session == 9


def test_a_learner_can_connect_again_after_a_kill_during_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dying:
        """Copy of the session record. A kill interrupts a write or follows it."""

        steps = 0

        def __init__(self, copy: memoryview) -> None:
            self._copy = copy

        def __setitem__(self, everything: slice, content: memoryview) -> None:
            for part in (slice(0, 30), everything):
                self._copy[part] = content[part]
                Dying.steps -= 1
                if Dying.steps == 0:
                    raise Killed

    successor = replace(WIDE, session=9, next_batch=2)
    for steps in range(1, 5):
        folder = tmp_path / str(steps)
        buffer, store = open_buffer(folder)
        connect(buffer)
        send(buffer, make_window(1, segments=4))
        take(buffer, 0)
        kept = store.session._kept
        monkeypatch.setattr(kept, "_in_file", [Dying(copy) for copy in kept._in_file])
        Dying.steps = steps
        with pytest.raises(Killed):
            buffer.adopt_plan(successor)
        # The new session is in force once the first copy is written.
        left = RingStore(folder, (folder / SEGMENTS_FILE).stat().st_size)
        assert left.session.session == (WIDE.session if steps == 1 else 9)
        again, _ = open_buffer(folder, successor)
        assert (again.session, again.version) == (9, 2)
        assert take(again, 2).keys.tolist() == [1, 2, 3, 4]


def test_a_store_whose_creation_was_interrupted_never_assigns_key_zero(tmp_path: Path) -> None:
    RingStore(tmp_path, capacity_bytes(40))
    # State after a kill: the file is zeroed or partly written.
    for whole in (0, 1_000, 70_000):
        content = (tmp_path / "records.bin").read_bytes()
        (tmp_path / "records.bin").write_bytes(content[:whole].ljust(len(content), b"\0"))
        buffer, again = open_buffer(tmp_path)
        assert again.session.next_key == 1
        assert again.session.identity != 0
    buffer, _ = open_buffer(tmp_path)
    connect(buffer)
    send(buffer, make_window(1, segments=4))
    assert take(buffer, 0).keys.tolist() == [1, 2, 3, 4]
