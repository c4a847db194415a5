"""AppendSegments: an actor's stream of windows. Decodes requests, calls the stream's `Intake` and fills its outbox.

Runs on one event loop. Only work on large payloads moves to worker threads (`off_loop`).
"""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator

import numpy as np

from penstock.errors import DamagedWindow, Unavailable
from penstock.replay.admission import ActorKey
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.intake import Intake
from penstock.replay.store.staging import StagingArea, StagingAreas
from penstock.rpc import methods
from penstock.rpc.errors import logged_refusal
from penstock.rpc.loop import off_loop
from penstock.rpc.service import Context, logged_stay, opening_message, write_whole
from penstock.telemetry import metrics
from penstock.types.codecs import ENCODINGS, Codec
from penstock.types.payloads import layout
from penstock.types.replay import Grant, StagingOffer, WindowHead
from penstock.v1 import replay_pb2
from penstock.wire import windows as wire
from penstock.wire.staged_checksum import SUMS, checksum_of

_TICK_S = 0.5

ANSWERED_WITHIN_S = 0.1
"""Longest delay in seconds of the answer to a window or a commit, which may go with another message."""


class Outbox:
    """Messages owed to an actor's stream. Acknowledgements and grants accumulate while it writes.

    An acknowledgement for which the actor does not wait goes with the next grant, or after `ANSWERED_WITHIN_S`, because
    a message costs more than its content.
    """

    def __init__(self, stored_sequence: int, staging: StagingOffer | None) -> None:
        self._stored_sequence, self._staging = stored_sequence, staging
        self._grants: list[Grant] = []
        self._staging_proof: int | None = None
        self._codecs: tuple[Codec, ...] = ENCODINGS
        self._returned = 0
        self._recalled = self._hurries = self._acknowledges = False
        self._due: asyncio.TimerHandle | None = None
        self._filled = asyncio.Event()
        self.granted = asyncio.Event()
        self._filled.set()

    def acknowledge(self, sequence: int) -> None:
        """Sends the last stored sequence soon, or at once if the actor waits for it."""
        self._stored_sequence, self._acknowledges = sequence, True
        if self._hurries:
            self._filled.set()
        elif self._due is None:
            self._due = asyncio.get_running_loop().call_later(ANSWERED_WITHIN_S, self._filled.set)

    def hurry(self, waits: bool) -> None:
        """Notes whether the actor waits for acknowledgements."""
        self._hurries = waits
        if waits and self.owes:
            self._filled.set()

    def grant(self, grant: Grant) -> None:
        """Sends a grant."""
        self._grants.append(grant)
        self._filled.set()
        self.granted.set()

    def take_back(self, count: int) -> None:
        """Reports that `count` grants of this stream have returned to the gate."""
        self._returned += count
        self._filled.set()

    def prove_staging(self, number: int) -> None:
        """Sends the service's side of the proof; 0 if the client's proof failed."""
        self._staging_proof = number
        self._filled.set()

    def recall(self) -> None:
        """Ends the stream, and its grants with it, because a learner has come with another plan."""
        self._recalled = True
        self._filled.set()

    async def next(self) -> replay_pb2.AppendSegmentsResponse:
        """Waits for content and returns the next message. Raises `Unavailable` once the stream is recalled."""
        await self._filled.wait()
        if self._recalled:
            raise Unavailable("the learner has a new plan, which ends all grants; open the stream again")
        return self.take()

    @property
    def owes(self) -> bool:
        """Whether an acknowledgement was not sent yet."""
        return self._acknowledges

    def take(self) -> replay_pb2.AppendSegmentsResponse:
        """Removes the content and returns it as a message."""
        self._filled.clear()
        self._acknowledges = False
        if self._due is not None:
            self._due.cancel()
            self._due = None
        grants, self._grants = self._grants, []
        returned, self._returned = self._returned, 0
        staging, self._staging = self._staging, None
        proof, self._staging_proof = self._staging_proof, None
        codecs, self._codecs = self._codecs, ()
        return wire.encode_append_response(self._stored_sequence, grants, staging, returned, proof, codecs)


