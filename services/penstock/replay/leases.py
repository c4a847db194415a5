"""Batches of the learner: a batch is drawn and leased, read, and committed.

Any thread may call `ReplayBuffer.leases`. Its methods take the buffer's lock, except `places`, `copy_bytes`, which
checks after the copy that no row was overwritten, and `begin_session` and `resume_session`, whose callers hold it.
"""

import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.errors import InvalidSegment, NotReady, Overloaded, SchemaMismatch
from penstock.replay.segments import Lease, Segments
from penstock.replay.store.header_scans import find_committed, largest_of
from penstock.types.codecs import Codec, readable
from penstock.types.payloads import Places, places
from penstock.types.replay import BatchHead, CommitOutcome, SamplingPlan

MAX_LEASES = 64
"""Maximum number of leased batches. A learner stays one or two ahead."""

_REDRAWS = 8


class Leases:
    """Leased batches of one buffer.

    Attributes:
        next_number: Number of the next batch.
        ignored_priorities: Number of committed priorities of segments that had been overwritten.
    """

    def __init__(self, segments: Segments, lock: threading.Lock) -> None:
        self._segments, self._lock = segments, lock
        self._passed_over = -1
        self.next_number = 0
        self.ignored_priorities = 0

    def begin_session(self, plan: SamplingPlan) -> None:
        """Ends the leases of the former session and begins the plan's."""
        segments, session = self._segments, self._segments.session
        # A store without data needs no gap, because it has no segments from before the first batch.
        if session.used and segments.store.schema is not None:
            segments.ages.skip(session.version, plan.next_batch)
        segments.refunded += segments.fresh.refund()
        session.next_batch = session.next_lease = session.version = self.next_number = plan.next_batch
        session.session = plan.session
        session.save()
        self._passed_over = -1

    def resume_session(self) -> None:
        """Restores the leases of the session if this service has restarted."""
        fresh, session = self._segments.fresh, self._segments.session
        fresh.restore(range(session.next_batch, session.next_lease))
        self.next_number = fresh.next_number(max(session.next_batch, session.next_lease))

    def draw(self, number: int, replay_segments: int | None = None) -> Lease | None:
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
        segments, fresh = self._segments, self._segments.fresh
        with self._lock:
            plan = segments.gate.plan
            if plan is None:
                raise NotReady("there is no sampling plan yet; open the stream with one")
            former = fresh.leases.get(number)
            if former is not None and former.keys.size:
                return former
            if 0 <= number <= self._passed_over:
                return Lease.without_segments(number)
            # An empty lease was restored after this service restarted. Its batch is drawn again.
            if former is None and number != self.next_number:
                raise InvalidSegment(f"batch {number} was requested, and {self.next_number} is next")
            if former is None and len(fresh.leases) >= MAX_LEASES:
                raise Overloaded(f"{MAX_LEASES} batches are leased and not committed; commit some first")
            wanted = plan.replay_segments if replay_segments is None else replay_segments
            if wanted > plan.batch_segments:
                # Checked before segments are taken, because fresh segments of a batch that is not leased would never be
                # trained.
                raise InvalidSegment(
                    f"batch {number} was requested with {wanted} segments to replay, and the plan's batches have"
                    f" {plan.batch_segments}"
                )
            self._retire_late(number)
            count = plan.fresh_segments
            if number < plan.hurried_below:
                count = min(count, fresh.unseen)
            taken = fresh.take(number, count)
            if taken is None or (plan.fresh_segments == 0 and not segments.priorities.ready):
                return None
            replayed, probabilities = segments.priorities.draw(number, wanted, attempt=0)
            keys = np.concatenate([taken, replayed])
            rows, headers = segments.store.rows(keys), segments.store.headers
            lease = Lease(
                number=number,
                fresh_segments=taken.size,
                keys=keys,
                versions=headers["version"][rows],
                priorities=headers["priority"][rows],
                probabilities=np.concatenate([np.ones(taken.size), probabilities]),
                mass=segments.priorities.mass,
            )
            fresh.leases[number] = lease
            self._follow(number)
            segments.session.save()
            return lease

    def _retire_late(self, number: int) -> None:
        """Makes segments that are too old to be fresh in this batch replayable, at the largest priority present."""
        segments = self._segments
        rows = segments.fresh.take_older(segments.ages.oldest_fresh(number))
        if rows.size:
            segments.session.late += rows.size
            segments.session.save()
        segments.replay_at_once(rows)

    def _follow(self, number: int) -> None:
        self.next_number = self._segments.session.next_lease = max(self.next_number, number + 1)

    def head(self, lease: Lease, attempt: int) -> BatchHead:
        """Returns the current head of a lease's batch, and redraws segments that were overwritten meanwhile.

        Args:
            lease: Lease from `draw`.
            attempt: Number of copies of the columns so far that failed because a row was overwritten.

        Raises:
            Overloaded: Rows are overwritten faster than they are read.
        """
        if attempt >= _REDRAWS:
            raise Overloaded("rows are overwritten faster than they can be read; raise replay.capacity_bytes")
        store = self._segments.store
        with self._lock:
            if not store.present(lease.keys).all():
                self._replace_overwritten(lease, attempt + 1)
            fresh = lease.keys[: lease.fresh_segments]
            return BatchHead(
                number=lease.number,
                fresh_segments=fresh.size,
                keys=lease.keys.copy(),
                versions=lease.versions.copy(),
                priorities=lease.priorities.copy(),
                probabilities=lease.probabilities.copy(),
                counts=self._segments.counts(),
                mass=lease.mass,
                environments=store.headers["environment"][store.rows(fresh)],
                slots=store.headers["slot"][store.rows(fresh)],
                skipped=self._segments.ages.between(lease.versions, lease.number),
            )

    def places(self, head: BatchHead, codecs: Sequence[Codec]) -> Places:
        """Returns the places of a batch's columns for a client that reads these codecs.

        The columns are in the forms in which they are stored if the client reads all of them, otherwise raw.
        """
        store = self._segments.store
        assert store.schema is not None
        forms = store.forms_of(store.rows(head.keys)) if codecs else None
        if forms is not None and not readable(forms, codecs):
            forms = None
        return places(store.schema, head.keys.size, forms)

    def copy_bytes(self, head: BatchHead, where: Places, start: int, into: NDArray[np.uint8]) -> bool:
        """Copies a range of a batch's bytes, column after column, as `RingStore.gather_bytes`.

        Returns:
            Whether all segments were still present. If not, the caller takes another `head` and starts over.
        """
        store = self._segments.store
        store.gather_bytes(store.rows(head.keys), where, start, into)
        return bool(store.present(head.keys).all())

    def _replace_overwritten(self, lease: Lease, attempt: int) -> None:
        store = self._segments.store
        gone = np.flatnonzero(~store.present(lease.keys))
        keys, probabilities = self._segments.priorities.draw(lease.number, gone.size, attempt)
        if keys.size == 0:
            raise Overloaded("every replayable segment was overwritten; raise replay.capacity_bytes")
        headers = store.headers[store.rows(keys)]
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
        largest = largest_of(priorities)
        if keys.shape != priorities.shape or largest < 0.0:
            raise InvalidSegment(
                f"priorities must be finite, not negative and as many as keys; got {priorities.size} for {keys.size}"
                " keys"
            )
        if number < 0:
            raise InvalidSegment(f"batches are numbered from 0, got the commit of batch {number}")
        segments, record = self._segments, self._segments.session
        with self._lock:
            if record.session != session:
                raise SchemaMismatch(f"batch {number} belongs to another learner session; its lease has ended")
            if number < record.next_batch:
                return CommitOutcome(0, 0, repeated=True)
            if segments.gate.plan is None or segments.index is None:
                raise NotReady("the sampling plan has not arrived since this service started; open the stream first")
            if keys.size and (number != record.next_batch or number not in segments.fresh.leases):
                raise InvalidSegment(f"batch {number} was committed, and {record.next_batch} is the next to commit")
            found = find_committed(segments.store, keys, number)
            if found is None:
                raise InvalidSegment(f"the commit of batch {number} names segments that were not leased to it")
            record.version = number + 1
            record.save()
            segments.index.advance()
            if not keys.size:
                self._pass_over(number)
                return CommitOutcome(0, 0)
            rows, positions = found
            segments.index.mark_seen(rows, priorities if rows.size == keys.size else priorities[positions])
            segments.index.note_largest(largest)
            segments.fresh.close(number)
            record.next_batch = number + 1
            record.save()
            self.ignored_priorities += keys.size - rows.size
            return CommitOutcome(rows.size, keys.size - rows.size)

    def _pass_over(self, number: int) -> None:
        segments = self._segments
        segments.refunded += segments.fresh.close_until(number)
        self._passed_over = number
        self._follow(number)
        segments.session.next_batch = number + 1
        segments.session.save()
