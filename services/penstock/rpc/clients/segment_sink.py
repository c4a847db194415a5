"""An actor's stream to the replay service, which sends windows and receives acknowledgements and grants.

The stream runs on a loop thread, reopens after every break, and resends unacknowledged windows. Callers use it from one
other thread.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager

from penstock.errors import ConfigurationError, DamagedWindow, NotReady, PenstockError, PlaceLost, Unavailable
from penstock.replay.store.staging import SLOTS, StagingSlots
from penstock.rpc import methods
from penstock.rpc.channel import Backoff, Stream
from penstock.rpc.clients.connection import PersistentStream
from penstock.rpc.clients.round_trip import RoundTrip
from penstock.rpc.direct_socket import SocketEnded
from penstock.rpc.loop import LoopThread
from penstock.telemetry import logs, metrics
from penstock.types.block import Schema
from penstock.types.codecs import Codec
from penstock.types.location import Place
from penstock.types.replay import MAX_ROUND_TRIP_WINDOWS, Grant, StagingOffer, Window
from penstock.types.run import Assignment
from penstock.v1 import replay_pb2
from penstock.wire import block
from penstock.wire import windows as wire
from penstock.wire.encoding import WindowEncoder, raw_window
from penstock.wire.staged_checksum import staged_checksum

_MAX_UNACKNOWLEDGED = 2 * MAX_ROUND_TRIP_WINDOWS
"""Limit on windows kept until they are stored; of staged windows, the slots. It exceeds the windows of a round trip and
those whose acknowledgement waits for a grant, so that an actor does not wait for it."""

_SMALL_BYTES = 2**17
_HEARTBEAT_S = 1.0
_SEND_PATIENCE_S = 60.0


class _Pending:
    """Copy of a window that is sent and not yet stored, in serialised messages or in a staging area."""

    def __init__(
        self, window: Window, staging: StagingSlots | None, slot: int, encoder: WindowEncoder, codecs: Sequence[Codec]
    ) -> None:
        self.last_sequence, self._head, self._schema = window.head.last_sequence, window.head, window.columns.schema
        self.slot, self._staging, self._codecs = slot, staging, tuple(codecs)
        encoded = encoder.encode(window, codecs)
        self._encoded = encoded is not None
        sent = encoded or raw_window(window)
        if staging is None:
            self._messages = list(wire.encode_encoded_window(sent))
        else:
            where = sent.places
            payload = staging.slots[slot, : where.total_bytes]
            block.pack(sent.contents, where, 0, payload)
            self._window = sent.within(payload)
            self._checksum = staged_checksum(self._window.contents)

    @property
    def is_small(self) -> bool:
        """Whether the window is in messages that take less time to send than it takes to wake the loop."""
        return self._staging is None and sum(map(len, self._messages)) <= _SMALL_BYTES

    def is_in(self, staging: StagingSlots | None) -> bool:
        """Returns whether the window occupies a slot of this staging area."""
        return self._staging is not None and self._staging is staging

    def messages(self, staging: StagingSlots | None, codecs: Sequence[Codec]) -> list[bytes]:
        """Returns the messages for a stream with this staging area, whose service reads these codecs.

        Raises `PlaceLost` if the window has changed.
        """
        if self._staging is staging and staging is not None:
            return [wire.encode_staged_window(self._window, self.slot, self._checksum)]
        if self._staging is not None:
            self._leave_staging()
        if self._encoded and not set(self._codecs) <= set(codecs):
            # An older release serves the store now.
            self._messages = list(wire.encode_window(wire.decoded_window(self._head, self._schema, self._messages)))
            self._encoded = False
        return self._messages

    def _leave_staging(self) -> None:
        """Copies the window to messages. Its area belongs to a broken stream, and the memory is still mapped."""
        if staged_checksum(self._window.contents) != self._checksum:
            raise PlaceLost(
                f"the window up to sequence {self.last_sequence} changed in its staging area before it was stored, and"
                " no other copy exists"
            )
        self._messages, self._staging = list(wire.encode_encoded_window(self._window)), None


class ReplaySegmentSink:
    """Sink of an actor's windows; implements `acting.protocols.SegmentSink`.

    It owns the copies of the windows until they are stored, and the stream's grants until they are spent.
    """

    def __init__(
        self,
        thread: LoopThread,
        assignment: Assignment,
        schema: Schema,
        *,
        place: Callable[[], Place] | None = None,
        steps: Callable[[], int] = lambda: 0,
        window_s: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """Starts to connect to the assignment's replay service.

        The loop calls `place` for where the service is now (None: where the assignment says), `steps` for the
        environment steps taken so far, and `window_s` for the seconds that the collection of a window takes.
        """
        self._thread, self._assignment, self._schema = thread, assignment, schema
        self._steps, self._window_s = steps, window_s
        self._place = place or (lambda: assignment.replay)
        self._stream = PersistentStream(thread, "replay", self._names, self._run, broken=self._note_break)
        self._round_trip = RoundTrip(self._stream)
        self._sending_s = 0.0
        self._lock = self._stream.changed
        self._grants: deque[Grant] = deque()
        self._pending: deque[_Pending] = deque()
        self._resent = 0
        self._taken = 0
        # Whether the actor waits for a grant, and so can't take a step.
        self._idle = False
        self._sent = self._stored = 0
        self._encoder = WindowEncoder(schema)
        self._codecs: tuple[Codec, ...] = ()
        self._staged_codecs: tuple[Codec, ...] = ()
        self._offered: StagingSlots | None = None
        self._staging: StagingSlots | None = None
        self._noted_messages = self._distrusts_staging = False
        self._wake = asyncio.Event()
        self._waits = False
        # Windows that the loop has not written completely to the open stream.
        self._unsent: deque[_Pending] = deque()
        self._call: Stream | None = None
        self._stream.open()

    def next_grant(self, timeout_s: float) -> Grant | None:
        """Waits for a grant; None after `timeout_s`. Raises the error that ended the stream for good."""
        with self._lock:
            self._idle = True
            self._stream.wait_for(lambda: self._grants, timeout_s)
            self._stream.check()
            if not self._grants:
                return None
            self._taken, self._idle = self._taken + 1, False
            return self._grants.popleft()

    def send(self, window: Window) -> None:
        """Copies a window and sends it. Waits while too many windows are unacknowledged.

        Raises `Unavailable` if there was no room for the window within a minute, or the error that ended the stream for
        good.
        """
        with self._lock:
            if not self._has_room:
                with self._waiting():
                    self._stream.wait_for(lambda: self._has_room, _SEND_PATIENCE_S)
            self._stream.check()
            if not self._has_room:
                raise Unavailable(
                    f"{self._stream.peer} acknowledged none of {len(self._pending)} windows for"
                    f" {_SEND_PATIENCE_S:.0f} s"
                )
            staging = self._staging
            slot = min(set(range(SLOTS)) - {each.slot for each in self._pending if each.is_in(staging)}, default=0)
            codecs = self._codecs if staging is None else self._staged_codecs
        pending = _Pending(window, staging, slot, self._encoder, codecs)
        with self._lock:
            self._stream.check()
            self._pending.append(pending)
            self._sent = pending.last_sequence
            self._account()
            sent = self._send_now(pending)
            if not sent:
                self._unsent.append(pending)
            metrics.ACTOR_UNACKNOWLEDGED.set(len(self._pending))
        metrics.ACTOR_VERSION.set(window.head.version)
        if not sent:
            self._thread.call(self._wake.set)

    @property
    def _has_room(self) -> bool:
        return len(self._pending) < (_MAX_UNACKNOWLEDGED if self._staging is None else SLOTS)

    def _send_now(self, pending: _Pending) -> bool:
        """Sends a small window from this thread, which saves waking the loop, unless others wait to be sent.

        Returns whether it is sent. The caller holds the lock.
        """
        if self._call is None or self._unsent or not (pending.is_in(self._staging) or pending.is_small):
            return False
        try:
            return self._call.write_now(pending.messages(self._staging, self._codecs))
        except SocketEnded:
            # The stream is about to break. The next one sends pending windows.
            return True

    def drain(self, timeout_s: float) -> bool:
        """Waits up to `timeout_s` until all sent windows are stored. Returns whether they are."""
        with self._lock:
            if self._pending and timeout_s > 0.0:
                with self._waiting():
                    self._stream.wait_for(lambda: not self._pending, timeout_s)
            return not self._pending

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Has the service acknowledge windows at once. The caller holds the lock, and one thread at a time waits."""
        self._waits = True
        self._thread.call(self._wake.set)
        try:
            yield
        finally:
            self._waits = False

    def close(self) -> None:
        """Ends the stream. Its grants return to the gate."""
        self._stream.close()

    def _account(self) -> None:
        """Spends one of this stream's grants for a window, as the server does, even if another stream issued it."""
        if self._taken:
            self._taken -= 1
        elif self._grants:
            self._grants.popleft()
        else:
            self._resent += 1

    def _note_break(self, reason: PenstockError) -> None:
        if isinstance(reason, DamagedWindow) and not self._distrusts_staging:
            self._distrusts_staging = True
            self._note_messages(str(reason))
        with self._lock:
            self._grants.clear()

    def _names(self) -> Place:
        place = self._place()
        if not place.addresses:
            raise NotReady("the learner has not reached the replay service yet, so its address is not known")
        return place

    def _check_identity(self) -> None:
        """Raises `Unavailable` if the run uses another service than the one to which this stream is open."""
        present, connected = self._place().identity, self._stream.identity
        if present and connected and present != connected:
            raise Unavailable(f"the run no longer uses {self._stream.peer}")

    async def _run(self, backoff: Backoff) -> None:
        call = self._stream.open_stream(methods.APPEND_SEGMENTS)
        try:
            await call.write(wire.encode_open_append(self._schema, self._assignment))
            responses = aiter(call)
            self._resume(call, await self._first_of(responses))
            backoff.reset()
            if self._offered is not None:
                await call.write(wire.encode_staging_proof(self._offered.number))
            async with asyncio.TaskGroup() as tasks:
                beside = [tasks.create_task(self._write(call)), tasks.create_task(self._round_trip.watch(call))]
                async for response in responses:
                    self._take(wire.decode_append_response(response))
                for task in beside:
                    task.cancel()
        finally:
            with self._lock:
                self._call = None
            call.cancel()

    async def _first_of(self, responses: AsyncIterator[replay_pb2.AppendSegmentsResponse]) -> wire.AppendResponse:
        """Waits for the first response, which the service sends once it has a plan. Raises as `_check_identity`."""
        response = asyncio.ensure_future(anext(responses))
        try:
            while not response.done():
                await asyncio.wait([response], timeout=_HEARTBEAT_S)
                self._check_identity()
            return wire.decode_append_response(response.result())
        finally:
            response.cancel()

    def _resume(self, call: Stream, first: wire.AppendResponse) -> None:
        """Drops windows that the service has stored and resends the others under the first grants of this stream.

        Raises `PlaceLost` if the store was replaced by an older one or by another run's.
        """
        if not self._stored <= first.stored_sequence <= self._sent:
            raise PlaceLost(
                f"{self._stream.peer} has this actor's segments up to sequence {first.stored_sequence}, but it"
                f" acknowledged {self._stored} of the {self._sent} sent: its store was replaced"
            )
        self._look_at(first.staging)
        with self._lock:
            self._staging, self._codecs, self._staged_codecs = None, first.codecs, first.staged_codecs
            while self._pending and self._pending[0].last_sequence <= first.stored_sequence:
                self._pending.popleft()
            self._unsent, self._call = deque(self._pending), call
            self._resent, self._taken = len(self._pending), 0
            self._lock.notify_all()
        self._wake.set()
        self._take(first)

    def _look_at(self, offer: StagingOffer | None) -> None:
        """Maps an offered staging area. It is used once both sides have proved that they map the same memory.

        No area is mapped after the service has read a damaged window from one.
        """
        self._offered = None
        metrics.ACTOR_STAGES.set(0)
        if offer is not None and not self._distrusts_staging:
            try:
                self._offered = StagingSlots(offer)
            except ConfigurationError as error:
                self._note_messages(str(error))

    def _stage_if_shared(self, answer: int) -> None:
        if self._offered is None or not self._offered.is_shared(answer):
            self._note_messages(
                "the file of its staging area is visible here, but not the memory that the service maps"
            )
            return
        metrics.ACTOR_STAGES.set(1)
        with self._lock:
            self._staging = self._offered

    def _note_messages(self, reason: str) -> None:
        if not self._noted_messages:
            self._noted_messages = True
            logs.note("shared memory not used", reason=reason)

    def _take(self, response: wire.AppendResponse) -> None:
        if response.staging_proof is not None:
            self._stage_if_shared(response.staging_proof)
        if response.stored_sequence > self._stored:
            # With these lines, every segment that an actor was promised to be stored can be looked up in the store.
            place = self._assignment
            logs.detail("stored", slot=place.slot, incarnation=place.incarnation, sequence=response.stored_sequence)
        with self._lock:
            self._stored = max(self._stored, response.stored_sequence)
            while self._pending and self._pending[0].last_sequence <= response.stored_sequence:
                self._pending.popleft()
            self._return_grants(response.returned_grants)
            for grant in response.grants:
                if self._resent:
                    self._resent -= 1
                else:
                    self._grants.append(grant)
            if response.returned_grants and self._idle and not self._grants:
                # To the gate, the actor is stuck until it takes a step, for which it needs a grant.
                raise Unavailable(f"{self._stream.peer} took grants back before they arrived; the stream begins anew")
            metrics.ACTOR_UNACKNOWLEDGED.set(len(self._pending))
            self._lock.notify_all()

    def _return_grants(self, count: int) -> None:
        """Gives up grants, unused ones first. A window in collection, or already sent, then spends a later grant."""
        for _ in range(count):
            if self._grants:
                self._grants.pop()
            elif self._taken:
                self._taken -= 1
            else:
                self._resent += 1

    @property
    def _round_trip_windows(self) -> int:
        """Windows that the actor collects, or sends if that is slower, during a round trip."""
        return int(min(MAX_ROUND_TRIP_WINDOWS, self._round_trip.seconds / max(self._window_s(), self._sending_s)))

    async def _write(self, call: Stream) -> None:
        """Writes windows and heartbeats: every second without a window or with other news, and before a wait."""
        told, due = (0, False), time.monotonic() + _HEARTBEAT_S
        while True:
            self._check_identity()
            self._wake.clear()
            idle = False
            if self._unsent:
                await self._write_window(call)
            else:
                try:
                    async with asyncio.timeout(_HEARTBEAT_S):
                        await self._wake.wait()
                except TimeoutError:
                    idle = True
            news = (self._round_trip_windows, self._waits)
            if idle or (self._waits and not told[1]) or (time.monotonic() >= due and news != told):
                told, due = news, time.monotonic() + _HEARTBEAT_S
                await call.write(wire.encode_heartbeat(wire.Heartbeat(self._steps(), *news)))

    async def _write_window(self, call: Stream) -> None:
        started = time.monotonic()
        for message in self._unsent[0].messages(self._staging, self._codecs):
            await call.write(message)
        self._sending_s = time.monotonic() - started
        with self._lock:
            self._unsent.popleft()
