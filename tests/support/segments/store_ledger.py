"""The ledger of a run: which segments were acknowledged to actors, and which the store has, one by one.

The acknowledgements are those that actors log (telemetry.log_level debug) or that `stress.plain_actor` prints. The
store's headers name each segment by slot, incarnation and sequence, and its content names it again: an observation of
`tests.e2e.nodes.task` or of a plain actor ends with numbers of its own. The store must be so large that nothing was
overwritten; then each acknowledged segment must be there exactly once.
"""

import mmap
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.replay.store.description import read_description
from penstock.replay.store.layout import RECORDS_FILE, SEGMENT_STATES, SEGMENTS_FILE, Regions
from penstock.replay.store.records import session_of
from penstock.types.block import Schema

Place = tuple[int, int]
"""Slot and incarnation of an actor."""


@dataclass(frozen=True, slots=True)
class Account:
    """What the ledger found; all lines but the first two must be 0.

    Attributes:
        acknowledged: Segments whose acknowledgement an actor has logged.
        stored: Segments in the store, those included whose acknowledgement was lost on its way.
        lost: Acknowledged segments that the store does not have.
        duplicated: Segments that the store has more than once, by name or by content.
        torn: Segments whose content is not one piece of the environment's history, or does not follow the one before.
        backwards: Segments collected with an older version than an earlier segment of the same slot.
        overwritten: Segments that the store no longer has because it was too small for this ledger.
    """

    acknowledged: int
    stored: int
    lost: int
    duplicated: int
    torn: int
    backwards: int
    overwritten: int

    @property
    def balanced(self) -> bool:
        """Whether nothing is wrong, and something was counted."""
        wrong = self.lost + self.duplicated + self.torn + self.backwards + self.overwritten
        return wrong == 0 and self.acknowledged > 0

    def __str__(self) -> str:
        return (
            f"{self.acknowledged:,} acknowledged, {self.stored:,} stored, {self.lost} lost, {self.duplicated}"
            f" duplicated, {self.torn} torn, {self.backwards} with an older version, {self.overwritten} overwritten"
        )


def acknowledged_in(log: Iterable[Mapping[str, Any]]) -> dict[Place, int]:
    """Returns the last acknowledged sequence of each slot and incarnation, from the entries of the actors' logs."""
    last: dict[Place, int] = {}
    for entry in log:
        if entry.get("event") == "stored":
            place = int(entry["slot"]), int(entry["incarnation"])
            last[place] = max(last.get(place, 0), int(entry["sequence"]))
    return last


def account(acknowledged: Mapping[Place, int], store: Path) -> Account:
    """Compares acknowledgements with a store, which may be in use.

    Read the acknowledgements first: a segment is stored before it is acknowledged.
    """
    schema, headers, counters, inserted = _read(store)
    places: dict[Place, NDArray[Any]] = {}
    for place in {(int(slot), int(incarnation)) for slot, incarnation in headers[["slot", "incarnation"]].tolist()}:
        places[place] = np.sort(
            headers["sequence"][(headers["slot"] == place[0]) & (headers["incarnation"] == place[1])]
        )
    lost = 0
    for place, last in acknowledged.items():
        present = np.unique(places.get(place, np.zeros(0, np.uint64)))
        lost += last - int(np.count_nonzero(present <= last))
    duplicated = sum(each.size - np.unique(each).size for each in places.values())
    torn = 0
    if counters is not None:
        begins = Counter(map(tuple, counters[:, 0].tolist()))
        duplicated += begins.total() - len(begins)
        torn = _torn(headers, counters, schema.unroll_length)
    return Account(
        acknowledged=sum(acknowledged.values()),
        stored=headers.size,
        lost=lost,
        duplicated=duplicated,
        torn=torn,
        backwards=_backwards(headers),
        overwritten=max(0, inserted - headers.size),
    )


def _read(folder: Path) -> tuple[Schema, NDArray[Any], NDArray[np.int64] | None, int]:
    """Returns schema, headers in the order of insertion, what `_counters` returns, and the number ever inserted."""
    description = read_description(folder)
    schema = description.schema
    # The number first: segments that arrive meanwhile then only add to what is found.
    inserted = session_of(np.fromfile(folder / RECORDS_FILE, np.uint8)).inserted
    with (folder / SEGMENTS_FILE).open("rb") as file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    regions = Regions(memory, schema, description.capacity_bytes)
    headers = regions.headers.copy()
    rows = np.flatnonzero((headers["key"] != 0) & np.isin(headers["state"], SEGMENT_STATES))
    rows = rows[np.argsort(headers["key"][rows])]
    columns = schema.empty(rows.size)
    failed = regions.gather(rows, columns)
    assert not failed, f"{len(failed)} columns can't be decoded"
    names = [column.name for column in schema.columns]
    observations = columns.arrays[names.index("observation")] if "observation" in names else None
    return schema, headers[rows], None if observations is None else _counters(observations), inserted


def _counters(observations: NDArray[Any]) -> NDArray[np.int64] | None:
    """Returns <int64>[B, T + 1, 2] nonce and step counter of each observation; None if it is of another task."""
    if observations.ndim != 3 or observations.shape[2] < 3:
        return None
    scaled = observations[:, :, -3:].astype(np.float64) * 2.0**24
    words = scaled.astype(np.int64)
    if (words != scaled).any():
        return None
    return np.stack([words[:, :, 0] << 24 | words[:, :, 1], words[:, :, 2]], axis=2)


def _torn(headers: NDArray[Any], counters: NDArray[np.int64], steps: int) -> int:
    """Returns the number of segments that are not one piece, or do not begin where the one before has ended."""
    whole = (counters[:, :, 0] == counters[:, :1, 0]).all(axis=1) & (np.diff(counters[:, :, 1], axis=1) == 1).all(
        axis=1
    )
    torn = int(np.count_nonzero(~whole))
    # An environment keeps its number for the life of an incarnation, and a window has one segment of each.
    order = np.lexsort((headers["sequence"], headers["environment"], headers["incarnation"], headers["slot"]))
    sorted_headers, begins = headers[order], counters[order, 0]
    same = np.ones(max(0, order.size - 1), np.bool_)
    for name in ("slot", "incarnation", "environment"):
        same &= sorted_headers[name][1:] == sorted_headers[name][:-1]
    follows = (begins[1:, 0] == begins[:-1, 0]) & (begins[1:, 1] == begins[:-1, 1] + steps)
    return torn + int(np.count_nonzero(same & ~follows))


def _backwards(headers: NDArray[Any]) -> int:
    """Returns the number of segments with an older version than an earlier one of the same slot, in stored order."""
    wrong = 0
    for slot in np.unique(headers["slot"]):
        versions = headers["version"][headers["slot"] == slot]
        wrong += int(np.count_nonzero(versions < np.maximum.accumulate(versions)))
    return wrong
