"""Windows of the actors: grants for them are issued, and their rows are reserved, filled part by part, and sealed.

Each stream of an actor has its own `Intake`. The methods take the buffer's lock, except `put`, which writes to rows
that no other method reads, and the check of the values in `seal`.
"""

import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from penstock.errors import InvalidSegment, PlaceLost, SchemaMismatch, Unavailable
from penstock.replay.admission import ActorKey
from penstock.replay.ownership import VERSIONS_AHEAD
from penstock.replay.segments import Segments
from penstock.types.block import Fragment, Schema
from penstock.types.replay import Grant, WindowHead
from penstock.types.run import largest_incarnation

_NO_KEYS = np.zeros(0, np.uint64)


class Intakes:
    """Intakes of one buffer's actors, and the grants for their windows. `ReplayBuffer.intakes`."""

    def __init__(self, segments: Segments, lock: threading.Lock, unix_s: Callable[[], float]) -> None:
        self._segments, self._lock, self._unix_s = segments, lock, unix_s

    def open(
        self, key: ActorKey, schema: Schema, window_segments: int, now: float, *, run: int = 0, token: bytes = b""
    ) -> "Intake":
        """Connects an actor and returns the intake of its windows. `run` and `token` come from its assignment.

        Raises:
            SchemaMismatch: The store holds another schema, or belongs to another run.
            PlaceLost: A later incarnation has the slot, or the token does not belong to the assignment.
            ConfigurationError, Overloaded: As `Gate.connect`.
            InvalidSegment: The window has no segments or more than the store's capacity, or the incarnation is
                impossible.
        """
        segments = self._segments
        with self._lock:
            # Checked first: a refused actor must not fix the run's schema.
            self._check_run(key, run, token)
            intake = Intake(segments, self._lock, key)
            largest = self.largest_incarnation
            if key.incarnation > largest:
                # If stored, it would lock every later actor out of the slot.
                raise InvalidSegment(
                    f"slot {key.slot} announced incarnation {key.incarnation}, and {largest} is the largest now"
                )
            if window_segments < 1:
                raise InvalidSegment(f"a window must have segments, slot {key.slot} announced {window_segments}")
            segments.adopt_schema(schema)
            if segments.gate.plan is not None:
                segments.check_capacity(segments.gate.plan)
            if window_segments > segments.store.capacity:
                raise InvalidSegment(
                    f"a window must have 1 to {segments.store.capacity} segments, slot {key.slot} announced"
                    f" {window_segments}"
                )
            segments.gate.connect(key, window_segments, now)
            return intake

    def _check_run(self, key: ActorKey, run: int, token: bytes) -> None:
        plan = self._segments.gate.plan
        if plan is None or not plan.actor_key:
            return
        if run != plan.run:
            raise SchemaMismatch(
                f"this replay service belongs to run {plan.run:016x}, and the actor of slot {key.slot} to"
                f" {f'run {run:016x}' if run else 'a run without an identity'}; start the actor again, with the"
                " addresses of its own run"
            )
        if not plan.admits(key.slot, key.incarnation, token):
            # An actor whose learner has lost the key since gets a new place, with a token of the new key.
            raise PlaceLost(
                f"the token of slot {key.slot}, incarnation {key.incarnation}, does not belong to its assignment;"
                " join again"
            )

    @property
    def largest_incarnation(self) -> int:
        """Largest incarnation of an actor that is accepted now."""
        return largest_incarnation(self._unix_s())

    def issue_grants(self, now: float) -> list[tuple[ActorKey, Grant]]:
        """Revokes the grants of silent and stuck actors, and issues all grants for which there is room."""
        segments = self._segments
        with self._lock:
            segments.gate.expire(now, segments.session.version)
            waiting = segments.fresh.unseen + segments.fresh.leased + segments.writing
            return segments.gate.issue(waiting, segments.session.next_batch)

    def take_returned(self) -> dict[ActorKey, int]:
        """Returns how many grants were revoked since the last call, by actor, as `Gate.take_returned`."""
        with self._lock:
            return self._segments.gate.take_returned()


