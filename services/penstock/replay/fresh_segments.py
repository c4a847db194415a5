"""Segments on their way to their first training: unseen in order of arrival, then leased to a batch.

The states themselves stand in the store's headers, so that they outlive the process; this is the order over them, and
the open leases. Called by `replay.buffer` alone, under its lock.
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from penstock.replay.layout import State
from penstock.replay.ring_store import RingStore
from penstock.types import Mass


@dataclass(slots=True)
class Lease:
    """A batch that was handed out: what it is made of, before its columns are gathered.

    Attributes:
        number: The batch's.
        fresh_segments: How many of the keys, the first ones, are leased; the others were drawn for replay.
        keys: <uint64>[B].
        versions: <int64>[B] policy versions that acted.
        priorities: <float64>[B] raw; 0 where fresh.
        probabilities: <float64>[B] at the draw; 1 where fresh.
        mass: The sum of all masses at the draw.
    """

    number: int
    fresh_segments: int
    keys: NDArray[np.uint64]
    versions: NDArray[np.int64]
    priorities: NDArray[np.float64]
    probabilities: NDArray[np.float64]
    mass: Mass = field(default_factory=Mass)

    @classmethod
    def without_segments(cls, number: int) -> "Lease":
        """A batch that nothing is in."""
        keys, numbers, fractions = np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0)
        return cls(number, 0, keys, numbers, fractions, fractions)


class FreshSegments:
    """The unseen and the leased segments of one store."""

    def __init__(self, store: RingStore) -> None:
        """Finds those that an earlier process left; leases among them wait for `restore` or `refund`."""
        self._store = store
        self._leases: dict[int, Lease] = {}
        headers = store.headers
        self._unseen = deque(sorted(int(key) for key in headers["key"][self._in_state(State.UNSEEN)]))
        self._orphans = self._in_state(State.LEASED).size

    @property
    def unseen(self) -> int:
        """Segments that no batch has taken yet."""
        return len(self._unseen)

    @property
    def leased(self) -> int:
        """Fresh segments in batches that are not committed."""
        return self._orphans + sum(lease.fresh_segments for lease in self._leases.values())

    @property
    def leases(self) -> int:
        """Batches that are not committed."""
        return len(self._leases)

    def arrived(self, keys: NDArray[np.uint64]) -> None:
        """Notes segments that were just stored as unseen."""
        self._unseen.extend(keys.tolist())

    def lease_of(self, number: int) -> Lease | None:
        """The open lease of a batch."""
        return self._leases.get(number)

    def next_number(self, recorded: int) -> int:
        """The number of the next lease, where `recorded` may be one behind: a kill between states and record."""
        return max([recorded, *(number + 1 for number in self._leases)])

    def take_older(self, oldest: int) -> NDArray[np.int64]:
        """<int64>[L] rows of what was collected by an older version than this; they are unseen no more."""
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
        """<int64>[U] rows of all unseen segments; they are unseen no more."""
        keys = np.array(self._unseen, np.uint64)
        self._unseen.clear()
        return self._store.rows(keys)

    def take(self, number: int, count: int) -> NDArray[np.uint64] | None:
        """Leases the oldest unseen segments to batch `number`.

        Returns:
            <uint64>[count] keys, by environment and then time, so that a batch does not depend on who was faster; None
            while there are not enough.
        """
        if len(self._unseen) < count:
            return None
        headers = self._store.headers
        keys = np.array([self._unseen.popleft() for _ in range(count)], np.uint64)
        rows = self._store.rows(keys)
        headers["batch"][rows] = number
        headers["state"][rows] = State.LEASED
        return self._in_order(keys)

    def open(self, lease: Lease) -> None:
        """Keeps a lease until it is closed or refunded."""
        self._leases[lease.number] = lease

    def close(self, number: int) -> None:
        """Ends a lease. Segments that its commit left out are unseen again: none stays leased for ever."""
        lease, headers = self._leases.pop(number), self._store.headers
        rows = self._store.rows(lease.keys[: lease.fresh_segments])
        left = rows[headers["state"][rows] == State.LEASED]
        headers["state"][left] = State.UNSEEN
        self._unseen.extendleft(sorted((int(key) for key in headers["key"][left]), reverse=True))

    def close_until(self, number: int) -> int:
        """Ends the leases up to this one, whose segments are unseen again; how many segments there were."""
        unseen = self.unseen
        # The latest first: each puts its segments before those that are unseen already.
        for open_number in sorted((each for each in self._leases if each <= number), reverse=True):
            self.close(open_number)
        return self.unseen - unseen

    def refund(self) -> int:
        """Ends all leases, whose segments are unseen again; how many there were."""
        headers, leased = self._store.headers, self._in_state(State.LEASED)
        headers["state"][leased] = State.UNSEEN
        self._unseen = deque(sorted([*self._unseen, *(int(key) for key in headers["key"][leased])]))
        self._leases.clear()
        self._orphans = 0
        return leased.size

    def restore(self, batches: range) -> None:
        """After this service restarted under a living learner: its uncommitted batches are leases again.

        Args:
            batches: That were handed out and not committed. One without leased segments has none that are fresh, or the
                service died in its commit; it is a lease all the same, since its commit will come.
        """
        headers, leased = self._store.headers, self._in_state(State.LEASED)
        for number in sorted({*batches, *headers["batch"][leased].tolist()} - self._leases.keys()):
            keys = self._in_order(headers["key"][leased[headers["batch"][leased] == number]])
            self._leases[number] = Lease(
                number=number,
                fresh_segments=keys.size,
                keys=keys,
                versions=headers["version"][self._store.rows(keys)].copy(),
                priorities=np.zeros(keys.size),
                probabilities=np.ones(keys.size),
            )
        self._orphans = 0

    def put_back(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Writes the states of those of these rows again that are unseen or leased; <int64>[...] the others."""
        headers, others = self._store.headers, []
        leased = {
            key: lease.number for lease in self._leases.values() for key in lease.keys[: lease.fresh_segments].tolist()
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
        """By environment, then time."""
        return keys[np.lexsort((keys, self._store.headers["environment"][self._store.rows(keys)]))]

    def _in_state(self, state: State) -> NDArray[np.int64]:
        headers = self._store.headers
        return np.flatnonzero((headers["key"] != 0) & (headers["state"] == state))