class AppendServicer:
    """Servicer of the actors' streams of one buffer, which hands out grants.

    Attributes:
        changed: Event that is set, and replaced by another, at every change of the buffer's state.
        waiting: Number of streams that wait for the first plan.
    """

    def __init__(self, buffer: ReplayBuffer, staging: StagingAreas, version_patience_s: float) -> None:
        """Creates the servicer.

        A window waits `version_patience_s` seconds for a connected learner to report its version.
        """
        self._buffer, self._staging, self._version_patience_s = buffer, staging, version_patience_s
        self._outboxes: dict[ActorKey, Outbox] = {}
        self.changed = asyncio.Event()
        self.waiting = 0
        # Time at which the newest learner connected; infinity if none is connected.
        self._learner_since = math.inf

    async def append_segments(self, requests: AsyncIterator[wire.AppendRequest], context: Context) -> None:
        """Serves one stream."""
        opening = wire.decode_opening(await opening_message(requests))
        key = ActorKey(opening.slot, opening.incarnation)
        await self._await_plan()
        with logged_refusal("actor", peer=context.peer(), slot=str(key.slot), incarnation=str(key.incarnation)):
            intake = self._buffer.intakes.open(
                key,
                opening.schema,
                opening.window_segments,
                time.monotonic(),
                run=opening.run,
                token=opening.replay_token,
            )
        staging = self._staging.allocate(layout(opening.schema, opening.window_segments)[1])
        stored = intake.stored_sequence
        returned = stored > 0 or key in self._outboxes
        outbox = Outbox(stored, staging.offer if staging else None)
        stream = _Stream(opening, intake, outbox, staging)
        # Replaces the intake of an earlier stream, whose break this server may not have noticed.
        self._outboxes[key] = outbox
        place = {"slot": str(key.slot), "incarnation": str(key.incarnation), "stored": str(stored)}
        try:
            with logged_stay("actor", returned=returned, **place):
                self.distribute()
                async with asyncio.TaskGroup() as tasks:
                    writing = tasks.create_task(_write_acknowledgements(outbox, context))
                    await self._read(requests, stream)
                    writing.cancel()
                if outbox.owes:
                    await write_whole(context, outbox.take())
        finally:
            if staging is not None:
                staging.close()
            if self._outboxes.get(key) is outbox:
                del self._outboxes[key]
                intake.close()
                self.distribute()

    def distribute(self) -> None:
        """Hands new grants to their streams and wakes all tasks that wait for a change."""
        self.hand_out_grants()
        self.changed.set()
        self.changed = asyncio.Event()

    def hand_out_grants(self) -> None:
        """Hands new grants to their streams, and reports grants that returned to the gate."""
        if self.waiting:
            # Actors that waited for the plan are connected one after another, and share the first grants equally.
            return
        issued = self._buffer.intakes.issue_grants(time.monotonic())
        for key, count in self._buffer.intakes.take_returned().items():
            self._outboxes[key].take_back(count)
        for key, grant in issued:
            self._outboxes[key].grant(grant)

    async def wait_for_change(self, timeout_s: float) -> None:
        """Waits for the next change of the buffer's state, at most this number of seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.changed.wait()

    def learner_came(self) -> None:
        """Notes that a learner has connected, which will report the versions of windows."""
        self._learner_since = time.monotonic()

    def learners_left(self) -> None:
        """Notes that no learner is connected."""
        self._learner_since = math.inf

    def recall(self) -> None:
        """Ends all streams."""
        for outbox in self._outboxes.values():
            outbox.recall()

    async def _await_plan(self) -> None:
        """Waits for the first plan, which has the run and the key to verify the actors. Until then, nobody collects."""
        self.waiting += 1
        try:
            while self._buffer.gate.plan is None:
                await self.changed.wait()
        finally:
            self.waiting -= 1

    async def _read(self, requests: AsyncIterator[wire.AppendRequest], stream: "_Stream") -> None:
        answering_s = 0.0
        answer_seconds = metrics.STREAM_SECONDS.labels(methods.REPLAY, methods.APPEND_SEGMENTS.name)
        try:
            async for request in requests:
                self._check_current(stream)
                if request.window is None:
                    stream.take_small(request)
                    continue
                part = stream.reader.add(request.window)
                if part.checksum is None:
                    metrics.REPLAY_RECEIVED_BYTES.inc(part.payload.size)
                if part.first:
                    if part.checksum is None:
                        metrics.REPLAY_RECEIVED_RAW_BYTES.inc(part.head.segments * stream.segment_bytes)
                    stream.intake.release()
                    await self._reserve(part.head, stream)
                    answering_s = 0.0
                else:
                    stream.intake.heard(time.monotonic())
                began = time.monotonic()
                if stream.intake.keys.size:
                    await stream.put(part)
                    self._check_current(stream)
                if part.last:
                    await self._seal(stream)
                answering_s += time.monotonic() - began
                if part.last:
                    answer_seconds.observe(answering_s)
        finally:
            stream.intake.release()

    async def _reserve(self, head: WindowHead, stream: "_Stream") -> None:
        """Reserves rows for a window once it has a grant."""
        await self._await_version(head, stream)
        granted = stream.outbox.granted
        granted.clear()
        while not stream.intake.reserve(head, time.monotonic()):
            waited = time.monotonic()
            # Each attempt counts as a sign of life, because the heartbeats behind the window are not read.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await granted.wait()
            granted.clear()
            self._check_current(stream)
            metrics.REPLAY_WAIT_SECONDS.labels("actor", "grant").inc(time.monotonic() - waited)

    async def _await_version(self, head: WindowHead, stream: "_Stream") -> None:
        """Waits until the buffer knows a window's version or a connected learner has not reported it for too long."""
        arrived = time.monotonic()
        while not stream.intake.knows_version(head):
            now = time.monotonic()
            if now > max(arrived, self._learner_since) + self._version_patience_s:
                return
            stream.intake.heard(now)
            await self.wait_for_change(_TICK_S)
            self._check_current(stream)

    async def _seal(self, stream: "_Stream") -> None:
        arrived = stream.intake.keys.size
        size = arrived * stream.segment_bytes
        stream.outbox.acknowledge(await off_loop(size, stream.intake.seal, time.monotonic()))
        if arrived:
            metrics.REPLAY_INSERTED.inc(arrived)
            self.distribute()

    def _check_current(self, stream: "_Stream") -> None:
        if self._outboxes.get(stream.key) is not stream.outbox:
            raise Unavailable(f"slot {stream.key.slot} has opened another stream since")


