"""Reads the store of a running replay service from outside: its files are mapped, and never written."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.replay.store.ages import Ages
from penstock.replay.store.description import read_schema
from penstock.replay.store.layout import (
    HEADER,
    RECORDS_FILE,
    SEGMENTS_FILE,
    State,
    rows_within,
)
from penstock.replay.store.records import read_watermarks, session_of
from penstock.types.replay import SamplingPlan


@dataclass(frozen=True, slots=True)
class StoreState:
    """The state of a store at about one moment.

    Attributes:
        session: Session of its current learner.
        version: Last committed version, or the session's first.
        inserted: Number of segments ever inserted.
        late: Number of segments ever classified as late.
        marks: Last stored sequence by slot and incarnation.
        headers: <HEADER>[...] of the segments.
        clock: Clock for their ages.
    """

    session: int
    version: int
    inserted: int
    late: int
    marks: dict[tuple[int, int], int]
    headers: NDArray[Any]
    clock: Ages

    @property
    def trained(self) -> NDArray[Any]:
        """Headers of the segments that were trained, <HEADER>[...]."""
        trained: NDArray[Any] = self.headers[self.headers["state"] == State.SEEN]
        return trained

    @property
    def waiting(self) -> int:
        """Number of segments that were not trained yet."""
        return self.headers.size - self.trained.size

    def first_after(self, before: "StoreState") -> int:
        """Returns the first version of the session, where `before` is of the previous session."""
        return (
            self.version
            if self.session == before.session
            else max(before.version, max(self.clock.ends.tolist(), default=0))
        )

    def mass(self, plan: SamplingPlan, segments: NDArray[Any], version: int) -> float:
        """Returns the sum of the masses of these segments, <HEADER>[...], at a version, by this store's clock."""
        ages = self.clock.at(version) - self.clock.clock(segments["version"])
        young = ages <= plan.max_staleness
        masses = (segments["priority"] + plan.epsilon) ** plan.alpha * 2.0 ** (-ages / plan.half_life)
        return float(masses[young].sum())


class StoreView:
    """The store in one folder."""

    def __init__(self, folder: Path, records: Path | None = None) -> None:
        """Maps the store, which needs its schema from a first actor.

        `records` is the path of the records, if it is not the default one.
        """
        self._segments = np.memmap(folder / SEGMENTS_FILE, np.uint8, "r")
        self._records = np.memmap(records or folder / RECORDS_FILE, np.uint8, "r")
        capacity = rows_within(self._segments.size, read_schema(folder))
        self._headers = self._segments[: capacity * HEADER.itemsize].view(HEADER)

    @property
    def session(self) -> int:
        """Session of the store's current learner."""
        return session_of(self._records).session

    @property
    def version(self) -> int:
        """Last committed version."""
        return session_of(self._records).version

    def read(self) -> StoreState:
        """Reads the store; the result is consistent only if nothing is written meanwhile."""
        records, headers = np.array(self._records), np.array(self._headers)
        session = session_of(records)
        marks, _ = read_watermarks(records)
        used = np.flatnonzero(marks["incarnation"])
        return StoreState(
            session=session.session,
            version=session.version,
            inserted=session.inserted,
            late=session.late,
            marks={(int(slot), int(marks["incarnation"][slot])): int(marks["sequence"][slot]) for slot in used},
            headers=headers[headers["key"] != 0],
            clock=Ages(records, session.version),
        )
