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

from penstock.errors import PermissionDenied, SchemaMismatch, Unavailable
from penstock.machine.system_errors import in_words
from penstock.replay.admission import Gate
from penstock.replay.intake import Intakes
from penstock.replay.leases import Leases
from penstock.replay.segments import VERSIONS_AHEAD, Segments
from penstock.replay.store.description import NO_OWNER, Owner
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

    Attributes:
        store: Store of the segments. Its schema and location need no lock.
        gate: Gate of the actors. Its counts need no lock.
        intakes: Windows and grants of the actors.
        leases: Batches of the learner.
    """

    def __init__(self, store: RingStore, gate: Gate, unix_s: Callable[[], float] = time.time) -> None:
        self.store, self.gate = store, gate
        self._lock = threading.Lock()
        self._segments = Segments(store, gate)
        self.intakes = Intakes(self._segments, self._lock, unix_s)
        self.leases = Leases(self._segments, self._lock)

    # The learner's plan

    def check_holder(self, call: str, prover: bytes) -> None:
        """Checks that the caller holds the key of the store's run. A store without a run admits every caller.

        Args:
            call: Name of the call.
            prover: Public half of the key that the caller has proved; empty if none.

        Raises:
            PermissionDenied: The caller has not proved that key.
        """
        owner = self.store.owner
        if owner.run and (not prover or prover != owner.key):
            raise _unproved(call, owner.run, prover)

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
            self._check_run(plan)
            owner = Owner(plan.run, prover) if plan.run else NO_OWNER
            self._check_owner(owner)
            self._segments.check_capacity(plan)
            former, adopted = self.gate.plan, plan
            if self.session != plan.session or self.store.owner.key not in (b"", owner.key):
                self._check_successor(plan, connected)
                self._record(owner)
                self.gate.adopt(plan)
                self.leases.begin_session(plan)
            else:
                self._record(owner)
                adopted = self.gate.adjust(plan)
                self.leases.resume_session()
            self._work_by(adopted, new_stream=True)
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
            self._check_run(plan)
            former = self.gate.plan
            if former is None or former.session != plan.session:
                raise SchemaMismatch("another learner session has taken over; only one learner may train a run")
            self._segments.check_capacity(plan)
            self._work_by(self.gate.adjust(plan), new_stream=False)

    def _work_by(self, plan: SamplingPlan, *, new_stream: bool) -> None:
        segments = self._segments
        segments.ages.work_by(plan, segments.session.next_batch)
        if segments.index is None:
            return
        if new_stream:
            segments.index.adopt(plan)
        else:
            segments.index.adjust(plan)
        if plan.fresh_segments == 0:
            segments.replay_at_once(segments.fresh.take_all())

    def _check_run(self, plan: SamplingPlan) -> None:
        run = self.store.owner.run
        if self._is_taken and run and plan.run != run:
            theirs = f"run {plan.run:016x}" if plan.run else "a run without an identity"
            raise SchemaMismatch(
                f"this store belongs to run {run:016x}, and the learner to {theirs}; resume the former, or"
                " give the latter another replay.folder"
            )

    @property
    def _is_taken(self) -> bool:
        """Whether the store has had an actor. Until then it holds no data, and may pass to another run."""
        return self.store.schema is not None

    def _check_owner(self, owner: Owner) -> None:
        known = self.store.owner.key
        if owner.run and (not owner.key or (self._is_taken and known and owner.key != known)):
            raise _unproved("SampleBatches", owner.run, owner.key)

    def _record(self, owner: Owner) -> None:
        if owner != self.store.owner:
            try:
                self.store.belong_to(owner)
            except OSError as error:
                raise Unavailable(
                    f"the run of the store can't be recorded in {self.store.folder}:"
                    f" {in_words(error, self.store.folder)}"
                ) from None

    def _check_successor(self, plan: SamplingPlan, connected: bool) -> None:
        # A session may begin a store without data at any version.
        if self._is_taken and self._segments.session.used:
            self._check_version(plan)
        if connected:
            raise Unavailable(
                "another learner of this run is connected to the replay service; this one can connect when that one"
                " has ended"
            )

    def _check_version(self, plan: SamplingPlan) -> None:
        # A learner that resumes a run begins above all versions that it may have published.
        if self.version <= plan.next_batch <= self.version + VERSIONS_AHEAD:
            return
        found = f"this store was trained up to version {self.version}, and the learner begins at {plan.next_batch}"
        if not self.store.owner.run:
            remedy = "the store may be another run's: resume that run"
        elif plan.next_batch < self.version:
            remedy = "both are of this run, whose folder lacks its newest files: restore these"
        else:
            remedy = "both are of this run, and the store is an older copy: restore the newer one"
        if plan.next_batch > self.version:
            found = f"the learner begins at version {plan.next_batch}, and this store was trained up to {self.version}"
        remedy += ", or give the learner another replay.folder"
        if self.store.folder is not None:
            remedy += (
                "; to keep this store, stop its service and run penstock replay reset-version"
                f" {self.store.folder} --to {plan.next_batch}"
            )
        raise SchemaMismatch(f"{found}; {remedy}")

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


def _unproved(call: str, run: int, prover: bytes) -> PermissionDenied:
    came = "with a proof of another key" if prover else "without one"
    return PermissionDenied(
        f"{call} needs a proof of the key of run {run:016x}, and came {came}; only the run's learner has the key, in"
        " identity.json of the run's folder"
    )
