"""AppendSegments: an actor's stream of windows. Decodes requests, calls the stream's `Intake` and fills its outbox.

Runs on one event loop. Only work on large payloads moves to worker threads (`off_loop`).
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

import numpy as np

from penstock.errors import DamagedWindow, Unavailable
from penstock.replay.admission import ActorKey
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.intake import Intake
from penstock.replay.store.staging import StagingArea, StagingAreas
from penstock.rpc import methods
from penstock.rpc.loop import off_loop
from penstock.rpc.service import Context, logged_stay, opening_message, write_whole
from penstock.rpc.servicers.outboxes import Outbox, Outboxes
from penstock.telemetry import metrics
from penstock.types.payloads import layout
from penstock.types.replay import WindowHead
from penstock.wire import replay as wire
from penstock.wire.replay_service import Heartbeat, Opening, StagingProof, decode_append_request, decode_opening
from penstock.wire.staged_checksum import SUMS, checksum_of

_TICK_S = 0.5


class AppendServicer:
    """Servicer of the actors' streams of one buffer."""

    def __init__(
        self,
        buffer: ReplayBuffer,
        outboxes: Outboxes,
        staging: StagingAreas,
        *,
        learner_since: Callable[[], float],
        version_patience_s: float,
    ) -> None:
        """Creates the servicer.

        A window waits `version_patience_s` seconds for a connected learner to report its version. `learner_since`
        returns the time (`time.monotonic`) at which the learner connected; infinity without one.
        """
        self._buffer, self._outboxes, self._staging = buffer, outboxes, staging
        self._learner_since, self._version_patience_s = learner_since, version_patience_s

    async def append_segments(self, requests: AsyncIterator[wire.AppendRequest], context: Context) -> None:
        """Serves one stream."""
        opening = decode_opening(await opening_message(requests))
        key = ActorKey(opening.slot, opening.incarnation)
        intake = self._buffer.open_actor(key, opening.schema, opening.window_segments, time.monotonic())
        staging = self._staging.allocate(layout(opening.schema, opening.window_segments)[1])
        stored = intake.stored_sequence
        returned = stored > 0 or self._outboxes.current(key) is not None
        outbox = Outbox(stored, staging.offer if staging else None)
        stream = _Stream(opening, intake, outbox, staging)
        self._outboxes.open(key, outbox)
        place = {"slot": str(key.slot), "incarnation": str(key.incarnation), "stored": str(stored)}
        try:
            with logged_stay("actor", returned=returned, **place):
                self._outboxes.distribute()
                async with asyncio.TaskGroup() as tasks:
                    writing = tasks.create_task(_write_acknowledgements(outbox, context))
                    await self._read(requests, stream)
                    writing.cancel()
                if outbox.owes:
                    await write_whole(context, outbox.take())
        finally:
            if staging is not None:
                staging.close()
            if self._outboxes.current(key) is outbox:
                self._outboxes.close(key)
                intake.close()
                self._outboxes.distribute()

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
                metrics.REPLAY_RECEIVED_BYTES.inc(part.payload.size)
                if part.first:
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
            if now > max(arrived, self._learner_since()) + self._version_patience_s:
                return
            stream.intake.heard(now)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._outboxes.changed.wait()
            self._check_current(stream)

    async def _seal(self, stream: "_Stream") -> None:
        arrived = stream.intake.keys.size
        size = arrived * stream.segment_bytes
        stream.outbox.acknowledge(await off_loop(size, stream.intake.seal, time.monotonic()))
        if arrived:
            metrics.REPLAY_INSERTED.inc(arrived)
            self._outboxes.distribute()

    def _check_current(self, stream: "_Stream") -> None:
        if self._outboxes.current(stream.key) is not stream.outbox:
            raise Unavailable(f"slot {stream.key.slot} has opened another stream since")


class _Stream:
    """State of one actor's stream."""

    def __init__(self, opening: Opening, intake: Intake, outbox: Outbox, staging: StagingArea | None) -> None:
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
        match decode_append_request(request, staged=self._staging is not None):
            case Heartbeat(steps):
                self.intake.heard(time.monotonic(), steps)
            case StagingProof(number):
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
