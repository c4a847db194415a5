"""The test of `ring_turnover` through a real service and the clients that actors and learners use."""

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from penstock.replay.store.layout import HEADER
from penstock.replay.store.ring_store import RingStore
from penstock.rpc.clients.batch_source import ReplayBatchSource
from penstock.rpc.clients.segment_sink import ReplaySegmentSink
from penstock.rpc.loop import LoopThread
from penstock.types.block import Columns
from penstock.types.location import Place
from penstock.types.replay import Batch, SamplingPlan, Window, WindowHead
from penstock.types.run import Assignment
from stress.ring_turnover import IN_FLIGHT, SCHEMA, Outcome
from tests.support.machine.timing import PATIENCE_S
from tests.support.torture.ledger import Ledger
from tests.support.torture.service import ReplayProcess

_DRAWN_AHEAD = 2 * IN_FLIGHT + 2
"""Number of batches whose commits a draw may precede: those in flight, and those requested ahead of them."""


@dataclass(slots=True)
class _Given:
    """The priorities that were committed for a segment, and the batch of the first of them."""

    since: int
    priorities: list[float] = field(default_factory=list)


class _Pair:
    """An actor and a learner of one service. They take turns, so that the effect of each commit is known."""

    def __init__(self, address: str, *, rows: int, batch: int, window: int, seed: int) -> None:
        self._rows, self._window = rows, window
        self.thread = LoopThread()
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
        place = Assignment(0, 1, tuple(range(window)), token=b"", seed=0, replay=Place((address,)))
        self._sink = ReplaySegmentSink(self.thread, place, SCHEMA)
        self._source = ReplayBatchSource(self.thread, address, SCHEMA, prefetch_batches=IN_FLIGHT)
        self._source.open(self._plan)
        self._random = np.random.default_rng(seed)
        self.sent = self.applied = self.ignored = self.wrong = self.miscounted = 0
        self.given: dict[int, _Given] = {}

    def insert(self, segments: int) -> None:
        """Sends this number of segments, and waits until they are stored."""
        until = self.sent + segments
        while self.sent < until:
            assert self._sink.next_grant(PATIENCE_S) is not None
            first = self.sent + 1
            keys = np.arange(first, first + self._window, dtype=np.int64)
            columns = Columns(SCHEMA, (keys.reshape(-1, 1),))
            self._sink.send(Window(WindowHead(0, 1, first, 0, np.arange(self._window, dtype=np.uint32)), columns))
            self.sent += self._window
        assert self._sink.drain(PATIENCE_S)

    def draw(self) -> Batch:
        """Returns the next batch, after checking that each priority was committed for its segment, if any was."""
        batch = self._source.next(PATIENCE_S)
        assert batch is not None, self._source.waiting_for
        self.wrong += int((batch.columns.arrays[0][:, 0].astype(np.uint64) != batch.keys).sum())
        for key, priority in zip(batch.keys.tolist(), batch.priorities.tolist(), strict=True):
            given = self.given.get(key)
            # Batches are drawn ahead, so this one may precede the first commit for the segment.
            if given is not None and given.since < batch.number - _DRAWN_AHEAD:
                self.wrong += priority not in given.priorities
        return batch

    def commit(self, batch: Batch) -> None:
        """Commits distinct priorities, and compares the answer."""
        priorities = self._random.random(batch.keys.size) + 0.5
        outcome = self._source.commit(batch, priorities).result(PATIENCE_S)
        oldest = self.sent - self._rows
        present = batch.keys.astype(np.int64) > oldest
        # If a segment was drawn twice, its last priority counts.
        last = dict(zip(batch.keys[present].tolist(), priorities[present].tolist(), strict=True))
        for key, priority in last.items():
            self.given.setdefault(key, _Given(batch.number)).priorities.append(priority)
        self.applied += int(present.sum())
        self.ignored += int((~present).sum())
        self.miscounted += (outcome.updated, outcome.overwritten) != (int(present.sum()), int((~present).sum()))

    def close(self) -> None:
        """Closes both clients."""
        self._sink.close()
        self._source.close()
        self.thread.close()


def play_over_grpc(folder: Path, *, rows: int, batch: int, window: int, updates: int, seed: int) -> Outcome:
    """Commits this number of priorities, and then checks the store after stopping the service."""
    size = rows * (HEADER.itemsize + SCHEMA.segment_bytes) + 2 * 4096
    ledger = Ledger()
    service = ReplayProcess(folder / "store", size, ledger)
    service.start()
    try:
        service.wait_until_ready()
        pair = _Pair(service.address, rows=rows, batch=batch, window=window, seed=seed)
        try:
            _play(pair, rows, updates)
        finally:
            pair.close()
    finally:
        service.kill()
    headers = RingStore(folder / "store", size).headers
    wrong, oldest = pair.wrong + len(ledger.violations), pair.sent - headers.size
    for key, priority in zip(headers["key"].tolist(), headers["priority"].tolist(), strict=True):
        given = pair.given.get(key)
        wrong += key <= oldest or (given is not None and priority != given.priorities[-1])
    done = pair.applied + pair.ignored
    return Outcome(done, pair.applied, pair.ignored, pair.sent, wrong, pair.miscounted, 0.0)


def _play(pair: _Pair, rows: int, updates: int) -> None:
    pair.insert(rows)
    in_flight: deque[Batch] = deque()
    while pair.applied + pair.ignored < updates:
        while len(in_flight) < IN_FLIGHT:
            in_flight.append(pair.draw())
        # As many again are drawn ahead of the four.
        pair.insert(rows // (4 * IN_FLIGHT))
        pair.commit(in_flight.popleft())
