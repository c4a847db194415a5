"""The replay buffer: store, fresh segments, priorities and gate as one thing, behind one lock.

A segment is unseen when it arrives, leased when a batch takes it as fresh (`fresh_segments`), and seen once that batch
is committed; from then on it has mass and may be replayed (`priority_index`). Any thread may call any method. Nothing
here blocks but for the lock, which covers index, headers and tree, never the copying of a batch: `gather` runs outside
it, and checks afterwards that no row was overwritten.
"""

import threading

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigurationError, InvalidSegment, NotReady, Overloaded, SchemaMismatch
from penstock.replay.admission import ActorKey, Gate
from penstock.replay.fresh_segments import FreshSegments, Lease
from penstock.replay.priority_index import PriorityIndex
from penstock.replay.ring_store import RingStore, State
from penstock.types import Batch, Columns, CommitOutcome, Grant, SamplingPlan, Schema, StoreCounts, Window

MAX_LEASES = 64
"""Batches that may be asked for and not committed; a learner stays one or two ahead."""

_REDRAWS = 8

_VERSIONS_AHEAD = 1_000
"""A learner publishes a version before it commits it, and may have restarted higher; more than this is a mistake."""


class ReplayBuffer:
    """Segments, their priorities, and who may add and draw them."""

    def __init__(self, store: RingStore, gate: Gate) -> None:
        self._lock = threading.Lock()
        self._store = store
        self._gate = gate
        self._index: PriorityIndex | None = None
        self._fresh = FreshSegments(store)
        # The newest rows may be damaged and dropped; their keys are not to be used again.
        keys = store.headers["key"]
        self._next_key = max(int(store.session["inserted"][0]), int(keys.max(initial=0))) + 1
        self._stored = int(np.count_nonzero(keys))
        self._next_lease = 0
        self.ignored_priorities = 0
        self.refunded_leases = 0
        if store.schema is not None:
            self._index = PriorityIndex(store)

    # Actors

    def open_actor(self, key: ActorKey, schema: Schema, window_segments: int, now: float) -> int:
        """Connects an actor; returns the last sequence that is stored for it.

        Raises:
            SchemaMismatch: The store holds another schema, or a later incarnation has the slot.
            ConfigurationError, Overloaded: As `Gate.connect`.
            InvalidSegment: The window has no segments, or more than the store.
        """
        with self._lock:
            self._store.adopt(schema)
            if self._gate.plan is not None:
                self._check_capacity(self._gate.plan)
            if self._index is None:
                self._index = PriorityIndex(self._store)
                if self._gate.plan is not None:
                    self._index.adopt(self._gate.plan)
            if not 0 < window_segments <= self._store.capacity:
                raise InvalidSegment(
                    f"a window must have 1 to {self._store.capacity} segments, slot {key.slot} announced"
                    f" {window_segments}"
                )
            watermark = self._store.watermark(key.slot, key.incarnation)
            self._gate.connect(key, window_segments, now)
            return watermark

    def close_actor(self, key: ActorKey) -> None:
        """Disconnects an actor; its grants return."""
        with self._lock:
            self._gate.disconnect(key)

    def heard(self, key: ActorKey, now: float) -> None:
        """Notes a sign of life of an actor."""
        with self._lock:
            self._gate.heard(key, now)

    def issue_grants(self, now: float) -> list[tuple[ActorKey, Grant]]:
        """Takes back the grants of the silent and hands out all that there is room for."""
        with self._lock:
            self._gate.expire(now)
            return self._gate.issue(self._fresh.unseen + self._fresh.leased, self._uncommitted_batch)

    def append(self, window: Window, now: float) -> int | None:
        """Stores a window under the actor's oldest grant.

        Returns:
            The last sequence stored for this actor, or None if it has no grant to spend: offer the window again later.

        Raises:
            InvalidSegment: The sequence leaves a gap, or the version is one that no learner can have published.
            SchemaMismatch: A later incarnation has the slot.
            Overloaded: The row to overwrite has not been trained yet.
        """
        key, count = ActorKey(window.slot, window.incarnation), window.columns.segments
        with self._lock:
            self._gate.heard(key, now)
            watermark = self._store.watermark(window.slot, window.incarnation)
            if window.first_sequence > watermark + 1:
                raise InvalidSegment(
                    f"slot {window.slot} sent sequence {window.first_sequence} after {watermark}: {watermark + 1} was"
                    " expected"
                )
            if window.version > self.version + _VERSIONS_AHEAD:
                raise InvalidSegment(
                    f"slot {window.slot} sent version {window.version}, and {self.version} was committed last"
                )
            first = watermark + 1 - window.first_sequence
            if first >= count:
                return watermark
            if not self._gate.spend(key):
                return None
            keys = np.arange(self._next_key, self._next_key + count - first, dtype=np.uint64)
            overwritten = self._priorities.seen_among(self._store.rows(keys))
            self._store.write(keys, window, first)
            self._priorities.forget(overwritten)
            self._next_key += keys.size
            self._stored += keys.size - overwritten.size
            self._store.session["inserted"] += np.uint64(keys.size)
            self._fresh.arrived(keys)
            return window.first_sequence + count - 1

    # The learner

    def adopt_plan(self, plan: SamplingPlan) -> None:
        """Works by this plan from now on. A session other than the last gives back all leases.

        Raises:
            ConfigurationError: The plan would deadlock: the store is too small for it, or an actor's window does not
                fit.
        """
        with self._lock:
            self._check_capacity(plan)
            record = self._store.session
            if plan != self._gate.plan:
                self._gate.adopt(plan)
            if int(record["session"][0]) != plan.session:
                self.refunded_leases += self._fresh.refund()
                record["session"], record["next_batch"] = plan.session, plan.next_batch
                record["version"] = plan.next_batch
            else:
                self._fresh.restore()
            self._next_lease = self._fresh.next_number(self._uncommitted_batch)
            if self._index is not None:
                self._index.adopt(plan)

    def _check_capacity(self, plan: SamplingPlan) -> None:
        needed = plan.outstanding_limit + plan.batch_segments
        if self._store.schema is not None and needed > self._store.capacity:
            raise ConfigurationError(
                f"the store holds {self._store.capacity} segments, and off_policy_degree {plan.off_policy_degree} with"
                f" batches of {plan.batch_segments} needs {needed}; raise replay.capacity_bytes"
            )

    def lease(self, number: int) -> Lease | None:
        """Makes up batch `number` and leases it; a batch that is leased already is handed out again.

        Returns:
            The lease, or None while there are not enough fresh segments.

        Raises:
            NotReady: No plan came yet.
            InvalidSegment: The batch was committed already, or is not the next one.
            Overloaded: Too many batches are leased and not committed.
        """
        with self._lock:
            plan = self._gate.plan
            if plan is None:
                raise NotReady("no sampling plan came yet; the stream must open with one")
            if (lease := self._fresh.lease_of(number)) is not None:
                return lease
            if number != self._next_lease:
                raise InvalidSegment(f"batch {number} was asked for, and {self._next_lease} is next")
            if self._fresh.leases >= MAX_LEASES:
                raise Overloaded(f"{MAX_LEASES} batches are leased and not committed; commit some first")
            self._retire_late(plan, number)
            fresh = self._fresh.take(number, plan.fresh_segments)
            if fresh is None:
                return None
            replayed, probabilities = self._priorities.draw(number, plan.replay_segments, attempt=0)
            keys = np.concatenate([fresh, replayed])
            headers = self._store.headers[self._store.rows(keys)]
            lease = Lease(
                number=number,
                fresh_segments=fresh.size,
                keys=keys,
                versions=headers["version"].copy(),
                priorities=headers["priority"].copy(),
                probabilities=np.concatenate([np.ones(fresh.size), probabilities]),
            )
            self._fresh.open(lease)
            self._next_lease = number + 1
            return lease

    def _retire_late(self, plan: SamplingPlan, number: int) -> None:
        """What is too old to be fresh becomes replay, at the largest priority present."""
        rows = self._fresh.take_late(plan, number)
        if rows.size:
            self._store.session["late"] += np.uint64(rows.size)
            self._priorities.mark_seen(rows, np.full(rows.size, self._priorities.largest_priority))

    def gather(self, lease: Lease, into: Columns, part: int = 0, parts: int = 1) -> Batch:
        """Copies a lease's columns, without the lock, and draws again what was overwritten meanwhile.

        Args:
            lease: From `lease`.
            into: Columns for as many segments as the part has; they become the batch's.
            part: First segment of the share of one of several learner ranks.
            parts: How many ranks there are; a share is every `parts`-th segment from `part` on.

        Raises:
            Overloaded: Rows are overwritten faster than they are read.
        """
        chosen = slice(part, None, parts)
        for attempt in range(1, _REDRAWS + 1):
            self._store.gather(self._store.rows(lease.keys[chosen]), into)
            if self._store.present(lease.keys[chosen]).all():
                break
            with self._lock:
                self._replace_overwritten(lease, part, parts, attempt)
        else:
            raise Overloaded("rows are overwritten faster than they can be read; raise replay.capacity_bytes")
        fresh = len(range(part, lease.fresh_segments, parts))
        return Batch(
            number=lease.number,
            fresh_segments=fresh,
            keys=lease.keys[chosen].copy(),
            versions=lease.versions[chosen].copy(),
            priorities=lease.priorities[chosen].copy(),
            probabilities=lease.probabilities[chosen].copy(),
            counts=self.counts(),
            columns=into,
        )

    def _replace_overwritten(self, lease: Lease, part: int, parts: int, attempt: int) -> None:
        # Only this part's: another rank may have been sent the others already.
        mine = np.arange(part, lease.keys.size, parts)
        gone = mine[~self._store.present(lease.keys[mine])]
        keys, probabilities = self._priorities.draw(lease.number, gone.size, attempt * parts + part)
        if keys.size == 0:
            raise Overloaded("every replayable segment was overwritten; raise replay.capacity_bytes")
        headers = self._store.headers[self._store.rows(keys)]
        lease.keys[gone], lease.probabilities[gone] = keys, probabilities
        lease.versions[gone], lease.priorities[gone] = headers["version"], headers["priority"]

    def commit(
        self, session: int, number: int, keys: NDArray[np.uint64], priorities: NDArray[np.float64], version: int
    ) -> CommitOutcome:
        """Ends a lease and stores priorities by key. Idempotent.

        Args:
            session: The learner's, as in its plan.
            number: The batch's.
            keys: <uint64>[B].
            priorities: <float64>[B] finite, at least 0.
            version: The policy version that came out of the batch.

        Raises:
            SchemaMismatch: Another session's plan is in force.
            NotReady: This service restarted, and the session's plan has not come again yet.
            InvalidSegment: A priority is negative or not finite, counts differ, the batch is not leased, or a segment
                was neither leased in it nor trained before.
        """
        if keys.shape != priorities.shape or not np.isfinite(priorities).all() or priorities.min(initial=0.0) < 0.0:
            raise InvalidSegment(
                f"priorities must be finite, not negative and as many as keys; got {priorities.size} for {keys.size}"
                " keys"
            )
        with self._lock:
            record = self._store.session
            if int(record["session"][0]) != session:
                raise SchemaMismatch(f"batch {number} belongs to another learner session; its lease was given back")
            if number < int(record["next_batch"][0]):
                return CommitOutcome(0, 0, repeated=True)
            if self._gate.plan is None:
                raise NotReady("the sampling plan did not come again since this service started; open the stream first")
            if number != int(record["next_batch"][0]) or self._fresh.lease_of(number) is None:
                raise InvalidSegment(
                    f"batch {number} was committed, and {int(record['next_batch'][0])} is the next to commit"
                )
            present = self._store.present(keys)
            rows = self._store.rows(keys[present])
            headers = self._store.headers[rows]
            leased_here = (headers["state"] == State.LEASED) & (headers["batch"] == number)
            if not (leased_here | (headers["state"] == State.SEEN)).all():
                raise InvalidSegment(f"the commit of batch {number} names segments that were not handed out in it")
            record["version"] = version
            self._priorities.advance(self._next_key)
            self._priorities.mark_seen(rows, priorities[present])
            self._priorities.note_largest(priorities)
            self._fresh.close(number)
            record["next_batch"] = number + 1
            self.ignored_priorities += int((~present).sum())
            return CommitOutcome(int(present.sum()), int((~present).sum()))

    @property
    def _priorities(self) -> PriorityIndex:
        """The index; there is one as soon as there are segments."""
        assert self._index is not None
        return self._index

    # Whoever looks on

    @property
    def _uncommitted_batch(self) -> int:
        return int(self._store.session["next_batch"][0])

    @property
    def session(self) -> int:
        """The session of the plan in force; 0 before the first."""
        return int(self._store.session["session"][0])

    @property
    def version(self) -> int:
        """The policy version that was committed last."""
        return int(self._store.session["version"][0])

    @property
    def actors(self) -> int:
        """Connected actors."""
        return self._gate.actors

    @property
    def plan(self) -> SamplingPlan | None:
        """The plan in force."""
        return self._gate.plan

    @property
    def schema(self) -> Schema | None:
        """The schema of the stored segments, once one is known."""
        return self._store.schema

    def counts(self) -> StoreCounts:
        """What the store holds and has promised, in segments."""
        with self._lock:
            return StoreCounts(
                capacity=self._store.capacity,
                stored=self._stored,
                unseen=self._fresh.unseen,
                leased=self._fresh.leased,
                granted=self._gate.granted,
                inserted=int(self._store.session["inserted"][0]),
                late=int(self._store.session["late"][0]),
            )

    def collection_waits_for(self) -> str:
        """Why no more is granted now; empty when actors have grants."""
        with self._lock:
            if self._gate.plan is None:
                return "learner"
            if self._gate.actors == 0:
                return "actors"
            return "" if self._gate.granted else "training"

    def training_waits_for(self) -> str:
        """Why the next batch can't be made up now; empty when it can."""
        with self._lock:
            plan = self._gate.plan
            if plan is None:
                return "learner"
            if self._fresh.unseen >= plan.fresh_segments:
                return ""
            return "fresh segments" if self._gate.actors else "actors"

    def flush(self) -> None:
        """Has the store written to disk, for a clean stop."""
        self._store.flush()
