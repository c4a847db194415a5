"""Windows and batches of a buffer in one call each, without the streams of the service."""

import itertools

import numpy as np
from numpy.typing import NDArray

from penstock.replay.admission import ActorKey
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.fresh_segments import Lease
from penstock.replay.intake import Intake
from penstock.replay.store.ring_store import RingStore
from penstock.types.block import Columns, Fragment
from penstock.types.payloads import columns_in, layout
from penstock.types.replay import Batch, Window, WindowHead


def intake_of(buffer: ReplayBuffer, head: WindowHead) -> Intake:
    """Returns a new intake of the actor that sent a window, which `open_actor` has connected."""
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


def gather(buffer: ReplayBuffer, lease: Lease, part: int = 0, parts: int = 1) -> Batch:
    """Copies one part of a lease. Segments that were overwritten meanwhile are drawn again."""
    schema = buffer.store.schema
    assert schema is not None
    for attempt in itertools.count():
        head = buffer.leases.head(lease, part, parts, attempt)
        offsets, size = layout(schema, head.keys.size)
        payload = np.empty(size, np.uint8)
        if buffer.leases.copy_bytes(head, offsets, 0, payload):
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
