"""Passes over the headers of a batch's segments, compiled: in NumPy each field of each pass would be a gather.

Called by `replay.buffer` and `replay.priority_index`, under the buffer's lock.
"""

import numba
import numpy as np
from numpy.typing import NDArray

from penstock.replay.layout import HEADER, State
from penstock.replay.ring_store import RingStore

BLOCK_ROWS = 1024
"""Rows whose oldest version is kept as one number: what is looked through again when that is too old."""

NO_VERSION = np.iinfo(np.int64).max
"""In place of the oldest version of rows without mass."""

_HEADERS = numba.from_dtype(HEADER)[::1]
_LEASED, _SEEN = int(State.LEASED), int(State.SEEN)

# numba keeps compiled code until the file of the function changes, not that of a constant it was compiled with. So the
# codes of states are arguments.


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
        # The state last: killed in between, the segment is fresh still, and not replayed at a priority nobody gave it.
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


def find_committed(
    store: RingStore, keys: NDArray[np.uint64], batch: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Where the segments lie that a batch's commit names.

    Args:
        store: Whose headers are looked at.
        keys: <uint64>[B].
        batch: The batch's number.

    Returns:
        <int64>[P] rows of those that are still there, and <int64>[P] their positions among the keys; None if one of
        them was neither leased to this batch nor seen before.
    """
    rows, positions = np.empty(keys.size, np.int64), np.empty(keys.size, np.int64)
    found = _find_committed(store.headers, keys, batch, _LEASED, _SEEN, rows, positions)
    return None if found < 0 else (rows[:found], positions[:found])


def mark_seen(
    store: RingStore, rows: NDArray[np.int64], priorities: NDArray[np.float64], oldest: NDArray[np.int64]
) -> tuple[NDArray[np.int64], int]:
    """Stores raw priorities in the headers of these rows and makes their segments seen; of duplicates the last holds.

    Args:
        store: Whose headers are written.
        rows: <int64>[B].
        priorities: <float64>[B].
        oldest: <int64>[blocks] the oldest version in each `BLOCK_ROWS` rows; lowered where one of these is older.

    Returns:
        <int64>[B] the policy versions that acted, and how many segments had not been seen before.
    """
    versions = np.empty(rows.size, np.int64)
    priorities = np.ascontiguousarray(priorities, np.float64)
    new = _mark_seen(store.headers, rows, priorities, _SEEN, versions, oldest)
    return versions, int(new)


def find_older(
    store: RingStore, masses: NDArray[np.float64], limit: int, oldest: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Finds the rows with mass whose versions are below a limit, wherever they lie in the ring.

    Only blocks with an older version than the limit are looked through: about one a commit, since a block's rows were
    filled at about the same time.

    Args:
        store: Whose headers are read.
        masses: <float64>[capacity].
        limit: The oldest version that is kept.
        oldest: <int64>[blocks] no row with mass has an older version; raised to what is left in the blocks.

    Returns:
        <int64>[...] the rows.
    """
    rows = np.empty(int(np.count_nonzero(oldest < limit)) * BLOCK_ROWS, np.int64)
    return rows[: _find_older(store.headers, masses, limit, oldest, rows)]
