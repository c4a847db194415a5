"""Segments of one store with the parts that act on them: gate, session record, ages, fresh segments and priorities.

`replay.buffer` creates it. `buffer`, `intake` and `leases` use it under the buffer's lock.
"""

import numpy as np
from numpy.typing import NDArray

from penstock.replay.admission import Gate
from penstock.replay.fresh_segments import FreshSegments
from penstock.replay.priority_index import PriorityIndex
from penstock.replay.store.ages import Ages
from penstock.replay.store.ring_store import RingStore
from penstock.types.block import Schema
from penstock.types.replay import StoreCounts
from penstock.types.run import LARGEST_VERSION_JUMP

VERSIONS_AHEAD = LARGEST_VERSION_JUMP + 1_000
"""Maximum number of versions by which a learner may begin above the store's version.

A learner can skip `LARGEST_VERSION_JUMP` numbers and a few hundred more: each power cut costs 100
(`learning.versions`), and its last commits may not have arrived.
"""


class Segments:
    """State that the parts of one buffer share.

    Attributes:
        store: Rows of the segments.
        gate: Gate of the actors.
        session: Session record of the store.
        ages: Age clock of the store.
        fresh: Unseen and leased segments.
        index: Seen segments; None before the schema is known.
        writing: Number of rows reserved for windows that are arriving.
        refused: Number of segments refused for their values since the service started.
        refunded: Number of segments returned untrained from leases since the service started.
    """

    def __init__(self, store: RingStore, gate: Gate) -> None:
        self.store, self.gate, self.session = store, gate, store.session
        self.ages = Ages(store.records, self.session.version)
        self.fresh = FreshSegments(store)
        self.index = PriorityIndex(store, self.ages) if store.schema is not None else None
        self.writing = self.refused = self.refunded = 0

    @property
    def priorities(self) -> PriorityIndex:
        """Index of the seen segments. The schema must be known."""
        assert self.index is not None
        return self.index

    @property
    def newest_published(self) -> int:
        """Newest version that the learner can have published, given the batches leased here."""
        # Version v results from batch v - 1. A replacement for a lost store has leased no batch, but the plan names the
        # next one.
        plan = self.gate.plan
        return max(self.session.next_lease, plan.next_batch if plan is not None else 0)

    def adopt_schema(self, schema: Schema) -> None:
        """Adopts the schema of an actor. Raises as `RingStore.adopt`."""
        self.store.adopt(schema)
        if self.index is None:
            self.index = PriorityIndex(self.store, self.ages)
            if self.gate.plan is not None:
                self.index.adopt(self.gate.plan)

    def arrived(self, keys: NDArray[np.uint64]) -> None:
        """Adds segments that were just stored. If the plan's batches take no fresh ones, they are replayable."""
        if self.gate.plan is not None and self.gate.plan.fresh_segments == 0:
            self.replay_at_once(self.store.rows(keys))
        else:
            self.fresh.arrived(keys)

    def replay_at_once(self, rows: NDArray[np.int64]) -> None:
        """Makes segments that no batch will take as fresh replayable, at the largest priority present."""
        if rows.size:
            self.priorities.mark_seen(rows, np.full(rows.size, self.priorities.largest_priority))

    def counts(self) -> StoreCounts:
        """Returns the numbers of segments in the store and in outstanding grants."""
        unseen, leased = self.fresh.unseen, self.fresh.leased
        return StoreCounts(
            capacity=self.store.capacity,
            stored=unseen + leased + (self.index.seen if self.index is not None else 0),
            unseen=unseen,
            leased=leased,
            granted=self.gate.granted,
            inserted=self.session.inserted,
            late=self.session.late,
            refused=self.refused,
            refunded=self.refunded,
        )
