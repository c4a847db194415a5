"""Priorities for batches in flight while the ring turns over, compared with a plain dict.

Four batches are in flight at any time. Between a draw and its commit, half of the ring is overwritten, so that each
commit names many segments that no longer exist. Shared by priority_updates.py and tests/test_priority_updates.py.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.replay.admission import ActorKey, Gate
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.store.layout import HEADER
from penstock.replay.store.ring_store import RingStore
from penstock.types.block import Column, Columns, Extent, Schema
from penstock.types.replay import SamplingPlan, Window, WindowHead
from tests.support.segments.direct_buffer import append, gather

SCHEMA = Schema(1, (Column("key", "int64", (), Extent.SEGMENT),))
"""The smallest segment, so that the load consists of priorities."""

IN_FLIGHT = 4


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run.

    Attributes:
        updates: Committed priorities.
        applied, ignored: Priorities of segments that were still stored, and the others, as the buffer counted them.
        inserted: Segments stored meanwhile.
        wrong: Segments whose priority differs from the oracle's, in all checks together.
        miscounted: Commits whose answer differs from the oracle's.
        root_error: Largest error of the sum tree's root, relative to the sum of the masses.
    """

    updates: int
    applied: int
    ignored: int
    inserted: int
    wrong: int
    miscounted: int
    root_error: float


class PriorityUpdates:
    """One buffer in anonymous memory, one actor, one learner."""

    def __init__(self, *, rows: int, batch: int, window: int, seed: int) -> None:
        self._rows, self._window = rows, window
        size = rows * (HEADER.itemsize + SCHEMA.segment_bytes) + 2 * 4096
        self._store = RingStore(None, size)
        self._store.adopt(SCHEMA)
        self._rows = self._store.capacity
        self._plan = SamplingPlan(
            session=7,
            next_batch=0,
            batch_segments=batch,
            fresh_segments=0,
            off_policy_degree=1,
            publish_interval=1,
            alpha=0.6,
            epsilon=1e-3,
            half_life=1e9,
            max_staleness=2**31,
            min_replay_segments=1,
            seed=seed,
        )
        self._buffer = ReplayBuffer(self._store, Gate(10.0, max_actors=1))
        self._buffer.adopt_plan(self._plan)
        self._actor = ActorKey(0, 1)
        self._buffer.intakes.open(self._actor, SCHEMA, window, 0.0)
        self._random = np.random.default_rng(seed)
        self._sent = 0
        self._oracle: dict[int, float] = {}
        self._applied = self._ignored = self._wrong = self._miscounted = 0
        self._root_error = 0.0

    def play(self, updates: int, progress: Callable[[int], None] = lambda done: None) -> Outcome:
        """Commits this number of priorities. Compares all segments with the oracle after each turnover of the ring."""
        while self._sent < self._rows:
            self._insert()
        in_flight: deque[NDArray[np.uint64]] = deque()
        number = done = 0
        next_check = 2 * self._rows
        while done < updates:
            while len(in_flight) < IN_FLIGHT:
                in_flight.append(self._draw(number))
                number += 1
            # Each batch is in flight for as many turns as there are batches, which overwrite half of the ring together.
            until = self._sent + self._rows // (2 * IN_FLIGHT)
            while self._sent < until:
                self._insert()
            keys = in_flight.popleft()
            self._commit(number - len(in_flight) - 1, keys)
            done += keys.size
            if self._sent >= next_check:
                self._compare()
                next_check = self._sent + self._rows
                progress(done)
        self._compare()
        ignored = self._buffer.leases.ignored_priorities
        self._miscounted += int(ignored != self._ignored)
        return Outcome(done, self._applied, ignored, self._sent, self._wrong, self._miscounted, self._root_error)

    def _insert(self) -> None:
        first = self._sent + 1
        keys = np.arange(first, first + self._window, dtype=np.int64)
        columns = Columns(SCHEMA, (keys.reshape(-1, 1),))
        environments = np.arange(self._window, dtype=np.uint32)
        self._buffer.intakes.issue_grants(0.0)
        version = self._buffer.version
        assert (
            append(self._buffer, Window(WindowHead(0, 1, first, version, environments), columns), 0.0)
            == first + keys.size - 1
        )
        self._sent += self._window
        # An inserted segment is replayed at once, with a priority that was never committed. The oracle has an entry
        # from its first commit on.
        for key in range(first - self._rows, first - self._rows + self._window):
            self._oracle.pop(key, None)

    def _draw(self, number: int) -> NDArray[np.uint64]:
        lease = self._buffer.leases.draw(number)
        assert lease is not None
        batch = gather(self._buffer, lease)
        self._wrong += int((batch.columns.arrays[0][:, 0].view(np.uint64) != batch.keys).sum())
        for key, priority in zip(batch.keys.tolist(), batch.priorities.tolist(), strict=True):
            self._wrong += self._oracle.get(key, priority) != priority
        return batch.keys

    def _commit(self, number: int, keys: NDArray[np.uint64]) -> None:
        # All priorities differ, so that one on the wrong segment is detected.
        priorities = self._random.random(keys.size) + 0.5
        outcome = self._buffer.leases.commit(self._plan.session, number, keys, priorities)
        gone = 0
        for key, priority in zip(keys.tolist(), priorities.tolist(), strict=True):
            if key > self._sent - self._rows:
                self._oracle[key] = priority
            else:
                gone += 1
        self._applied += keys.size - gone
        self._ignored += gone
        self._miscounted += (outcome.updated, outcome.overwritten) != (keys.size - gone, gone)

    def _compare(self) -> None:
        """Compares every stored segment with the oracle, and the root of the tree with the sum of the masses."""
        headers = self._store.headers
        present = headers["key"]
        self._wrong += int((present % np.uint64(self._rows) != np.arange(self._rows)).sum())
        stored = dict(zip(present.tolist(), headers["priority"].tolist(), strict=True))
        self._wrong += sum(stored.get(key) != priority for key, priority in self._oracle.items())
        exponent = (headers["version"] - self._buffer.mass.reference) / self._plan.half_life
        masses = (headers["priority"] + self._plan.epsilon) ** self._plan.alpha * np.exp2(exponent)
        total = self._buffer.mass.total
        self._root_error = max(self._root_error, abs(total - float(masses.sum())) / total)
