"""The replay buffer: a store of segments whose collection it controls and from which it draws batches.

A row of the store goes through these states, and the calls on the right move it:

    empty -> writing -> unseen -> leased -> seen

    empty   -> writing   Intake.reserve
    writing -> unseen    Intake.seal; to seen at once if the plan's batches take no fresh segments
    writing -> empty     Intake.release, Intake.refuse
    unseen  -> leased    Leases.draw; to seen if the segment is too old to be fresh in the batch
    leased  -> seen      Leases.commit; to unseen if the commit lacks the segment or passes over its batch
    leased  -> unseen    ReplayBuffer.adopt_plan of a new session
    seen    -> writing   Intake.reserve, when the ring reaches the row again
    seen    -> empty     ReplayBuffer.drop, if the segment is damaged

Unseen and leased segments are *fresh* (`segments`). Only seen segments have mass and may be replayed
(`priority_index`). `store.ages` defines the age of a segment.

`ReplayBuffer` owns the one lock, which protects the index, the headers and the tree, and shares it with `Intakes`, the
actors' side, and `Leases`, the learner's. Any thread may call any method, and methods block only on the lock. Columns
are copied outside it.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import SchemaMismatch, Unavailable
from penstock.replay.admission import Gate
from penstock.replay.intake import Intakes
from penstock.replay.leases import Leases
from penstock.replay.ownership import Ownership
from penstock.replay.segments import Segments
from penstock.replay.store.ring_store import RingStore
from penstock.types.replay import Mass, SamplingPlan, StoreCounts
from penstock.types.waits import Awaited


@dataclass(frozen=True, slots=True)
class PlanChange:
    """Effect of a plan that opens a stream.

    Attributes:
        returned: Whether the session had a plan here before.
        recalled: Whether the actors' streams must end, and their grants with them, because the plan differs from the
            former one.
    """

    returned: bool
    recalled: bool


class ReplayBuffer:
    """Store of segments with priorities, which controls their collection and draws training batches.

    `RingStore` has the rows with their headers, and `Segments` what they are used for: `FreshSegments` the order of
    unseen and leased ones, and `PriorityIndex` the masses of seen ones. The gate grants windows to the actors.

    Attributes:
        store: Store of the segments. Its schema and location need no lock.
        ownership: The run of the store, whose learner may use it.
        gate: Gate of the actors. Its counts need no lock.
        intakes: Windows and grants of the actors.
        leases: Batches of the learner.
    """

    def __init__(self, store: RingStore, gate: Gate, unix_s: Callable[[], float] = time.time) -> None:
        self.store, self.gate, self.ownership = store, gate, Ownership(store)
        self._lock = threading.Lock()
        self._segments = Segments(store, gate)
        self.intakes = Intakes(self._segments, self._lock, unix_s)
        self.leases = Leases(self._segments, self._lock)

    # The learner's plan

    def adopt_plan(self, plan: SamplingPlan, prover: bytes = b"", *, connected: bool = False) -> PlanChange:
        """Adopts the plan of a stream. A plan of a new session ends all leases.

        The first plan of a run gives the store its run, with the key that it proves. Only plans that prove this key are
        adopted afterwards, because a plan moves the store's version for good.

        Args:
            plan: Plan of the learner.
            prover: Public half of the key that the learner has proved; empty if none.
            connected: Whether the last session's learner is connected. If so, no other learner may take over.

        Raises:
            ConfigurationError: The plan would deadlock, because the store is too small or an actor's window does not
                fit.
            PermissionDenied: The plan of a run comes without a proof of the run's key.
            SchemaMismatch: The plan belongs to another run, or a new session begins below the store's version or
                further above it than a learner can.
            Unavailable: The learner of another session is connected, or the store's run can't be recorded.
        """
        with self._lock:
            self.ownership.check_run(plan)
            owner = self.ownership.owner_of(plan, prover)
            self._segments.check_capacity(plan)
            former, adopted = self.gate.plan, plan
            if self.session != plan.session or self.store.owner.key not in (b"", owner.key):
                if self._segments.session.used:
                    self.ownership.check_version(plan, self.version)
                if connected:
                    raise Unavailable(
                        "another learner of this run is connected to the replay service; this one can connect when that"
                        " one has ended"
                    )
                self.ownership.record(owner)
                self.gate.adopt(plan)
                self.leases.begin_session(plan)
            else:
                self.ownership.record(owner)
                adopted = self.gate.adjust(plan)
                self.leases.resume_session()
            self._work_by(adopted)
            if former is None:
                return PlanChange(returned=False, recalled=False)
            return PlanChange(returned=former.session == plan.session, recalled=former != plan)

    def check_capacity(self) -> None:
        """Raises `ConfigurationError` if the plan in force would deadlock because the store is too small.

        `adopt_plan` can't tell before the first actor's schema determines how many segments the store holds.
        """
        with self._lock:
            if self.gate.plan is not None:
                self._segments.check_capacity(self.gate.plan)

    def adjust_plan(self, plan: SamplingPlan) -> None:
        """Adopts a changed plan of the same session. Outstanding leases and grants stay valid.

        Raises:
            SchemaMismatch: The plan in force belongs to another session or run.
            ConfigurationError: As `adopt_plan`.
        """
        with self._lock:
            self.ownership.check_run(plan)
            former = self.gate.plan
            if former is None or former.session != plan.session:
                raise SchemaMismatch("another learner session has taken over; only one learner may train a run")
            self._segments.check_capacity(plan)
            self._work_by(self.gate.adjust(plan))

    def _work_by(self, plan: SamplingPlan) -> None:
        segments = self._segments
        segments.ages.work_by(plan, segments.session.next_batch)
        if segments.index is None:
            return
        segments.index.adopt(plan)
        if plan.fresh_segments == 0:
            segments.replay_at_once(segments.fresh.take_all())

    # Status and maintenance

    @property
    def session(self) -> int:
        """Session of the plan in force; 0 before the first."""
        return self._segments.session.session

    @property
    def version(self) -> int:
        """Version of the policy after the last commit, or at the start of the session; 0 before the first."""
        return self._segments.session.version

    @property
    def mass(self) -> Mass:
        """Sum of all masses."""
        return self._segments.index.mass if self._segments.index is not None else Mass()

    def prove_store(self) -> int:
        """Writes a new proof, as `RingStore.prove`."""
        with self._lock:
            return self.store.prove()

    def counts(self) -> StoreCounts:
        """Returns the numbers of segments in the store and in outstanding grants."""
        with self._lock:
            return self._segments.counts()

    def sample_replayable(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Returns the raw priorities, and the ages in versions, of an evenly spaced sample of replayable segments."""
        with self._lock:
            segments, capacity = self._segments, self.store.capacity
            if segments.index is None:
                return np.zeros(0), np.zeros(0, np.int64)
            headers = self.store.headers[segments.index.seen_among(np.arange(0, capacity, 1 + capacity // 4096))]
            ages = segments.ages.at(self.version) - segments.ages.clock(headers["version"])
            return headers["priority"].copy(), ages

    def replayable(self, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Returns the keys <uint64>[...] of the replayable segments in these rows."""
        with self._lock:
            if self._segments.index is None:
                return np.zeros(0, np.uint64)
            keys: NDArray[np.uint64] = self.store.headers["key"][self._segments.index.seen_among(rows)]
            return keys

    def drop(self, keys: NDArray[np.uint64]) -> int:
        """Removes these replayable segments and returns how many of the <uint64>[...] keys were still present."""
        with self._lock:
            index = self._segments.priorities
            rows = index.seen_among(self.store.rows(keys[self.store.present(keys)]))
            index.forget(rows)
            self.store.remove(rows)
            return int(rows.size)

    def drop_without_state(self, rows: NDArray[np.int64]) -> int:
        """Removes segments in these rows whose state is damaged, and returns their number.

        The state of an unseen or leased segment is restored instead.
        """
        with self._lock:
            damaged, index = self.store.without_state(rows), self._segments.index
            if index is None or not damaged.size:
                return 0
            damaged = self._segments.fresh.put_back(damaged)
            index.remove(damaged)
            self.store.remove(damaged)
            return int(damaged.size)

    def collection_waits_for(self) -> Awaited:
        """Returns the reason why collection waits; nothing while actors have grants."""
        with self._lock:
            if self.gate.plan is None:
                return Awaited.LEARNER
            if self.gate.actors == 0:
                return Awaited.ACTORS
            return Awaited.NOTHING if self.gate.granted else Awaited.TRAINING

    def training_waits_for(self) -> Awaited:
        """Returns the reason why the next batch waits; nothing if it can be drawn now."""
        with self._lock:
            plan, index = self.gate.plan, self._segments.index
            if plan is None:
                return Awaited.LEARNER
            if plan.fresh_segments and self._segments.fresh.unseen >= plan.fresh_segments:
                return Awaited.NOTHING
            if plan.fresh_segments == 0 and index is not None and index.ready:
                return Awaited.NOTHING
            return Awaited.FRESH_SEGMENTS if self.gate.actors else Awaited.ACTORS

    def freeze(self, headers: NDArray[Any]) -> NDArray[np.uint8]:
        """Copies the mutable state for a snapshot, as `RingStore.freeze`, under the lock."""
        with self._lock:
            return self.store.freeze(headers)
