"""Background check for segments whose bytes have changed, round after round through a store in use.

Recovery and snapshots check every segment, but a disk or memory may lose data in between. The scrub checks the bytes
only of segments that may be replayed, because the others are trained within seconds. It checks the state of every row,
because a row with a damaged state would block the ring forever.

`apps.replay` calls it, from any one thread.
"""

import numpy as np

from penstock.replay.buffer import ReplayBuffer
from penstock.replay.ring_store import RingStore

STEP_BYTES = 8 * 2**20


class Scrub:
    """Repeated rounds through one store."""

    def __init__(self, store: RingStore, buffer: ReplayBuffer) -> None:
        """Starts at the first row."""
        self._store, self._buffer, self._next_row = store, buffer, 0

    def step(self) -> int:
        """Checks the next 8 MiB or so without the buffer's lock. Returns the number of damaged segments it dropped."""
        if self._store.schema is None:
            return 0
        first = self._next_row if self._next_row < self._store.capacity else 0
        self._next_row = first + max(1, STEP_BYTES // self._store.schema.segment_bytes)
        looked_at = np.arange(first, min(self._next_row, self._store.capacity))
        dropped = self._buffer.drop_without_state(looked_at)
        keys = self._buffer.replayable(looked_at)
        rows = self._store.rows(keys)
        damaged = keys[self._store.checksums(rows) != self._store.headers["checksum"][rows]]
        # A segment that was overwritten meanwhile also looks damaged. It is gone, so `drop` ignores it.
        return dropped + (self._buffer.drop(damaged) if damaged.size else 0)
