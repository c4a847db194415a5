"""Ages of segments: the age clock of a store, and the largest age of a fresh segment.

An age is not always a difference of versions. A replaced learner begins at an unused version, so the skipped numbers
belong to no batch. They form a *gap*, which the age clock leaves out:

    clock(v) = v - (numbers below v that are in a gap)        age of v in batch k = clock(k) - clock(v)

A version within a gap was published by a learner that died before its batch was committed. Its clock equals the clock
of the gap's end. The death of a learner therefore makes no segment older, however many numbers are skipped.

The state is stored in the store's records file in two copies, so a kill during a write does no harm.

Callers hold the buffer's lock.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.replay.store.layout import MAX_GAPS, ages_copies
from penstock.replay.store.records import KeptTwice
from penstock.types.replay import SamplingPlan


class Ages:
    """Age clock of one store.

    Attributes:
        ends: <int64>[gaps] ends of the gaps, ascending.
        skipped: Total numbers in gaps, which `clock` subtracts from the newest versions.
    """

    def __init__(self, records: NDArray[np.uint8], version: int) -> None:
        """Reads the state that an earlier process left in these mapped records <uint8>[RECORDS_BYTES].

        A gap beyond the store's version is of a session that never began, or the version was set back. It is cut at
        this version, also in the file, because the version will grow past it.

        Raises:
            DamagedFile: Both copies of the record are damaged.
        """
        self._kept = KeptTwice(ages_copies(records))
        self._record: Any = self._kept.record[0]
        count = int(self._record["gaps"])
        starts, ends = self._record["starts"][:count], np.minimum(self._record["ends"][:count], version)
        before = self._record.tobytes()
        self._set_gaps([gap for gap in zip(starts.tolist(), ends.tolist(), strict=True) if gap[0] < gap[1]])
        if self._record.tobytes() != before:
            self._kept.save()

    def clock(self, versions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the clocks <int64>[B] of these versions: each version minus the skipped numbers below it."""
        return versions - self._skipped_below(versions) if self.skipped else versions

    def at(self, version: int) -> int:
        """Returns the clock of one version."""
        return int(self.clock(np.array([version]))[0]) if self.skipped else version

    def between(self, versions: NDArray[np.int64], number: int) -> NDArray[np.int64]:
        """Counts the skipped numbers between each version and `number`.

        Returns:
            <int64>[B] counts, or <int64>[0] if all are zero.
        """
        if not self.skipped or (versions >= self.ends[-1]).all():
            return np.zeros(0, np.int64)
        return self._skipped_below(np.array([number])) - self._skipped_below(versions)

    def oldest(self, number: int, age: int) -> int:
        """Returns the oldest version whose age in batch `number` is at most `age`."""
        clock = self.at(number) - age
        if not self.skipped:
            return clock
        return clock + int(self._below[np.searchsorted(self._starts - self._below[:-1], clock)])

    def oldest_fresh(self, number: int) -> int:
        """Returns the oldest version whose segments are fresh in batch `number`. Older unseen segments are late."""
        lag = int(self._record["lag"])
        if number <= self._record["former_until"]:
            lag = max(lag, int(self._record["former_lag"]))
        return self.oldest(number, lag)

    def skip(self, start: int, end: int) -> None:
        """Adds a gap from `start`, the store's version, to `end`, the next batch."""
        if start >= end:
            return
        gaps = list(zip(self._starts.tolist(), self.ends.tolist(), strict=True))
        if gaps and gaps[-1][1] == start:
            gaps[-1] = (gaps[-1][0], end)
        else:
            gaps.append((start, end))
        if len(gaps) > MAX_GAPS:
            # Ages of segments before and after both gaps stay exact. Segments between them count as younger.
            (first, first_end), (second, second_end) = gaps[:2]
            gaps[:2] = [(second - (first_end - first), second_end)]
        self._set_gaps(gaps)
        self._kept.save()

    def work_by(self, plan: SamplingPlan, next_batch: int) -> None:
        """Sets the largest age of a fresh segment from a plan.

        Windows granted under a former plan keep its bound. They are for batches up to `off_policy_degree` after
        `next_batch`, the first uncommitted batch.
        """
        record = self._record
        before = record.tobytes()
        if record["lag"] > plan.largest_lag:
            former = record["former_lag"] if record["former_until"] >= next_batch else 0
            record["former_lag"] = max(int(former), int(record["lag"]))
            record["former_until"] = max(int(record["former_until"]), next_batch + int(record["degree"]))
        record["lag"], record["degree"] = plan.largest_lag, plan.off_policy_degree
        if record.tobytes() != before:
            self._kept.save()

    def _skipped_below(self, versions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the counts <int64>[B] of numbers below each version that are in gaps."""
        passed = np.searchsorted(self._starts, versions, side="right")
        # Numbers of the last gap begun that are not below the version.
        ahead = np.maximum(np.concatenate([[0], self.ends])[passed] - versions, 0)
        result: NDArray[np.int64] = self._below[passed] - np.where(passed > 0, ahead, 0)
        return result

    def _set_gaps(self, gaps: list[tuple[int, int]]) -> None:
        table = np.array(gaps, np.int64).reshape(-1, 2)
        self._starts, self.ends = table[:, 0].copy(), table[:, 1].copy()
        # Element i is the total size of the first i gaps.
        self._below = np.concatenate([[0], np.cumsum(self.ends - self._starts)])
        self.skipped = int(self._below[-1])
        self._record["gaps"], self._record["starts"], self._record["ends"] = len(gaps), 0, 0
        self._record["starts"][: len(gaps)], self._record["ends"][: len(gaps)] = self._starts, self.ends
