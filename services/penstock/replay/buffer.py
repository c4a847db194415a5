"""The replay buffer: store, fresh segments, priorities and gate, behind one lock.

A segment is unseen when it arrives, leased when a batch takes it as fresh (`fresh_segments`), and seen once that batch
is committed. A seen segment has mass and may be replayed (`priority_index`). `ages` defines its age.

Any thread may call any method. Methods block only on the lock, which protects the index, the headers and the tree.
Batches are copied outside the lock: `gather` checks afterwards that no row was overwritten.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import (
    ConfigurationError,
    InvalidSegment,
    NotReady,
    Overloaded,
    PlaceLost,
    SchemaMismatch,
    Unavailable,
)
from penstock.replay.admission import ActorKey, Gate
from penstock.replay.fresh_segments import FreshSegments, Lease
from penstock.replay.priority_index import PriorityIndex
from penstock.replay.store.ages import Ages
from penstock.replay.store.header_scans import find_committed
from penstock.replay.store.ring_store import RingStore
from penstock.types.block import Columns, Fragment, Schema
from penstock.types.replay import (
    Batch,
    BatchHead,
    CommitOutcome,
    Grant,
    MappedStore,
    Mass,
    SamplingPlan,
    StoreCounts,
    Window,
    WindowHead,
)
from penstock.types.run import LARGEST_VERSION_JUMP, largest_incarnation
from penstock.types.waits import Awaited

MAX_LEASES = 64
"""Maximum number of leased batches. A learner stays one or two ahead."""

_REDRAWS = 8

_OVERTAKEN = "rows are overwritten faster than they can be read; raise replay.capacity_bytes"

_VERSIONS_AHEAD = LARGEST_VERSION_JUMP + 1_000
"""Maximum number of versions by which a learner may begin above the store's version.

A learner can skip `LARGEST_VERSION_JUMP` numbers and a few hundred more: each power cut costs 100
(`learning.versions`), and its last commits may not have arrived.
"""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Rows reserved for a window that is arriving.

    Attributes:
        head: Window without its columns.
        first: Index in the window of the first segment that is not stored yet.
        keys: <uint64>[B] keys of the segments from `first` on.
    """

    head: WindowHead
    first: int
    keys: NDArray[np.uint64]


