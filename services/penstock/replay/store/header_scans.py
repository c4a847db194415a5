"""Compiled passes over the headers of a batch's segments. In NumPy each field of each pass would need a gather.

Callers hold the buffer's lock.
"""

import numba
import numpy as np
from numpy.typing import NDArray

from penstock.replay.store.layout import HEADER, State
from penstock.replay.store.ring_store import RingStore

BLOCK_ROWS = 1024
"""Rows per block. Each block keeps its oldest version as one number and is scanned only if that version is too old."""

NO_VERSION = np.iinfo(np.int64).max
"""Oldest version of a block in which no row has mass."""

_HEADERS = numba.from_dtype(HEADER)[::1]
_UNSEEN, _LEASED, _SEEN = int(State.UNSEEN), int(State.LEASED), int(State.SEEN)

# numba invalidates its cache only when the file of a function changes, not when a constant from another file does. The
# codes of states are therefore arguments.


@numba.njit(
    numba.int64(
        _HEADERS, numba.uint64[::1], numba.int64, numba.uint32, numba.uint32, numba.int64[::1], numba.int64[::1]
    ),
    cache=True,
)
def _find_committed(headers, keys, batch, leased, seen, rows, positions):  # type: ignore[no-untyped-def]
    capacity, found = np.uint64(headers.size), 0
    for position in range(keys.size):
        row = np.int64(keys[position] % capacity)
        header = headers[row]
        if header.key != keys[position] or keys[position] == 0:
            continue
        if header.state != seen and (header.state != leased or header.batch != batch):
            return -1
        rows[found], positions[found] = row, position
        found += 1
    return found


@numba.njit(
    numba.int64(_HEADERS, numba.int64[::1], numba.float64[::1], numba.uint32, numba.int64[::1], numba.int64[::1]),
    cache=True,
)
def _mark_seen(headers, rows, priorities, seen, versions, oldest):  # type: ignore[no-untyped-def]
    new = 0
    for position in range(rows.size):
        header = headers[rows[position]]
        if header.state != seen:
            new += 1
        # The state is written last. If the process is killed in between, the segment is still fresh and is not replayed
        # at a wrong priority.
        header.priority = priorities[position]
        header.state = seen
        versions[position] = header.version
        block = rows[position] // BLOCK_ROWS
        oldest[block] = min(oldest[block], header.version)
    return new


@numba.njit(
    numba.int64(_HEADERS, numba.float64[::1], numba.int64, numba.int64[::1], numba.int64[::1]), nogil=True, cache=True
)
def _find_older(headers, masses, limit, oldest, rows):  # type: ignore[no-untyped-def]
    found = 0
    for block in range(oldest.size):
        if oldest[block] >= limit:
            continue
        oldest[block] = NO_VERSION
        for row in range(block * BLOCK_ROWS, min((block + 1) * BLOCK_ROWS, headers.size)):
            if masses[row] == 0.0:
                continue
            if headers[row].version < limit:
                rows[found] = row
                found += 1
            else:
                oldest[block] = min(oldest[block], headers[row].version)
    return found


@numba.njit(numba.float64(numba.float64[::1]), cache=True)
def _largest(priorities):  # type: ignore[no-untyped-def]
    largest = 0.0
    for priority in priorities:
        if not 0.0 <= priority < np.inf:
            return -1.0
        largest = max(largest, priority)
    return largest


@numba.njit(numba.void(_HEADERS, numba.uint64[::1], numba.int64, numba.uint32, numba.uint32[::1]), cache=True)
def _lease(headers, keys, batch, leased, environments):  # type: ignore[no-untyped-def]
    capacity = np.uint64(headers.size)
    for position in range(keys.size):
        header = headers[np.int64(keys[position] % capacity)]
        # The state is written last. A batch number without it means nothing after a kill.
        header.batch = batch
        header.state = leased
        environments[position] = header.environment


@numba.njit(numba.int64(_HEADERS, numba.uint64[::1], numba.uint32, numba.uint32, numba.uint64[::1]), cache=True)
def _return_leased(headers, keys, leased, unseen, returned):  # type: ignore[no-untyped-def]
    capacity, found = np.uint64(headers.size), 0
    for position in range(keys.size):
        header = headers[np.int64(keys[position] % capacity)]
        if header.state == leased:
            header.state = unseen
            returned[found] = header.key
            found += 1
    return found


def largest_of(priorities: NDArray[np.float64]) -> float:
    """Returns the largest of <float64>[B] priorities, 0 without any; -1 if one is negative or not finite."""
    return float(_largest(np.ascontiguousarray(priorities, np.float64)))


def lease(store: RingStore, keys: NDArray[np.uint64], batch: int) -> NDArray[np.uint32]:
    """Leases the segments <uint64>[B] to a batch and returns the numbers <uint32>[B] of their environments."""
    environments = np.empty(keys.size, np.uint32)
    _lease(store.headers, keys, batch, _LEASED, environments)
    return environments


def return_leased(store: RingStore, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Makes the segments among <uint64>[B] that are still leased unseen, and returns their keys <uint64>[...]."""
    returned = np.empty(keys.size, np.uint64)
    return returned[: _return_leased(store.headers, keys, _LEASED, _UNSEEN, returned)]


def find_committed(
    store: RingStore, keys: NDArray[np.uint64], batch: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Finds the rows of the segments <uint64>[B] that a batch's commit names.

    Returns:
        <int64>[P] rows of the segments that are still present, and <int64>[P] their positions among the keys. None if
        any of them was neither leased to this batch nor seen before.
    """
    rows, positions = np.empty(keys.size, np.int64), np.empty(keys.size, np.int64)
    found = _find_committed(store.headers, keys, batch, _LEASED, _SEEN, rows, positions)
    return None if found < 0 else (rows[:found], positions[:found])


def mark_seen(
    store: RingStore, rows: NDArray[np.int64], priorities: NDArray[np.float64], oldest: NDArray[np.int64]
) -> tuple[NDArray[np.int64], int]:
    """Stores raw priorities <float64>[B] in the headers of these rows <int64>[B] and marks their segments as seen.

    The last duplicate wins. `oldest` <int64>[blocks], the oldest version in each block, is updated in place.

    Returns:
        <int64>[B] policy versions that acted, and the number of segments that had not been seen before.
    """
    versions = np.empty(rows.size, np.int64)
    priorities = np.ascontiguousarray(priorities, np.float64)
    new = _mark_seen(store.headers, rows, priorities, _SEEN, versions, oldest)
    return versions, int(new)


def find_older(
    store: RingStore, masses: NDArray[np.float64], limit: int, oldest: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Returns the rows <int64>[...] with mass whose versions are below a limit; `masses` are <float64>[capacity].

    Only blocks whose lower bound in `oldest` <int64>[blocks] is below the limit are scanned. Their bounds are raised in
    place. That is about one block per commit, since the rows of a block were filled at about the same time.
    """
    rows = np.empty(int(np.count_nonzero(oldest < limit)) * BLOCK_ROWS, np.int64)
    return rows[: _find_older(store.headers, masses, limit, oldest, rows)]
