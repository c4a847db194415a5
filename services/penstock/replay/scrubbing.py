"""Looks for segments whose bytes are no longer those that were stored, slowly, going round the store while it serves.

Recovery checks all there is, and so does a snapshot; between them a disk or a memory may lose what it was given. Of the
bytes only those of segments that may be replayed are looked at: the others are gone from here within seconds. A row
whose state is damaged would block the ring for ever.

Called by `apps.replay`, from any one thread.
"""

import numpy as np

from penstock.replay.buffer import ReplayBuffer
from penstock.replay.ring_store import RingStore

STEP_BYTES = 8 * 2**20


class Scrub:
    """One round after another through a store."""

    def __init__(self, store: RingStore, buffer: ReplayBuffer) -> None:
        """Begins at the first row."""
        self._store, self._buffer, self._next_row = store, buffer, 0

    def step(self) -> int:
        """Checks the next 8 MiB or so, without the buffer's lock; how many damaged segments it dropped."""
        if self._store.schema is None:
            return 0
        first = self._next_row if self._next_row < self._store.capacity else 0
        self._next_row = first + max(1, STEP_BYTES // self._store.schema.segment_bytes)
        looked_at = np.arange(first, min(self._next_row, self._store.capacity))
        dropped = self._buffer.drop_without_state(looked_at)
        keys = self._buffer.replayable(looked_at)
        rows = self._store.rows(keys)
        damaged = keys[self._store.checksums(rows) != self._store.headers["checksum"][rows]]
        # One that was overwritten meanwhile looks damaged too, and is no longer there to be dropped.
        return dropped + (self._buffer.drop(damaged) if damaged.size else 0)
