"""Windows and batches of a buffer in one call each, without the streams of the service."""

import itertools
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.replay.admission import ActorKey, Gate
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.intake import Intake
from penstock.replay.segments import Lease
from penstock.replay.store.ring_store import RingStore
from penstock.types.block import Columns, Fragment
from penstock.types.payloads import columns_in
from penstock.types.replay import Batch, CommitOutcome, SamplingPlan, Window, WindowHead
from tests.support.segments.segments import PLAN, SCHEMA, capacity_bytes, make_window


def intake_of(buffer: ReplayBuffer, head: WindowHead) -> Intake:
    """Returns a new intake of the actor that sent a window, which `Intakes.open` has connected."""
    return Intake(buffer._segments, buffer._lock, ActorKey(head.slot, head.incarnation))


def fragments_of(columns: Columns) -> list[Fragment]:
    """Returns one fragment per column."""
    contents = (np.ascontiguousarray(column).reshape(-1).view(np.uint8) for column in columns.arrays)
    return [Fragment(index, 0, content) for index, content in enumerate(contents)]


def append(buffer: ReplayBuffer, window: Window, now: float = 0.0) -> int | None:
    """Stores a whole window. Returns the last sequence stored for the actor; None if the actor has no grant."""
    intake = intake_of(buffer, window.head)
    if not intake.reserve(window.head, now):
        return None
    if intake.keys.size:
        for fragment in fragments_of(window.columns):
            intake.put(fragment)
    return intake.seal(now)


def gather(buffer: ReplayBuffer, lease: Lease) -> Batch:
    """Copies the batch of a lease. Segments that were overwritten meanwhile are drawn again."""
    schema = buffer.store.schema
    assert schema is not None
    for attempt in itertools.count():
        head = buffer.leases.head(lease, attempt)
        where = buffer.leases.places(head, ())
        payload = np.empty(where.total_bytes, np.uint8)
        if buffer.leases.copy_bytes(head, where, 0, payload):
            break
    return Batch(head, columns_in(schema, head.keys.size, payload))


def read_rows(store: RingStore, rows: NDArray[np.int64], into: Columns) -> None:
    """Copies the columns of these rows to columns for the same number of segments."""
    for region, column in zip(store.columns, into.arrays, strict=True):
        column.reshape(rows.size, -1).view(np.uint8)[...] = region[rows]


def write_rows(store: RingStore, keys: NDArray[np.uint64], window: Window, first: int) -> None:
    """Stores a window's segments from index `first` on under these consecutive keys."""
    store.reserve(keys)
    for fragment in fragments_of(window.columns):
        store.put(keys, first, fragment)
    store.seal(keys, store.inspect(keys, window.head, first), window.head)


def make_buffer(plan: SamplingPlan | None = PLAN, *, rows: int = 40, folder: Path | None = None) -> ReplayBuffer:
    """Returns a buffer over a new store, or the one in a folder."""
    buffer = ReplayBuffer(RingStore(folder, capacity_bytes(rows)), Gate(10.0, max_actors=8))
    if plan is not None:
        buffer.adopt_plan(plan)
    return buffer


def make_open_buffer(rows: int = 12, segments: int = 4) -> ReplayBuffer:
    """Returns a buffer with one actor, whose windows have this size, and its grants."""
    buffer = ReplayBuffer(RingStore(None, capacity_bytes(rows)), Gate(10.0, max_actors=8))
    buffer.adopt_plan(replace(PLAN, batch_segments=4, fresh_segments=4))
    buffer.intakes.open(ActorKey(0, 1), SCHEMA, segments, 0.0)
    buffer.intakes.issue_grants(0.0)
    return buffer


@dataclass
class Actor:
    """Sends windows in sequence. With one actor, sequences and keys are the same numbers."""

    buffer: ReplayBuffer
    slot: int = 0
    segments: int = 2
    incarnation: int = 1
    sent: int = 0

    def __post_init__(self) -> None:
        self.intake = self.buffer.intakes.open(self.key, SCHEMA, self.segments, 0.0)
        self.sent = self.intake.stored_sequence

    @property
    def key(self) -> ActorKey:
        return ActorKey(self.slot, self.incarnation)

    def next_window(self, version: int) -> Window:
        return make_window(
            self.sent + 1, segments=self.segments, slot=self.slot, incarnation=self.incarnation, version=version
        )

    def send(self, version: int = 0) -> None:
        self.buffer.intakes.issue_grants(0.0)
        assert append(self.buffer, self.next_window(version), 0.0) == self.sent + self.segments
        self.sent += self.segments


def take(buffer: ReplayBuffer, number: int) -> Batch:
    """Leases a batch, which must be ready, and copies it."""
    lease = buffer.leases.draw(number)
    assert lease is not None
    return gather(buffer, lease)


def commit(
    buffer: ReplayBuffer, batch: Batch, priorities: NDArray[np.float64] | float = 1.0, session: int = PLAN.session
) -> CommitOutcome:
    """Commits a batch with one priority per segment, or one for all."""
    values = np.broadcast_to(np.asarray(priorities, np.float64), batch.keys.shape).copy()
    return buffer.leases.commit(session, batch.number, batch.keys, values)


def train(
    buffer: ReplayBuffer, actor: Actor, batches: range, priority: float = 1.0, session: int = PLAN.session
) -> None:
    """Sends one window per batch, and trains the batch."""
    for number in batches:
        actor.send(version=number)
        commit(buffer, take(buffer, number), priority, session)
