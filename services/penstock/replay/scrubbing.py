"""Background check for segments whose bytes have changed, round after round through a store in use.

Recovery and snapshots check every segment, but a disk or memory may lose data in between. The scrub checks the bytes
only of segments that may be replayed, because the others are trained within seconds. It checks the state of every row,
because a row with a damaged state would block the ring forever.

`run` does this in the background of an event loop. `step` may be called by any one thread.
"""

import asyncio
from collections.abc import Callable

import numpy as np

from penstock.replay.buffer import ReplayBuffer

STEP_BYTES = 8 * 2**20
_LEAST_PAUSE_S = 0.5
_LEAST_ROUND_S = 600.0
"""Shortest time of a round, so that a small store costs less than a large one."""


class Scrub:
    """Repeated rounds through one store."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        """Starts at the first row."""
        self._store, self._buffer, self._next_row = buffer.store, buffer, 0

    async def run(self, dropped: Callable[[int], None]) -> None:
        """Takes steps, a pause apart. `dropped` receives the number of damaged segments if there are any."""
        while True:
            await asyncio.sleep(self.pause_s)
            # On another thread, because pages that are no longer in memory are read from disk.
            damaged = await asyncio.to_thread(self.step)
            if damaged:
                dropped(damaged)

    @property
    def pause_s(self) -> float:
        """Seconds between two steps: a round takes ten minutes, or longer if that needs more than 16 MiB/s."""
        if self._store.schema is None:
            return _LEAST_PAUSE_S
        steps = self._store.capacity * self._store.schema.segment_bytes / STEP_BYTES
        return max(_LEAST_PAUSE_S, _LEAST_ROUND_S / max(steps, 1.0))

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