class Intake:
    """Intake of one actor's windows, one window at a time. One thread at a time may call it.

    Attributes:
        keys: <uint64>[B] keys of the rows reserved for the arriving window; empty if there is no window or all of its
            segments are stored already.
        stored_sequence: Last sequence known to be stored for the actor.
    """

    def __init__(self, segments: Segments, lock: threading.Lock, key: ActorKey) -> None:
        """Reads the last stored sequence. Raises as `RingStore.watermark`."""
        self._segments, self._lock, self._key = segments, lock, key
        self._head: WindowHead | None = None
        self._first = 0
        self.keys: NDArray[np.uint64] = _NO_KEYS
        self.stored_sequence = segments.store.watermark(key.slot, key.incarnation)

    def close(self) -> None:
        """Disconnects the actor and revokes its grants."""
        with self._lock:
            self._segments.gate.disconnect(self._key)

    def heard(self, now: float, steps: int | None = None, round_trip_windows: int | None = None) -> None:
        """Records a sign of life of the actor, as `Gate.heard`."""
        with self._lock:
            self._segments.gate.heard(self._key, now, steps, round_trip_windows)

    def knows_version(self, head: WindowHead) -> bool:
        """Returns whether the learner can have published a window's version, given the batches leased here.

        If not, the store may learn of it later. A learner that takes over publishes a version before its plan arrives,
        and one with several shards may continue without this one for a while.

        Raises:
            InvalidSegment: Not even a learner that takes over can have published the version.
        """
        with self._lock:
            newest = self._newest_published
        if head.version > newest + VERSIONS_AHEAD:
            raise _unpublished(head, newest)
        return head.version <= newest

    def reserve(self, head: WindowHead, now: float) -> bool:
        """Spends the actor's oldest grant on rows for an arriving window. A stored window needs neither.

        Returns:
            Whether the window can be received. If not, the actor has no grant. The window can be offered again later.

        Raises:
            InvalidSegment: The sequence leaves a gap, or the learner can't have published the version.
            PlaceLost: A later incarnation has the slot.
            Overloaded: A row to overwrite has not been trained yet.
        """
        segments, store, session = self._segments, self._segments.store, self._segments.session
        assert not self.keys.size
        with self._lock:
            segments.gate.heard(self._key, now)
            watermark = self.stored_sequence = store.watermark(self._key.slot, self._key.incarnation)
            if head.first_sequence > watermark + 1:
                raise InvalidSegment(
                    f"slot {head.slot} sent sequence {head.first_sequence} after {watermark}: {watermark + 1} was"
                    " expected"
                )
            if head.version > self._newest_published:
                raise _unpublished(head, self._newest_published)
            first = watermark + 1 - head.first_sequence
            if first >= head.segments:
                return True
            if not segments.gate.spend(self._key):
                return False
            keys = np.arange(session.next_key, session.next_key + head.segments - first, dtype=np.uint64)
            overwritten = store.reserve(keys, None if head.forms is None else head.forms[first:])
            session.next_key += keys.size
            session.save()
            segments.priorities.forget(overwritten)
            segments.writing += keys.size
            self._head, self._first, self.keys = head, first, keys
            return True

    def put(self, fragment: Fragment, sums: NDArray[np.uint64] | None = None) -> None:
        """Copies bytes of the window to its rows and sums them, as `RingStore.put`."""
        self._segments.store.put(self.keys, self._first, fragment, sums)

    def seal(self, now: float) -> int:
        """Turns the complete rows into segments and returns the last sequence stored for the actor.

        Raises:
            InvalidSegment: The window has invalid values. The rows are released.
            Unavailable: Another stream stored the same window meanwhile. The rows are released.
            PlaceLost: A later incarnation took the slot meanwhile. The rows are released.
        """
        segments, store, head, keys = self._segments, self._segments.store, self._head, self.keys
        plan = segments.gate.plan
        if head is None or not keys.size:
            return self.stored_sequence
        try:
            header = store.inspect(keys, head, self._first, plan.largest_magnitude if plan is not None else 0.0)
        except InvalidSegment:
            self.refuse()
            raise
        self.keys = _NO_KEYS
        with self._lock:
            segments.writing -= keys.size
            segments.gate.heard(self._key, now)
            expected = head.first_sequence + self._first - 1
            try:
                watermark = store.watermark(head.slot, head.incarnation)
            except PlaceLost:
                store.release(keys)
                raise
            if watermark != expected:
                store.release(keys)
                raise Unavailable(f"slot {head.slot} has sent sequence {expected + 1} by another stream")
            store.seal(keys, header, head)
            segments.session.inserted += keys.size
            segments.session.save()
            if segments.gate.plan is not None and segments.gate.plan.fresh_segments == 0:
                segments.replay_at_once(store.rows(keys))
            else:
                segments.fresh.arrived(keys, head.version)
            self.stored_sequence = head.last_sequence
            return head.last_sequence

    def refuse(self) -> None:
        """Releases the rows of a window that is damaged or has invalid values, and counts its segments as refused."""
        with self._lock:
            self._segments.refused += self.keys.size
            self._give_up()

    def release(self) -> None:
        """Releases the rows of a window that will not be completed, if there is one."""
        if self.keys.size:
            with self._lock:
                self._give_up()

    @property
    def _newest_published(self) -> int:
        # Version v results from batch v - 1. A replacement for a lost store has leased no batch, but the plan names the
        # next one.
        plan = self._segments.gate.plan
        return max(self._segments.session.next_lease, plan.next_batch if plan is not None else 0)

    def _give_up(self) -> None:
        # Only once, because the rows may belong to another window afterwards.
        keys, self.keys = self.keys, _NO_KEYS
        self._segments.writing -= keys.size
        self._segments.store.release(keys)


def _unpublished(head: WindowHead, newest: int) -> InvalidSegment:
    return InvalidSegment(
        f"slot {head.slot} sent version {head.version}, and {newest} is the newest that the learner can have published"
    )
