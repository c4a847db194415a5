"""Scan of the rows of an existing store: which have intact segments, and which must be emptied."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.replay.store.layout import SEGMENT_STATES, State
from penstock.replay.store.records import SessionRecord


@dataclass(frozen=True, slots=True)
class Recovery:
    """Result of scanning an existing store.

    Attributes:
        segments: Number of intact segments.
        damaged: Rows dropped because their segments were damaged or lost.
        torn: Rows that were being written when the last process ended. Their segments were never acknowledged.
        repaired: Copies of watermarks and other records that were damaged or torn, and were restored from the other
            copy.
    """

    segments: int = 0
    damaged: int = 0
    torn: int = 0
    repaired: int = 0


@dataclass(frozen=True, slots=True)
class RowScan:
    """Rows of an existing store.

    Attributes:
        intact: <int64>[...] rows with intact segments.
        spoilt: <int64>[...] rows to be emptied, which held damaged, lost and torn segments.
        damaged: Number of damaged and lost segments.
        torn: Number of rows that were being written.
        headers_lost: Whether segments were stored and no row has a key.
    """

    intact: NDArray[np.int64]
    spoilt: NDArray[np.int64]
    damaged: int
    torn: int
    headers_lost: bool


def scan_rows(
    headers: NDArray[Any], session: SessionRecord, checksums: Callable[[NDArray[np.int64]], NDArray[np.uint64]]
) -> RowScan:
    """Scans the rows with these <HEADER>[capacity] headers. `checksums` computes the checksums of ascending rows."""
    keys, states, capacity = headers["key"], headers["state"], headers.size
    rows = np.flatnonzero(keys)
    sound = keys[rows] % np.uint64(capacity) == rows
    sound &= _plausible(headers[rows], session)
    sound &= checksums(rows) == headers["checksum"][rows]
    # The process was killed before the key was written, or while the row was overwritten.
    torn = (keys == 0) & np.isin(states, (*SEGMENT_STATES, State.WRITING))
    # Every row that the ring has reached has a state.
    reached = (np.arange(capacity) - 1) % capacity < session.next_key - 1
    lost = (keys == 0) & ~torn & (states != State.RELEASED) & (reached | (states != 0))
    return RowScan(
        intact=rows[sound],
        spoilt=np.concatenate([rows[~sound], np.flatnonzero(lost | torn)]),
        damaged=int(np.count_nonzero(~sound)) + int(np.count_nonzero(lost)),
        torn=int(torn.sum()),
        headers_lost=bool(lost.any()) and not keys.any(),
    )


def _plausible(headers: NDArray[Any], session: SessionRecord) -> NDArray[np.bool_]:
    """Returns <bool>[B] whether the header fields that no checksum covers are valid in these headers with keys."""
    result: NDArray[np.bool_] = np.isin(headers["state"], SEGMENT_STATES)
    result &= np.isfinite(headers["priority"]) & (headers["priority"] >= 0.0) & (headers["batch"] >= -1)
    # After a kill between a batch's states and its record, the batch is still the next one.
    open_batch = (headers["batch"] >= session.next_batch) & (headers["batch"] <= session.next_lease)
    result &= (headers["state"] != State.LEASED) | open_batch
    return result
