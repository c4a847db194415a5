"""A record of what was sent, acknowledged, handed out and committed: the oracle of the service.

Plain dicts, one lock, and no code of the service. Every violated guarantee is a line in `violations`. The threads of
the actors, of the learner and of the test call it.
"""

import threading
from collections import Counter, deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tests.support.torture.content import names_of, parts_of

_HISTORY = 24
"""Priorities remembered per segment; a learner makes fewer commits than this between a draw and its arrival."""

MAX_VIOLATIONS = 50


@dataclass(slots=True)
class Stay:
    """One incarnation of one slot: the last sequence sent, and the last one known to be stored."""

    sent: int = 0
    stored: int = 0
    settled: int = 0


@dataclass(frozen=True, slots=True)
class SentCommit:
    """A commit.

    Attributes:
        id: Number of the commit, counted over all learners.
        batch: Number of the batch.
        fresh: Names that it commits as fresh.
        keys: Number of its segments.
    """

    id: int
    batch: int
    fresh: tuple[int, ...]
    keys: int


@dataclass
class Ledger:
    """Expected content of the store, known without reading it.

    Attributes:
        capacity: Rows of the ring; 0 before it is known.
        sessions, trained_until: First version of each learner, and the version up to which it trained.
        violations: Violated guarantees.
        events: Counters of events.
    """

    capacity: int = 0
    violations: list[str] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)
    lock: threading.RLock = field(default_factory=threading.RLock)
    stays: dict[tuple[int, int], Stay] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)
    late: set[int] = field(default_factory=set)
    name_of: dict[int, int] = field(default_factory=dict)
    key_of: dict[int, int] = field(default_factory=dict)
    priorities: dict[int, deque[tuple[int, float]]] = field(default_factory=dict)
    in_flight: deque[SentCommit] = field(default_factory=deque)
    unknown: set[int] = field(default_factory=set)
    unknown_names: set[int] = field(default_factory=set)
    next_commit: int = 1
    resolved: int = 0
    highest_leased: int = 0
    sessions: list[int] = field(default_factory=list)
    trained_until: list[int] = field(default_factory=list)

    def violated(self, what: str) -> None:
        """Records a violated guarantee."""
        with self.lock:
            self.events["violations"] += 1
            if len(self.violations) < MAX_VIOLATIONS:
                self.violations.append(what)
                print(f"VIOLATION: {what}", flush=True)

    # Actors

    def sending(self, slot: int, incarnation: int, last: int) -> None:
        """Records that a window up to this sequence is about to be sent."""
        with self.lock:
            self.stays.setdefault((slot, incarnation), Stay()).sent = last

    def acknowledged(self, slot: int, incarnation: int, last: int) -> None:
        """Records that everything up to this sequence was acknowledged."""
        with self.lock:
            stay = self.stays[slot, incarnation]
            stay.stored = max(stay.stored, last)

    # Learners

    def begins_at(self, version: int) -> None:
        """Records that a learner begins at this version."""
        with self.lock:
            self.sessions.append(version)
            self.trained_until.append(version)

    def trained_since(self, versions: NDArray[np.int64], number: int) -> NDArray[np.int64]:
        """Returns the number of batches trained from each version to a batch, <int64>[B]."""
        with self.lock:
            starts, ends = np.array(self.sessions), np.array(self.trained_until)
        ends[-1] = max(ends[-1], number)
        lower, upper = np.maximum(versions[:, None], starts), np.minimum(number, ends)
        result: NDArray[np.int64] = np.maximum(upper - lower, 0).sum(axis=1)
        return result

    def sessions_since(self, versions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the number of learners that began since each version, <int64>[B]."""
        with self.lock:
            result: NDArray[np.int64] = np.sum(versions[:, None] < np.array(self.sessions), axis=1)
            return result

    def record_key(self, key: int, name: int) -> None:
        """Records a segment under this key; each name has one key, and each key one name."""
        with self.lock:
            if self.name_of.setdefault(key, name) != name:
                self.violated(f"key {key} was {parts_of(self.name_of[key])} and is {parts_of(name)} now")
            if self.key_of.setdefault(name, key) != key:
                self.violated(f"segment {parts_of(name)} is stored twice: keys {self.key_of[name]} and {key}")

    def handed_out_fresh(self, name: int, batch: int) -> None:
        """Records that a batch contained this segment as fresh."""
        with self.lock:
            slot, incarnation, sequence = parts_of(name)
            stay = self.stays.get((slot, incarnation))
            if stay is None or sequence > stay.sent:
                self.violated(f"batch {batch} has segment {parts_of(name)}, which was not sent")
            if name in self.committed:
                self.violated(f"batch {batch} has segment {parts_of(name)} as fresh, although it was committed before")
            if name in self.late:
                self.violated(f"batch {batch} has segment {parts_of(name)} as fresh, although it was late before")

    def committing(self, batch: int, fresh: NDArray[np.int64], priorities: dict[int, float]) -> None:
        """Records that a commit is about to be sent."""
        with self.lock:
            given = SentCommit(self.next_commit, batch, tuple(fresh.tolist()), len(priorities))
            self.trained_until[-1] = batch + 1
            self.next_commit += 1
            self.in_flight.append(given)
            for key, priority in priorities.items():
                self.priorities.setdefault(key, deque(maxlen=_HISTORY)).append((given.id, priority))

    def commit_answered(self) -> None:
        """Records that the oldest commit in flight was answered: it was applied, now or when it first arrived."""
        with self.lock:
            done = self.in_flight.popleft()
            self.resolved = done.id
            for name in done.fresh:
                if name in self.committed:
                    self.violated(f"segment {parts_of(name)} was committed as fresh twice, now in batch {done.batch}")
                self.committed.add(name)
            self.events["commits"] += 1
            self.events["fresh committed"] += len(done.fresh)

    def abandoned(self) -> None:
        """Records that the learner died: it is unknown which of its commits in flight arrived."""
        with self.lock:
            for given in self.in_flight:
                self.unknown.add(given.id)
                self.unknown_names.update(given.fresh)
            self.in_flight.clear()

    def is_possible(self, key: int, priority: float, since: int, may_be_late: bool) -> bool:
        """Returns whether a segment may have this priority.

        Args:
            key: Key of the segment.
            priority: Priority found.
            since: Number of a commit; all up to this one had been answered when the priority was read.
            may_be_late: Whether the segment may have become replay without a commit, at a default priority.
        """
        with self.lock:
            for number, given in reversed(self.priorities.get(key, ())):
                if given == priority:
                    return True
                if number <= since and number not in self.unknown:
                    return False
            return may_be_late

    def priorities_of(self, key: int) -> list[float]:
        """Returns the latest priorities that were committed for a segment."""
        with self.lock:
            return [priority for _, priority in self.priorities.get(key, ())]

    def forget(self, below: int) -> None:
        """Drops the records of segments with keys below this one, which were overwritten long ago."""
        with self.lock:
            for key in [key for key in self.name_of if key < below]:
                self.key_of.pop(self.name_of.pop(key), None)
                self.priorities.pop(key, None)

    # After a kill

    def settle(self, waiting: set[int], trained: set[int], marks: dict[tuple[int, int], int]) -> int:
        """Accounts for every segment that was acknowledged.

        Args:
            waiting: Names that the store holds unseen or leased.
            trained: Names that it holds as seen.
            marks: Last stored sequence by slot and incarnation, from the store.

        Returns:
            Number of segments that ever became replay without having been committed, which are late ones.
        """
        with self.lock:
            pending = {name for given in self.in_flight for name in given.fresh}
            for name in waiting & (self.committed | self.late):
                self.violated(f"segment {parts_of(name)} is fresh again after its commit")
            for (slot, incarnation), stay in self.stays.items():
                stored = marks.get((slot, incarnation), stay.stored)
                if not stay.stored <= stored <= stay.sent:
                    self.violated(
                        f"slot {slot} incarnation {incarnation} has watermark {stored}, but {stay.stored} was"
                        f" acknowledged and {stay.sent} sent"
                    )
                stay.stored = max(stay.stored, stored)
                self._settle_stay(
                    stay,
                    names_of(slot, incarnation, 1 + stay.settled, stored - stay.settled).tolist(),
                    waiting,
                    trained,
                    pending,
                )
            return len(self.late)

    def _settle_stay(
        self, stay: Stay, names: list[int], waiting: set[int], trained: set[int], pending: set[int]
    ) -> None:
        first_open = None
        for name in names:
            if name in self.committed:
                pass
            elif name in waiting or name in pending:
                first_open = first_open if first_open is not None else name
            elif name in self.unknown_names:
                # It is not waiting, so the dead learner's commit arrived.
                self.committed.add(name)
            else:
                self.late.add(name)
        done = parts_of(first_open)[2] - 1 if first_open is not None else (parts_of(names[-1])[2] if names else 0)
        stay.settled = max(stay.settled, done)