class _Stream:
    """State of one actor's stream."""

    def __init__(self, opening: wire.Opening, intake: Intake, outbox: Outbox, staging: StagingArea | None) -> None:
        self.key, self.segment_bytes = ActorKey(opening.slot, opening.incarnation), opening.schema.segment_bytes
        self.intake, self.outbox, self._staging = intake, outbox, staging
        self.reader = wire.WindowReader(
            schema=opening.schema,
            slot=opening.slot,
            incarnation=opening.incarnation,
            window_segments=opening.window_segments,
        )

    def take_small(self, request: wire.AppendRequest) -> None:
        """Processes a heartbeat, or the client's proof of the staging area."""
        match wire.decode_append_request(request, staged=self._staging is not None):
            case wire.Heartbeat(steps, round_trip_windows, waits):
                self.intake.heard(time.monotonic(), steps, round_trip_windows)
                self.outbox.hurry(waits)
            case wire.StagingProof(number):
                assert self._staging is not None
                answer = self._staging.answer(number)
                if answer:
                    self.reader.take_staged(self._staging.slots)
                self.outbox.prove_staging(answer)

    async def put(self, part: wire.WindowPart) -> None:
        """Stores one part of a window. Raises `DamagedWindow` if its staged bytes changed; its rows are released."""
        try:
            await off_loop(part.payload.size, self._copy, part)
        except DamagedWindow:
            self.intake.refuse()
            raise

    def _copy(self, part: wire.WindowPart) -> None:
        sums = None if part.checksum is None else np.zeros(SUMS, np.uint64)
        for fragment in part.fragments:
            self.intake.put(fragment, sums)
        if sums is not None:
            part.verify(checksum_of(sums))


async def _write_acknowledgements(outbox: Outbox, context: Context) -> None:
    while True:
        await write_whole(context, await outbox.next())
