"""Penstock's whole replay buffer as a side of the sum tree benchmark: what a learner's batch costs in the service.

A draw leases a batch by priority, copies its columns, and computes importance weights. An update commits the batch with
new priorities. Ages, staleness, headers and the lock are included, as `penstock.replay.buffer` has them. No network is.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.sum_tree_workload import ALPHA, BETA, EPSILON
from penstock.replay.admission import ActorKey, Gate
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.store.ring_store import RingStore
from penstock.types.block import Column, Columns, Schema
from penstock.types.replay import Batch, SamplingPlan, Window, WindowHead
from tests.support.segments.direct_buffer import append, gather
from tests.support.segments.segments import capacity_bytes

SCHEMA = Schema(unroll_length=1, columns=(Column("x", "float32"), Column("terminated", "bool")))
WINDOW = 4_096
"""Segments that are stored at once."""


class Buffer:
    """A full buffer of segments of one step; implements `sum_tree_workload.Side`."""

    dtype: type[np.floating[Any]] = np.float64

    def __init__(self, priorities: NDArray[np.float64]) -> None:
        rows = priorities.size
        self._plan = SamplingPlan(
            session=1,
            next_batch=0,
            batch_segments=WINDOW,
            fresh_segments=0,
            off_policy_degree=1,
            publish_interval=1,
            alpha=ALPHA,
            epsilon=EPSILON,
            half_life=3.0,
            # All segments have the same version, and every commit makes them older.
            max_staleness=10**6,
            min_replay_segments=1,
            seed=0,
        )
        self._buffer = ReplayBuffer(RingStore(None, capacity_bytes(rows, SCHEMA)), Gate(10.0, max_actors=1))
        self._buffer.adopt_plan(self._plan)
        self._number = 0
        self._batch: Batch | None = None
        self._fill(rows)
        for first in range(0, rows, WINDOW):
            self._buffer._segments.priorities.mark_seen(
                np.arange(first, first + WINDOW), priorities[first : first + WINDOW]
            )

    def draw(self, batch: int) -> NDArray[Any]:
        """Leases a batch of this size, and returns the keys of its segments."""
        if batch != self._plan.batch_segments:
            self._plan = replace(self._plan, batch_segments=batch)
            self._buffer.adjust_plan(self._plan)
        lease = self._buffer.leases.draw(self._number)
        assert lease is not None
        self._batch = taken = gather(self._buffer, lease)
        probabilities = taken.head.probabilities
        _weights = (probabilities.min() / probabilities) ** BETA
        return taken.keys

    def update(self, leaves: NDArray[Any], priorities: NDArray[Any]) -> None:
        """Commits the batch with new priorities. A second update is an update of nothing, because commits are final."""
        if self._batch is not None:
            self._buffer.leases.commit(self._plan.session, self._number, leaves, priorities)
            self._number, self._batch = self._number + 1, None

    def _fill(self, rows: int) -> None:
        actor = ActorKey(0, 1)
        self._buffer.intakes.open(actor, SCHEMA, WINDOW, 0.0)
        columns = Columns(SCHEMA, tuple(np.zeros_like(array) for array in SCHEMA.empty(WINDOW).arrays))
        environments = np.arange(WINDOW, dtype=np.uint32)
        for first in range(0, rows, WINDOW):
            self._buffer.intakes.issue_grants(0.0)
            head = WindowHead(slot=0, incarnation=1, first_sequence=first + 1, version=0, environments=environments)
            stored = append(self._buffer, Window(head, columns), 0.0)
            assert stored == first + WINDOW
