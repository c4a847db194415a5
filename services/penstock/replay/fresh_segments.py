"""Segments before their first training: unseen in order of arrival, then leased to a batch.

States are in the store's headers and survive the process. This module keeps their order and the open leases.
`replay.segments`, `replay.leases` and `replay.buffer` call it under the buffer's lock.
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from penstock.replay.store.layout import State
from penstock.replay.store.ring_store import RingStore
from penstock.types.replay import Mass


@dataclass(slots=True)
class Lease:
    """Leased batch. The fields are those of its `BatchHead`. Overwritten segments are replaced in place."""

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

    @property
    def unseen(self) -> int:
        """Number of segments that no batch has taken yet."""
        return len(self._unseen)

    @property
    def leased(self) -> int:
        """Number of fresh segments in uncommitted batches."""
        return self._orphans + sum(lease.fresh_segments for lease in self.leases.values())

    def arrived(self, keys: NDArray[np.uint64]) -> None:
        """Adds segments that were just stored."""
        self._unseen.extend(keys.tolist())

    def next_number(self, recorded: int) -> int:
        """Returns the number of the next lease. `recorded` is one too low if a kill preceded its update."""
        return max([recorded, *(number + 1 for number in self.leases)])

    def take_older(self, oldest: int) -> NDArray[np.int64]:
        """Takes the unseen segments of versions below `oldest` and returns their rows <int64>[L]."""
        if not self._unseen:
            return np.zeros(0, np.int64)
        keys = np.array(self._unseen, np.uint64)
        rows = self._store.rows(keys)
        late = self._store.headers["version"][rows] < oldest
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
        headers = self._store.headers
        keys = np.array([self._unseen.popleft() for _ in range(count)], np.uint64)
        rows = self._store.rows(keys)
        headers["batch"][rows] = number
        headers["state"][rows] = State.LEASED
        return self._in_order(keys)

    def close(self, number: int) -> None:
        """Ends a lease. Segments missing from its commit become unseen again, so that none stays leased forever."""
        lease, headers = self.leases.pop(number), self._store.headers
        rows = self._store.rows(lease.keys[: lease.fresh_segments])
        left = rows[headers["state"][rows] == State.LEASED]
        headers["state"][left] = State.UNSEEN
        self._unseen.extendleft(sorted((int(key) for key in headers["key"][left]), reverse=True))

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
