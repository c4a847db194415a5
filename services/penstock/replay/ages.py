"""How old segments are: the age clock of one store, and how old a segment may be that counts as fresh.

Ages are not differences of versions. A learner that was replaced begins at a version that was never used, and the
numbers in between belong to no batch. They are a *gap*, and the age clock leaves gaps out:

    clock(v) = v - how many numbers below v are in a gap        age of v in batch k = clock(k) - clock(v)

A version within a gap was published by a learner that died before its batch was committed; it has the clock of the
gap's end. So the death of a learner, however many numbers it costs, makes no segment older.

What is known stands in the store's records file, as `records` keeps it: a kill in the middle of a write does no harm.

Called by `replay.buffer` and its parts, under the buffer's lock.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.replay.layout import MAX_GAPS, ages_copies
from penstock.replay.records import KeptTwice
from penstock.types import SamplingPlan


class Ages:
    """The age clock of one store.

    Attributes:
        skipped: Numbers in all gaps: what `clock` takes off the newest versions.
    """

    def __init__(self, records: NDArray[np.uint8], version: int) -> None:
        """Reads what an earlier process left.

        Args:
            records: <uint8>[RECORDS_BYTES] of the store, mapped.
            version: The store's. A gap that goes beyond it was of a session that did not begin, and counts up to it.

        Raises:
            DamagedFile: Both copies of the record are damaged.
        """
        self._kept = KeptTwice(ages_copies(records))
        self._record: Any = self._kept.record[0]
        count = int(self._record["gaps"])
        starts, ends = self._record["starts"][:count], np.minimum(self._record["ends"][:count], version)
        self._set_gaps([gap for gap in zip(starts.tolist(), ends.tolist(), strict=True) if gap[0] < gap[1]])

    def clock(self, versions: NDArray[np.int64]) -> NDArray[np.int64]:
        """<int64>[B] of these versions: their numbers without those in gaps."""
        return versions - self._skipped_below(versions) if self.skipped else versions

    def at(self, version: int) -> int:
        """The clock of one version."""
        return int(self.clock(np.array([version]))[0]) if self.skipped else version

    def between(self, versions: NDArray[np.int64], number: int) -> NDArray[np.int64]:
        """<int64>[B] how many of the numbers from each version to `number` are in gaps; <int64>[0] if none is."""
        if not self.skipped or (versions >= self._ends[-1]).all():
            return np.zeros(0, np.int64)
        return self._skipped_below(np.array([number])) - self._skipped_below(versions)

    def oldest(self, number: int, age: int) -> int:
        """The oldest version whose age in batch `number` is at most this."""
        clock = self.at(number) - age
        if not self.skipped:
            return clock
        return clock + int(self._below[np.searchsorted(self._starts - self._below[:-1], clock)])

    def oldest_fresh(self, number: int) -> int:
        """The oldest version whose segments count as fresh in batch `number`; what is older is late."""
        lag = int(self._record["lag"])
        if number <= self._record["former_until"]:
            lag = max(lag, int(self._record["former_lag"]))
        return self.oldest(number, lag)

    @property
    def last_skip(self) -> int:
        """Where the last gap ends; 0 if there is none."""
        return int(self._ends[-1]) if self.skipped else 0

    def skip(self, start: int, end: int) -> None:
        """Makes a gap of the numbers from `start`, which is the store's version, to `end`, which is the next batch."""
        if start >= end:
            return
        gaps = list(zip(self._starts.tolist(), self._ends.tolist(), strict=True))
        if gaps and gaps[-1][1] == start:
            gaps[-1] = (gaps[-1][0], end)
        else:
            gaps.append((start, end))
        if len(gaps) > MAX_GAPS:
            # What came before both keeps its age, and so does what came after; what came between is taken for younger.
            (first, first_end), (second, second_end) = gaps[:2]
            gaps[:2] = [(second - (first_end - first), second_end)]
        self._set_gaps(gaps)
        self._kept.save()

    def work_by(self, plan: SamplingPlan, next_batch: int) -> None:
        """Judges by this plan what is late.

        Windows that were granted under a former plan are judged by its bound still: they are for batches up to
        `off_policy_degree` ahead of `next_batch`, the first that is not committed.
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
        """<int64>[B] how many numbers below each version are in gaps."""
        passed = np.searchsorted(self._starts, versions, side="right")
        # Of the last gap that has begun, the numbers that are not below the version yet.
        ahead = np.maximum(np.concatenate([[0], self._ends])[passed] - versions, 0)
        result: NDArray[np.int64] = self._below[passed] - np.where(passed > 0, ahead, 0)
        return result

    def _set_gaps(self, gaps: list[tuple[int, int]]) -> None:
        table = np.array(gaps, np.int64).reshape(-1, 2)
        self._starts, self._ends = table[:, 0].copy(), table[:, 1].copy()
        # [i]: numbers in the first i gaps.
        self._below = np.concatenate([[0], np.cumsum(self._ends - self._starts)])
        self.skipped = int(self._below[-1])
        self._record["gaps"], self._record["starts"], self._record["ends"] = len(gaps), 0, 0
        self._record["starts"][: len(gaps)], self._record["ends"][: len(gaps)] = self._starts, self._ends