class ReplayBuffer:
    """Store of segments with priorities, which controls their collection and draws training batches."""

    def __init__(self, store: RingStore, gate: Gate, unix_s: Callable[[], float] = time.time) -> None:
        self._lock = threading.Lock()
        self._unix_s = unix_s
        self._store = store
        self._gate = gate
        self._index: PriorityIndex | None = None
        self._ages = Ages(store.records, self.version)
        self._fresh = FreshSegments(store)
        self._stored = int(np.count_nonzero(store.headers["key"]))
        self._next_lease = 0
        self._passed_over = -1
        self._writing = 0
        self.ignored_priorities = 0
        self.refunded_leases = 0
        self.refused_segments = 0
        if store.schema is not None:
            self._index = PriorityIndex(store, self._ages)

    # Actors

    def open_actor(self, key: ActorKey, schema: Schema, window_segments: int, now: float) -> int:
        """Connects an actor and returns the last sequence stored for it.

        Raises:
            SchemaMismatch: The store holds another schema.
            PlaceLost: A later incarnation has the slot.
            ConfigurationError, Overloaded: As `Gate.connect`.
            InvalidSegment: The window has no segments or more than the store's capacity, or the incarnation is
                impossible.
        """
        with self._lock:
            # Checked first: a refused actor must not fix the run's schema.
            watermark = self._store.watermark(key.slot, key.incarnation)
            largest = largest_incarnation(self._unix_s())
            if key.incarnation > largest:
                # If stored, it would lock every later actor out of the slot.
                raise InvalidSegment(
                    f"slot {key.slot} announced incarnation {key.incarnation}, and {largest} is the largest now"
                )
            if window_segments < 1:
                raise InvalidSegment(f"a window must have segments, slot {key.slot} announced {window_segments}")
            self._store.adopt(schema)
            if self._gate.plan is not None:
                self._check_capacity(self._gate.plan)
            if self._index is None:
                self._index = PriorityIndex(self._store, self._ages)
                if self._gate.plan is not None:
                    self._index.adopt(self._gate.plan)
            if window_segments > self._store.capacity:
                raise InvalidSegment(
                    f"a window must have 1 to {self._store.capacity} segments, slot {key.slot} announced"
                    f" {window_segments}"
                )
            self._gate.connect(key, window_segments, now)
            return watermark

    def close_actor(self, key: ActorKey) -> None:
        """Disconnects an actor and revokes its grants."""
        with self._lock:
            self._gate.disconnect(key)

    def heard(self, key: ActorKey, now: float, steps: int | None = None) -> None:
        """Records a sign of life of an actor, as `Gate.heard`."""
        with self._lock:
            self._gate.heard(key, now, steps)

    def issue_grants(self, now: float) -> list[tuple[ActorKey, Grant]]:
        """Revokes the grants of silent and stuck actors, and issues all grants for which there is room."""
        with self._lock:
            self._gate.expire(now, self.version)
            return self._gate.issue(self._fresh.unseen + self._fresh.leased + self._writing, self._uncommitted_batch)

    def take_returned(self) -> dict[ActorKey, int]:
        """Returns how many grants were revoked since the last call, by actor, as `Gate.take_returned`."""
        with self._lock:
            return self._gate.take_returned()

    def append(self, window: Window, now: float) -> int | None:
        """Stores a whole window: `reserve`, `put` and `seal` in one call.

        Returns:
            The last sequence stored for this actor, or None if it has no grant. The window can be offered again later.

        Raises:
            InvalidSegment, PlaceLost, Overloaded: As `reserve` and `seal`.
        """
        reserved = self.reserve(window.head, now)
        if not isinstance(reserved, Reservation):
            return reserved
        for index, column in enumerate(window.columns.arrays):
            self.put(reserved, Fragment(index, 0, np.ascontiguousarray(column).reshape(-1).view(np.uint8)))
        return self.seal(reserved, now)

    def knows_version(self, head: WindowHead) -> bool:
        """Returns whether the learner can have published a window's version, given the batches leased here.

        If not, the store may learn of it later. A learner that takes over publishes a version before its plan arrives,
        and one with several shards may continue without this one for a while.

        Raises:
            InvalidSegment: Not even a learner that takes over can have published the version.
        """
        with self._lock:
            if head.version > self._newest_published + _VERSIONS_AHEAD:
                raise self._unpublished(head)
            return head.version <= self._newest_published

    def _unpublished(self, head: WindowHead) -> InvalidSegment:
        return InvalidSegment(
            f"slot {head.slot} sent version {head.version}, and {self._newest_published} is the newest that the"
            " learner can have published"
        )

    @property
    def _newest_published(self) -> int:
        # Version v results from batch v - 1. A replacement for a lost store has leased no batch, but the plan names the
        # next one.
        plan = self._gate.plan
        return max(int(self._store.session["next_lease"][0]), plan.next_batch if plan is not None else 0)

    def reserve(self, head: WindowHead, now: float) -> "Reservation | int | None":
        """Spends the actor's oldest grant on rows for an arriving window.

        Returns:
            The reserved rows. If the window is stored already, the last sequence stored for this actor. If the actor
            has no grant, None: the window can be offered again later.

        Raises:
            InvalidSegment: The sequence leaves a gap, or the learner can't have published the version.
            PlaceLost: A later incarnation has the slot.
            Overloaded: A row to overwrite has not been trained yet.
        """
        key = ActorKey(head.slot, head.incarnation)
        with self._lock:
            self._gate.heard(key, now)
            watermark = self._store.watermark(head.slot, head.incarnation)
            if head.first_sequence > watermark + 1:
                raise InvalidSegment(
                    f"slot {head.slot} sent sequence {head.first_sequence} after {watermark}: {watermark + 1} was"
                    " expected"
                )
            if head.version > self._newest_published:
                raise self._unpublished(head)
            first = watermark + 1 - head.first_sequence
            if first >= head.segments:
                return watermark
            if not self._gate.spend(key):
                return None
            next_key = int(self._store.session["next_key"][0])
            keys = np.arange(next_key, next_key + head.segments - first, dtype=np.uint64)
            rows = self._store.rows(keys)
            held = int(np.count_nonzero(self._store.headers["key"][rows]))
            overwritten = self._priorities.seen_among(rows)
            self._store.reserve(keys)
            self._store.session["next_key"] = next_key + keys.size
            self._store.save_session()
            self._priorities.forget(overwritten)
            self._stored -= held
            self._writing += keys.size
            return Reservation(head, first, keys)

    def put(self, reservation: "Reservation", fragment: Fragment, sums: NDArray[np.uint64] | None = None) -> None:
        """Copies bytes of a window to its rows and sums them, as `RingStore.put`.

        It needs no lock, because no other method reads reserved rows.
        """
        self._store.put(reservation.keys, reservation.first, fragment, sums)

    def seal(self, reservation: "Reservation", now: float) -> int:
        """Turns complete rows into segments and returns the last sequence stored for the actor.

        Raises:
            InvalidSegment: The window has invalid values. The rows are released.
            Unavailable: Another stream stored the same window meanwhile. The rows are released.
            PlaceLost: A later incarnation took the slot meanwhile. The rows are released.
        """
        head, keys = reservation.head, reservation.keys
        try:
            header = self._store.inspect(keys, head, reservation.first)
        except InvalidSegment:
            self.refuse(reservation)
            raise
        with self._lock:
            self._writing -= keys.size
            self._gate.heard(ActorKey(head.slot, head.incarnation), now)
            expected = head.first_sequence + reservation.first - 1
            try:
                watermark = self._store.watermark(head.slot, head.incarnation)
            except PlaceLost:
                self._store.release(keys)
                raise
            if watermark != expected:
                self._store.release(keys)
                raise Unavailable(f"slot {head.slot} has sent sequence {expected + 1} by another stream")
            self._store.seal(keys, header, head)
            self._stored += keys.size
            self._store.session["inserted"] += np.uint64(keys.size)
            self._store.save_session()
            if self._gate.plan is not None and self._gate.plan.fresh_segments == 0:
                self._replay_at_once(self._store.rows(keys))
            else:
                self._fresh.arrived(keys)
            return head.last_sequence

    def refuse(self, reservation: "Reservation") -> None:
        """Releases the rows of a window that is damaged or has invalid values, and counts its segments as refused."""
        with self._lock:
            self._give_up(reservation.keys)
            self.refused_segments += reservation.keys.size

    def release(self, reservation: "Reservation") -> None:
        """Releases the rows of a window that will not be completed."""
        with self._lock:
            self._give_up(reservation.keys)

    def _give_up(self, keys: NDArray[np.uint64]) -> None:
        self._writing -= keys.size
        self._store.release(keys)

    # The learner

    def adopt_plan(self, plan: SamplingPlan, *, connected: bool = False) -> None:
        """Adopts the plan of a stream. A plan of a new session revokes all leases.

        Args:
            plan: Plan of the learner.
            connected: Whether the last session's learner is connected. If so, no other learner may take over.

        Raises:
            ConfigurationError: The plan would deadlock, because the store is too small or an actor's window does not
                fit.
            SchemaMismatch: A new session begins below the store's version, or further above it than a learner can.
            Unavailable: The learner of another session is connected.
        """
        with self._lock:
            self._check_capacity(plan)
            record = self._store.session
            if int(record["session"][0]) != plan.session:
                self._check_successor(plan, connected)
                self._gate.adopt(plan)
                self._begin_session(plan)
            else:
                plan = self._gate.adjust(plan)
                self._fresh.restore(range(self._uncommitted_batch, int(record["next_lease"][0])))
            self._ages.work_by(plan, self._uncommitted_batch)
            self._next_lease = self._fresh.next_number(max(self._uncommitted_batch, int(record["next_lease"][0])))
            if self._index is not None:
                self._index.adopt(plan)
                if plan.fresh_segments == 0:
                    self._replay_at_once(self._fresh.take_all())

    def _check_successor(self, plan: SamplingPlan, connected: bool) -> None:
        # A learner that resumes a run begins above all versions that it may have published.
        if plan.next_batch < self.version:
            raise SchemaMismatch(
                f"this store's segments were trained up to version {self.version}, and the learner begins at"
                f" {plan.next_batch}: they are another run's; resume that run, or give this one another replay.folder"
            )
        if self._was_used and plan.next_batch > self.version + _VERSIONS_AHEAD:
            raise SchemaMismatch(
                f"the learner begins at version {plan.next_batch}, and this store's segments were trained up to"
                f" {self.version}: they are another run's, or of long ago; give this run another replay.folder"
            )
        if connected:
            raise Unavailable(
                "another learner of this run is connected to the replay service; this one has its turn when that one"
                " has ended"
            )

    @property
    def _was_used(self) -> bool:
        """Whether the store ever had a learner or a segment. If not, a session may begin at any version."""
        return bool(self._store.session["session"][0] or self._store.session["inserted"][0])

    def _begin_session(self, plan: SamplingPlan) -> None:
        record = self._store.session
        # An unused store needs no gap, because it has no segments from before the first batch.
        if self._was_used:
            self._ages.skip(self.version, plan.next_batch)
        self.refunded_leases += self._fresh.refund()
        record["next_batch"] = record["next_lease"] = record["version"] = plan.next_batch
        record["session"] = plan.session
        self._store.save_session()
        self._passed_over = -1

    def _replay_at_once(self, rows: NDArray[np.int64]) -> None:
        """Makes segments that no batch will take as fresh replayable, at the largest priority present."""
        if rows.size:
            self._priorities.mark_seen(rows, np.full(rows.size, self._priorities.largest_priority))

    def _check_capacity(self, plan: SamplingPlan) -> None:
        # Replay draws with replacement, so a batch without fresh segments may be larger than the store.
        needed = plan.outstanding_limit + plan.batch_segments if plan.fresh_segments else 0
        if self._store.schema is not None and needed > self._store.capacity:
            raise ConfigurationError(
                f"the store holds {self._store.capacity} segments, and off_policy_degree {plan.off_policy_degree} with"
                f" batches of {plan.batch_segments} needs {needed}; raise replay.capacity_bytes"
            )

    def adjust_plan(self, plan: SamplingPlan) -> None:
        """Adopts a changed plan of the same session. Outstanding leases and grants stay valid.

        Raises:
            SchemaMismatch: The plan in force belongs to another session.
            ConfigurationError: As `adopt_plan`.
        """
        with self._lock:
            former = self._gate.plan
            if former is None or former.session != plan.session:
                raise SchemaMismatch("another learner session has taken over; only one learner may train a run")
            self._check_capacity(plan)
            plan = self._gate.adjust(plan)
            self._ages.work_by(plan, self._uncommitted_batch)
            if self._index is not None:
                self._index.adjust(plan)
                if plan.fresh_segments == 0:
                    self._replay_at_once(self._fresh.take_all())

    def lease(self, number: int, replay_segments: int | None = None) -> Lease | None:
        """Draws batch `number` and leases it. A batch that is already leased is returned again.

        Args:
            number: Number of the batch.
            replay_segments: Number of segments to draw for replay. None: the plan's.

        Returns:
            The lease, or None while there are not enough segments. The lease of a batch that was passed over is empty.

        Raises:
            NotReady: No plan has arrived.
            InvalidSegment: The batch was committed already, is not the next one, or would exceed the plan's size.
            Overloaded: `MAX_LEASES` batches are leased.
        """
        with self._lock:
            plan = self._gate.plan
            if plan is None:
                raise NotReady("no sampling plan came yet; the stream must open with one")
            former = self._fresh.lease_of(number)
            if former is not None and former.keys.size:
                return former
            if 0 <= number <= self._passed_over:
                return Lease.without_segments(number)
            # An empty lease was restored after this service restarted. Its batch is drawn again.
            if former is None and number != self._next_lease:
                raise InvalidSegment(f"batch {number} was asked for, and {self._next_lease} is next")
            if former is None and self._fresh.leases >= MAX_LEASES:
                raise Overloaded(f"{MAX_LEASES} batches are leased and not committed; commit some first")
            wanted = plan.replay_segments if replay_segments is None else replay_segments
            if wanted > plan.batch_segments:
                # Checked before segments are taken, because fresh segments of a batch that is not leased would never be
                # trained.
                raise InvalidSegment(
                    f"batch {number} was asked for with {wanted} segments to replay, and the plan's batches have"
                    f" {plan.batch_segments}"
                )
            self._retire_late(number)
            count = plan.fresh_segments
            if number < plan.hurried_below:
                count = min(count, self._fresh.unseen)
            fresh = self._fresh.take(number, count)
            if fresh is None:
                return None
            if plan.fresh_segments == 0 and not self._priorities.ready:
                return None
            replayed, probabilities = self._priorities.draw(number, wanted, attempt=0)
            keys = np.concatenate([fresh, replayed])
            rows, headers = self._store.rows(keys), self._store.headers
            lease = Lease(
                number=number,
                fresh_segments=fresh.size,
                keys=keys,
                versions=headers["version"][rows],
                priorities=headers["priority"][rows],
                probabilities=np.concatenate([np.ones(fresh.size), probabilities]),
                mass=self._priorities.mass,
            )
            self._fresh.open(lease)
            self._next_lease = max(self._next_lease, number + 1)
            self._store.session["next_lease"] = self._next_lease
            self._store.save_session()
            return lease

    def _retire_late(self, number: int) -> None:
        """Makes segments that are too old to be fresh in this batch replayable, at the largest priority present."""
        rows = self._fresh.take_older(self._ages.oldest_fresh(number))
        if rows.size:
            self._store.session["late"] += np.uint64(rows.size)
            self._store.save_session()
        self._replay_at_once(rows)

    def gather(self, lease: Lease, into: Columns, part: int = 0, parts: int = 1) -> Batch:
        """Copies a lease's columns without the lock, and redraws segments that were overwritten meanwhile.

        Args:
            lease: Lease from `lease`.
            into: Columns for the segments of the part. The batch refers to them.
            part: Index of a learner rank. Its part is every `parts`-th segment from this one on.
            parts: Number of ranks.

        Raises:
            Overloaded: Rows are overwritten faster than they are read.
        """
        for attempt in range(_REDRAWS):
            head = self.head(lease, part, parts, attempt)
            self._store.gather(self._store.rows(head.keys), into)
            if self._store.present(head.keys).all():
                return Batch(head, into)
        raise Overloaded(_OVERTAKEN)

    def head(self, lease: Lease, part: int, parts: int, attempt: int) -> BatchHead:
        """Returns the current head of a lease's part, and redraws segments that were overwritten meanwhile.

        Args:
            lease: Lease from `lease`.
            part: Index of a learner rank, as in `gather`.
            parts: Number of ranks, as in `gather`.
            attempt: Number of copies of the columns so far that failed because a row was overwritten.

        Raises:
            Overloaded: Rows are overwritten faster than they are read.
        """
        if attempt >= _REDRAWS:
            raise Overloaded(_OVERTAKEN)
        chosen = slice(part, None, parts)
        with self._lock:
            if not self._store.present(lease.keys[chosen]).all():
                self._replace_overwritten(lease, part, parts, attempt + 1)
            fresh = lease.keys[part : lease.fresh_segments : parts]
            return BatchHead(
                number=lease.number,
                fresh_segments=fresh.size,
                keys=lease.keys[chosen].copy(),
                versions=lease.versions[chosen].copy(),
                priorities=lease.priorities[chosen].copy(),
                probabilities=lease.probabilities[chosen].copy(),
                counts=self._counts(),
                mass=lease.mass,
                environments=self._store.headers["environment"][self._store.rows(fresh)],
                skipped=self._ages.between(lease.versions[chosen], lease.number),
            )

    def copy_bytes(self, head: BatchHead, offsets: tuple[int, ...], start: int, into: NDArray[np.uint8]) -> bool:
        """Copies a range of a batch's bytes, column after column, without the lock.

        Returns:
            Whether all segments were still present. If not, the caller takes another `head` and starts over.
        """
        self._store.gather_bytes(self._store.rows(head.keys), offsets, start, into)
        return bool(self._store.present(head.keys).all())

    def _replace_overwritten(self, lease: Lease, part: int, parts: int, attempt: int) -> None:
        # Only this part is redrawn, because other ranks may already have received theirs.
        mine = np.arange(part, lease.keys.size, parts)
        gone = mine[~self._store.present(lease.keys[mine])]
        keys, probabilities = self._priorities.draw(lease.number, gone.size, attempt * parts + part)
        if keys.size == 0:
            raise Overloaded("every replayable segment was overwritten; raise replay.capacity_bytes")
        headers = self._store.headers[self._store.rows(keys)]
        lease.keys[gone], lease.probabilities[gone] = keys, probabilities
        lease.versions[gone], lease.priorities[gone] = headers["version"], headers["priority"]

    def commit(
        self, session: int, number: int, keys: NDArray[np.uint64], priorities: NDArray[np.float64]
    ) -> CommitOutcome:
        """Ends a lease and stores priorities by key. Without keys, passes over all batches up to `number`. Idempotent.

        Args:
            session: Session of the learner, as in its plan.
            number: Number of the batch.
            keys: <uint64>[B] keys of the batch's segments.
            priorities: <float64>[B] raw priorities, finite and at least 0.

        Raises:
            SchemaMismatch: The plan in force belongs to another session.
            NotReady: This service restarted, and the session's plan has not arrived again.
            InvalidSegment: A priority is negative or not finite, the counts differ, the batch is not leased or not the
                next to commit, or a segment was neither leased to it nor trained before.
        """
        if keys.shape != priorities.shape or not np.isfinite(priorities).all() or priorities.min(initial=0.0) < 0.0:
            raise InvalidSegment(
                f"priorities must be finite, not negative and as many as keys; got {priorities.size} for {keys.size}"
                " keys"
            )
        if number < 0:
            raise InvalidSegment(f"batches are numbered from 0, got the commit of batch {number}")
        with self._lock:
            record = self._store.session
            if int(record["session"][0]) != session:
                raise SchemaMismatch(f"batch {number} belongs to another learner session; its lease was given back")
            if number < int(record["next_batch"][0]):
                return CommitOutcome(0, 0, repeated=True)
            if self._gate.plan is None or self._index is None:
                raise NotReady("the sampling plan did not come again since this service started; open the stream first")
            if keys.size and (number != int(record["next_batch"][0]) or self._fresh.lease_of(number) is None):
                raise InvalidSegment(
                    f"batch {number} was committed, and {int(record['next_batch'][0])} is the next to commit"
                )
            found = find_committed(self._store, keys, number) if keys.size else (np.zeros(0, np.int64),) * 2
            if found is None:
                raise InvalidSegment(f"the commit of batch {number} names segments that were not handed out in it")
            record["version"] = number + 1
            self._store.save_session()
            self._priorities.advance()
            if not keys.size:
                self._pass_over(number)
                return CommitOutcome(0, 0)
            rows, positions = found
            self._priorities.mark_seen(rows, priorities[positions])
            self._priorities.note_largest(priorities)
            self._fresh.close(number)
            record["next_batch"] = number + 1
            self._store.save_session()
            self.ignored_priorities += keys.size - rows.size
            return CommitOutcome(rows.size, keys.size - rows.size)

    def _pass_over(self, number: int) -> None:
        self.refunded_leases += self._fresh.close_until(number)
        self._passed_over, self._next_lease = number, max(self._next_lease, number + 1)
        self._store.session["next_lease"] = self._next_lease
        self._store.session["next_batch"] = number + 1
        self._store.save_session()

    @property
    def _priorities(self) -> PriorityIndex:
        """The index. It exists once the schema is known."""
        assert self._index is not None
        return self._index

    # Status and maintenance

    @property
    def _uncommitted_batch(self) -> int:
        return int(self._store.session["next_batch"][0])

    @property
    def session(self) -> int:
        """Session of the plan in force; 0 before the first."""
        return int(self._store.session["session"][0])

    @property
    def version(self) -> int:
        """Version of the policy after the last commit, or at the start of the session; 0 before the first."""
        return int(self._store.session["version"][0])

    @property
    def actors(self) -> int:
        """Number of connected actors."""
        return self._gate.actors

    @property
    def stuck_actors(self) -> int:
        """Number of connected actors that lost their grants and have not resumed."""
        return self._gate.stuck_actors

    @property
    def timed_out_grants(self) -> int:
        """Grants revoked from silent and stuck actors since this service started."""
        return self._gate.timed_out_grants

    @property
    def plan(self) -> SamplingPlan | None:
        """Plan in force."""
        return self._gate.plan

    @property
    def mapped_store(self) -> MappedStore | None:
        """Location from which a learner on this host can read the columns itself; None in anonymous memory."""
        return self._store.mapped

    def prove_store(self) -> int:
        """Writes a new proof, as `RingStore.prove`."""
        with self._lock:
            return self._store.prove()

    @property
    def schema(self) -> Schema | None:
        """Schema of the stored segments; None before the first actor connects."""
        return self._store.schema

    def counts(self) -> StoreCounts:
        """Returns the numbers of segments in the store and in outstanding grants."""
        with self._lock:
            return self._counts()

    def _counts(self) -> StoreCounts:
        return StoreCounts(
            capacity=self._store.capacity,
            stored=self._stored,
            unseen=self._fresh.unseen,
            leased=self._fresh.leased,
            granted=self._gate.granted,
            inserted=int(self._store.session["inserted"][0]),
            late=int(self._store.session["late"][0]),
            refused=self.refused_segments,
            refunded=self.refunded_leases,
        )

    def looked_over(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Returns the raw priorities, and the ages in versions, of an evenly spaced sample of replayable segments."""
        with self._lock:
            if self._index is None:
                return np.zeros(0), np.zeros(0, np.int64)
            rows = self._index.seen_among(np.arange(0, self._store.capacity, 1 + self._store.capacity // 4096))
            headers = self._store.headers[rows]
            ages = self._ages.at(self.version) - self._ages.clock(headers["version"])
            return headers["priority"].copy(), ages

    def replayable(self, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Returns the keys <uint64>[...] of the replayable segments in these rows."""
        with self._lock:
            if self._index is None:
                return np.zeros(0, np.uint64)
            keys: NDArray[np.uint64] = self._store.headers["key"][self._index.seen_among(rows)]
            return keys

    def drop(self, keys: NDArray[np.uint64]) -> int:
        """Removes these replayable segments and returns how many of the <uint64>[...] keys were still present."""
        with self._lock:
            assert self._index is not None
            rows = self._index.seen_among(self._store.rows(keys[self._store.present(keys)]))
            self._index.forget(rows)
            self._store.remove(rows)
            self._stored -= rows.size
            return int(rows.size)

    def drop_without_state(self, rows: NDArray[np.int64]) -> int:
        """Removes segments in these rows whose state is damaged, and returns their number.

        The state of an unseen or leased segment is restored instead.
        """
        with self._lock:
            damaged = self._store.without_state(rows)
            if self._index is None or not damaged.size:
                return 0
            damaged = self._fresh.put_back(damaged)
            self._index.remove(damaged)
            self._store.remove(damaged)
            self._stored -= damaged.size
            return int(damaged.size)

    @property
    def mass(self) -> Mass:
        """Sum of all masses."""
        return self._index.mass if self._index is not None else Mass()

    def collection_waits_for(self) -> Awaited:
        """Returns what collection waits for; nothing while actors have grants."""
        with self._lock:
            if self._gate.plan is None:
                return Awaited.LEARNER
            if self._gate.actors == 0:
                return Awaited.ACTORS
            return Awaited.NOTHING if self._gate.granted else Awaited.TRAINING

    def training_waits_for(self) -> Awaited:
        """Returns what the next batch waits for; nothing if it can be drawn now."""
        with self._lock:
            plan = self._gate.plan
            if plan is None:
                return Awaited.LEARNER
            if plan.fresh_segments and self._fresh.unseen >= plan.fresh_segments:
                return Awaited.NOTHING
            if plan.fresh_segments == 0 and self._index is not None and self._index.ready:
                return Awaited.NOTHING
            return Awaited.FRESH_SEGMENTS if self._gate.actors else Awaited.ACTORS

    @property
    def folder(self) -> Path | None:
        """Folder of the store; None in anonymous memory."""
        return self._store.folder

    def freeze(self, headers: NDArray[Any]) -> NDArray[np.uint8]:
        """Copies the mutable state for a snapshot, as `RingStore.freeze`, under the lock."""
        with self._lock:
            return self._store.freeze(headers)

    def flush(self) -> None:
        """Writes the store to disk, for a clean stop."""
        self._store.flush()
