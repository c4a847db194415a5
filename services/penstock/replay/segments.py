"""Segments of one store: the fresh ones, and the state that the parts of a buffer share.

Fresh segments await their first training: unseen in order of arrival, then leased to a batch. Their states are in the
store's headers and survive the process. This module keeps their order and the open leases.

Callers hold the buffer's lock.
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigurationError
from penstock.gate_law import least_capacity, store_conflict
from penstock.replay.admission import Gate
from penstock.replay.priority_index import PriorityIndex
from penstock.replay.store.ages import Ages
from penstock.replay.store.header_scans import NO_VERSION, lease, return_leased
from penstock.replay.store.layout import State, bytes_for
from penstock.replay.store.ring_store import RingStore
from penstock.types.block import Schema
from penstock.types.replay import Mass, SamplingPlan, StoreCounts

_UNKNOWN = -1
"""Bound on versions that excludes none, because versions begin at 0."""

_NO_ROWS = np.zeros(0, np.int64)


@dataclass(slots=True)
class Lease:
    """Leased batch, with the fields of its `BatchHead`. Overwritten segments are replaced in place."""

    number: int
    fresh_segments: int
    keys: NDArray[np.uint64]
    versions: NDArray[np.int64]
    priorities: NDArray[np.float64]
    probabilities: NDArray[np.float64]
    mass: Mass = field(default_factory=Mass)

    @classmethod
    def without_segments(cls, number: int) -> "Lease":
        """Returns the lease of an empty batch."""
        keys, numbers, fractions = np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0)
        return cls(number, 0, keys, numbers, fractions, fractions)


class FreshSegments:
    """Unseen and leased segments of one store.

    Attributes:
        leases: Leases of uncommitted batches by number.
    """

    def __init__(self, store: RingStore) -> None:
        """Finds the segments that an earlier process left. Leased ones wait for `restore` or `refund`."""
        self._store = store
        self.leases: dict[int, Lease] = {}
        headers = store.headers
        self._unseen = deque(sorted(int(key) for key in headers["key"][self._in_state(State.UNSEEN)]))
        self._orphans = self._in_state(State.LEASED).size
        # Lower bound on the versions of the unseen segments, so that most batches need not look for late ones.
        self._oldest = _UNKNOWN

    @property
    def unseen(self) -> int:
        """Number of segments that no batch has taken yet."""
        return len(self._unseen)

    @property
    def leased(self) -> int:
        """Number of fresh segments in uncommitted batches."""
        return self._orphans + sum(lease.fresh_segments for lease in self.leases.values())

    def arrived(self, keys: NDArray[np.uint64], version: int) -> None:
        """Adds segments of this version that were just stored."""
        self._oldest = min(self._oldest, version) if self._unseen else version
        self._unseen.extend(keys.tolist())

    def next_number(self, recorded: int) -> int:
        """Returns the number of the next lease. `recorded` is one too low if a kill preceded its update."""
        return max([recorded, *(number + 1 for number in self.leases)])

    def take_older(self, oldest: int) -> NDArray[np.int64]:
        """Takes the unseen segments of versions below `oldest` and returns their rows <int64>[L]."""
        if not self._unseen or self._oldest >= oldest:
            return _NO_ROWS
        keys = np.array(self._unseen, np.uint64)
        rows = self._store.rows(keys)
        versions = self._store.headers["version"][rows]
        late = versions < oldest
        self._oldest = int(versions[~late].min(initial=NO_VERSION))
        if late.any():
            self._unseen = deque(int(key) for key in keys[~late])
        retired: NDArray[np.int64] = rows[late]
        return retired

    def take_all(self) -> NDArray[np.int64]:
        """Takes all unseen segments and returns their rows <int64>[U]."""
        keys = np.array(self._unseen, np.uint64)
        self._unseen.clear()
        return self._store.rows(keys)

    def take(self, number: int, count: int) -> NDArray[np.uint64] | None:
        """Leases the oldest unseen segments to batch `number`.

        Returns:
            <uint64>[count] keys, by environment and then time, so that a batch does not depend on the speed of the
            actors. None if there are not enough segments.
        """
        if len(self._unseen) < count:
            return None
        keys = np.array([self._unseen.popleft() for _ in range(count)], np.uint64)
        return keys[np.lexsort((keys, lease(self._store, keys, number)))]

    def close(self, number: int) -> None:
        """Ends a lease. Segments missing from its commit become unseen again, so that none stays leased forever."""
        closed = self.leases.pop(number)
        left = return_leased(self._store, closed.keys[: closed.fresh_segments])
        if left.size:
            self._oldest = _UNKNOWN
            self._unseen.extendleft(sorted(left.tolist(), reverse=True))

    def close_until(self, number: int) -> int:
        """Ends all leases up to `number`, whose segments become unseen again. Returns how many segments these are."""
        unseen = self.unseen
        # The latest lease is closed first, because each one puts its segments before those that are already unseen.
        for open_number in sorted((each for each in self.leases if each <= number), reverse=True):
            self.close(open_number)
        return self.unseen - unseen

    def refund(self) -> int:
        """Ends all leases, whose segments become unseen again. Returns how many segments these are."""
        headers, leased = self._store.headers, self._in_state(State.LEASED)
        headers["state"][leased] = State.UNSEEN
        self._oldest = _UNKNOWN
        self._unseen = deque(sorted([*self._unseen, *(int(key) for key in headers["key"][leased])]))
        self.leases.clear()
        self._orphans = 0
        return leased.size

    def restore(self, batches: range) -> None:
        """Restores the leases of these uncommitted batches after this service restarted while its learner lived.

        A batch without leased segments had no fresh ones, or the service died in its commit. It becomes a lease all the
        same, since its commit will arrive.
        """
        headers, leased = self._store.headers, self._in_state(State.LEASED)
        for number in sorted({*batches, *headers["batch"][leased].tolist()} - self.leases.keys()):
            keys = self._in_order(headers["key"][leased[headers["batch"][leased] == number]])
            self.leases[number] = Lease(
                number=number,
                fresh_segments=keys.size,
                keys=keys,
                versions=headers["version"][self._store.rows(keys)].copy(),
                priorities=np.zeros(keys.size),
                probabilities=np.ones(keys.size),
            )
        self._orphans = 0

    def put_back(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rewrites the states of unseen and leased segments in these rows, and returns the other rows <int64>[...]."""
        headers, others = self._store.headers, []
        leased = {
            key: lease.number for lease in self.leases.values() for key in lease.keys[: lease.fresh_segments].tolist()
        }
        for row in rows.tolist():
            key = int(headers["key"][row])
            if key in self._unseen:
                headers["state"][row] = State.UNSEEN
            elif key in leased:
                headers["batch"][row], headers["state"][row] = leased[key], State.LEASED
            else:
                others.append(row)
        return np.array(others, np.int64)

    def _in_order(self, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Sorts keys by environment, then time."""
        return keys[np.lexsort((keys, self._store.headers["environment"][self._store.rows(keys)]))]

    def _in_state(self, state: State) -> NDArray[np.int64]:
        headers = self._store.headers
        return np.flatnonzero((headers["key"] != 0) & (headers["state"] == state))


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

    def adopt_schema(self, schema: Schema) -> None:
        """Adopts the schema of an actor. Raises as `RingStore.adopt`."""
        self.store.adopt(schema)
        if self.index is None:
            self.index = PriorityIndex(self.store, self.ages)
            if self.gate.plan is not None:
                self.index.adopt(self.gate.plan)

    def check_capacity(self, plan: SamplingPlan) -> None:
        """Raises `ConfigurationError` if batches of this plan could wait forever, because the store is too small."""
        if self.store.schema is not None:
            fresh, degree, batch = plan.fresh_segments, plan.off_policy_degree, plan.batch_segments
            if reason := store_conflict(fresh, degree, batch, self.store.capacity, plan.min_replay_segments):
                needed = bytes_for(least_capacity(fresh, degree, batch, plan.min_replay_segments), self.store.schema)
                raise ConfigurationError(f"{reason} to {needed} or more")

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
