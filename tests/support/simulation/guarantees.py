"""The guarantees of the replay services, checked after every event of a simulation.

`Ledger` has what actors sent and were promised, and what learners trained. `StoreCheck` compares each state of a store
with the state before: which segments came, were trained and were overwritten, and which commits were applied. Neither
asks the code that it checks what should have happened.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.replay.buffer import ReplayBuffer
from penstock.replay.store.layout import HEADER, State
from penstock.types.replay import Batch, SamplingPlan
from penstock.types.run import Assignment

Name = tuple[int, int, int]
"""(slot, incarnation, sequence) of a segment."""

_UNSEEN, _LEASED, _SEEN = int(State.UNSEEN), int(State.LEASED), int(State.SEEN)


@dataclass(slots=True)
class Ledger:
    """What the simulated actors and learners have done.

    Attributes:
        violations: Guarantees that did not hold.
        collected: Version of each segment that was sent.
        acknowledged: Last acknowledged sequence of each (slot, incarnation).
        commits: Priorities by key of each batch that was trained, by session and number.
        published: Session of each version.
        applied: Batches whose commits were applied, in this order.
    """

    violations: list[str] = field(default_factory=list)
    collected: dict[Name, int] = field(default_factory=dict)
    acknowledged: dict[tuple[int, int], int] = field(default_factory=dict)
    commits: dict[tuple[int, int], dict[int, float]] = field(default_factory=dict)
    published: dict[int, int] = field(default_factory=dict)
    applied: list[int] = field(default_factory=list)

    def publishes(self, version: int, session: int) -> None:
        """Records that a learner publishes a version, which none has used before."""
        if self.published.setdefault(version, session) != session:
            self.violations.append(f"version {version} was published by two learners")

    def trains(self, plan: SamplingPlan, version: int, batch: Batch, priorities: NDArray[np.float64]) -> None:
        """Records a batch that a learner has trained at a version, and checks its content."""
        if batch.number != version:
            self.violations.append(f"batch {batch.number} came at version {version}")
        fresh, columns = batch.fresh_segments, batch.columns
        names = columns.column("name").reshape(-1, 3)
        versions: NDArray[np.int64] = columns.column("version").reshape(-1).astype(np.int64)
        for index, (name, seen) in enumerate(zip(names.tolist(), versions.tolist(), strict=True)):
            if self.collected.get(tuple(name)) != seen or batch.head.versions[index] != seen:
                self.violations.append(f"batch {batch.number} has other content than segment {name} of version {seen}")
        if fresh > plan.fresh_segments or (batch.ages[:fresh] > plan.largest_lag).any():
            self.violations.append(f"batch {batch.number} has {fresh} fresh segments of the ages {batch.ages[:fresh]}")
        if (batch.ages > batch.number - versions).any() or (batch.ages < self._applied_since(versions)).any():
            self.violations.append(f"batch {batch.number} has ages {batch.ages} for the versions {versions}")
        self.commits[plan.session, version] = dict(zip(batch.keys.tolist(), priorities.tolist(), strict=True))

    def _applied_since(self, versions: NDArray[np.int64]) -> NDArray[np.int64]:
        since: NDArray[np.int64] = np.sum(np.array(self.applied, np.int64)[None, :] >= versions[:, None], axis=1)
        return since


class StoreCheck:
    """The state of one store after the last event. A store in memory begins anew with its process."""

    def __init__(self, ledger: Ledger, name: str) -> None:
        self._ledger, self._name = ledger, name
        # Of former stores too, whose acknowledgements may be under way when they are lost.
        self._ever_stored: set[Name] = set()
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forgets the store, which was lost."""
        self._headers: NDArray[Any] = np.zeros(0, HEADER)
        self._version, self._session, self._next_batch = 0, 0, 0
        self._stored: set[Name] = set()
        self._expected: dict[int, float] = {}
        self._watermarks: dict[tuple[int, int], int] = {}

    def check(self, buffer: ReplayBuffer) -> None:
        """Compares the store's state with its last one."""
        store, segments, record = buffer.store, buffer._segments, buffer.store.session
        gate, counts = buffer.gate, buffer.counts()
        outstanding, plan = counts.granted + counts.unseen + counts.leased + segments.writing, gate.plan
        if plan is not None and outstanding > (plan.off_policy_degree + 1) * plan.fresh_segments:
            self._violated(f"{counts} and {segments.writing} arriving exceed (d + 1) F of {plan}")
        if counts.granted != sum(len(actor.grants) * actor.window_segments for actor in gate._actors.values()):
            self._violated(f"{counts.granted} segments are granted, and actors have other grants")
        if record.version < self._version:
            self._violated(f"the version fell from {self._version} to {record.version}")
        if record.session == self._session:
            for number in range(self._next_batch, record.next_batch):
                self._apply(record.session, number)
        self._version, self._session, self._next_batch = record.version, record.session, record.next_batch
        if store.capacity and store.headers.tobytes() != self._headers.tobytes():
            self._compare(store.headers.copy())
            self._check_sums(buffer, store.headers)

    def check_acknowledged(self, place: Assignment, sequence: int) -> None:
        """Checks that segments which an actor was just told to be stored are."""
        key = (place.slot, place.incarnation)
        for number in range(self._ledger.acknowledged.get(key, 0) + 1, sequence + 1):
            if (*key, number) not in self._ever_stored:
                self._violated(f"segment {(*key, number)} was acknowledged and is not stored")
        self._ledger.acknowledged[key] = max(sequence, self._ledger.acknowledged.get(key, 0))

    def _apply(self, session: int, number: int) -> None:
        ledger = self._ledger
        if (session, number) not in ledger.commits:
            self._violated(f"batch {number} was committed by no learner")
        if ledger.applied and number <= ledger.applied[-1]:
            self._violated(f"the commit of batch {number} was applied after that of batch {ledger.applied[-1]}")
        ledger.applied.append(number)
        self._expected |= ledger.commits.get((session, number), {})

    def _compare(self, headers: NDArray[Any]) -> None:
        former, self._headers = self._headers, headers
        if not former.size:
            former = np.zeros_like(headers)
        changed = np.flatnonzero((former["key"] != headers["key"]) | (former["state"] != headers["state"]))
        for row in changed[np.argsort(headers["key"][changed])].tolist():
            old, new = former[row], headers[row]
            key, state = int(new["key"]), int(new["state"])
            if old["key"] and old["key"] != key and old["state"] != _SEEN:
                self._violated(f"segment {_name(old)} was lost before it was trained")
            if not key:
                continue
            if old["key"] != key:
                self._arrive(new)
            elif old["state"] == _SEEN:
                self._violated(f"segment {_name(new)} is fresh again after it was trained")
            elif old["state"] == _LEASED and state == _SEEN and key not in self._expected:
                self._violated(f"segment {_name(new)} counts as trained without a commit")
            elif old["state"] == _UNSEEN and state == _SEEN:
                # It is late, and replayed at the priority that the store gives it.
                self._expected[key] = float(new["priority"])
        for row in np.flatnonzero((headers["key"] != 0) & (headers["state"] == _SEEN)).tolist():
            if self._expected.get(key := int(headers["key"][row])) != headers["priority"][row]:
                self._violated(f"key {key} has the priority {headers['priority'][row]}, not {self._expected.get(key)}")

    def _arrive(self, header: Any) -> None:
        name = _name(header)
        if name in self._stored:
            self._violated(f"segment {name} is stored twice")
        if self._ledger.collected.get(name) != header["version"]:
            self._violated(f"segment {name} of version {header['version']} was not sent")
        if header["state"] != _UNSEEN:
            self._violated(f"segment {name} is not fresh at its arrival")
        expected = self._watermarks.get(name[:2], 0) + 1
        if name[2] != expected:
            self._violated(f"segment {name} came in place of sequence {expected}")
        self._watermarks[name[:2]] = name[2]
        self._stored.add(name)
        self._ever_stored.add(name)

    def _check_sums(self, buffer: ReplayBuffer, headers: NDArray[Any]) -> None:
        index, fresh = buffer._segments.priorities, buffer._segments.fresh
        present = headers["key"] != 0
        counted = [np.count_nonzero(present & (headers["state"] == state)) for state in (_UNSEEN, _LEASED, _SEEN)]
        if counted != [fresh.unseen, fresh.leased, index.seen]:
            self._violated(f"the rows are {counted}, and counted as {fresh.unseen, fresh.leased, index.seen}")
        masses = index._tree.masses
        if abs(masses.sum() - index._tree.total) > 1e-9 * max(1.0, index._tree.total):
            self._violated(f"the root is {index._tree.total}, and the sum of the leaves {masses.sum()}")
        if masses[~(present & (headers["state"] == _SEEN))].any():
            self._violated("a segment that may not be replayed has mass")

    def _violated(self, what: str) -> None:
        self._ledger.violations.append(f"{self._name}: {what}")


def _name(header: Any) -> Name:
    return int(header["slot"]), int(header["incarnation"]), int(header["sequence"])
