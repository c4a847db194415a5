"""The replay service over gRPC: decodes, calls the buffer, encodes. The buffer decides.

Runs on one event loop; only the gathering of batches leaves it for a thread. Streams wait on `_changed`, which every
change of the buffer's state sets.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import numpy as np

from penstock.errors import InvalidSegment, SchemaMismatch, Unavailable
from penstock.replay.admission import ActorKey
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.fresh_segments import Lease
from penstock.rpc import methods
from penstock.rpc.server import Server
from penstock.rpc.service import Context, opening_message, write_whole
from penstock.telemetry import metrics
from penstock.types import Grant, Schema
from penstock.v1 import replay_pb2
from penstock.wire import block
from penstock.wire import replay as wire
from penstock.wire.schema import decode_schema

_WAITING_NOTICE_S = 1.0
_TICK_S = 0.5


class _Outbox:
    """What an actor's stream still has to be told; acknowledgements and grants are gathered up while it writes."""

    def __init__(self, stored_sequence: int) -> None:
        self._stored_sequence = stored_sequence
        self._grants: list[Grant] = []
        self._recalled = False
        self.filled = asyncio.Event()
        self.granted = asyncio.Event()
        self.filled.set()

    def acknowledge(self, sequence: int) -> None:
        self._stored_sequence = sequence
        self.filled.set()

    def grant(self, grant: Grant) -> None:
        self._grants.append(grant)
        self.filled.set()
        self.granted.set()

    def recall(self) -> None:
        """All grants of this stream have returned to the gate: it ends, since its actor would still count on them."""
        self._recalled = True
        self.filled.set()

    async def next(self) -> replay_pb2.AppendSegmentsResponse:
        await self.filled.wait()
        if self._recalled:
            raise Unavailable("the learner came with a new plan and all grants are void; open the stream again")
        self.filled.clear()
        grants, self._grants = self._grants, []
        return wire.encode_append_response(self._stored_sequence, grants)


class ReplayServicer:
    """Serves one buffer. All methods on the server's event loop."""

    def __init__(self, buffer: ReplayBuffer, *, max_actors: int) -> None:
        self._buffer = buffer
        self._outboxes: dict[ActorKey, _Outbox] = {}
        self._changed = asyncio.Event()
        self.server = Server(
            {
                methods.APPEND_SEGMENTS: self._append_segments,
                methods.SAMPLE_BATCHES: self._sample_batches,
                methods.COMMIT_BATCH: self._commit_batch,
                methods.GET_REPLAY_STATUS: self._get_status,
            },
            # Beside the actors' streams: a learner's ranks, commits, health checks, people who look.
            max_streams=max_actors + 64,
        )

    async def tick(self) -> None:
        """Takes back grants of the silent and refreshes the metrics, for as long as the service runs."""
        while True:
            await asyncio.sleep(_TICK_S)
            self._distribute()
            self._observe()

    def _distribute(self) -> None:
        """Hands new grants to their streams, and wakes whoever waits for a change."""
        self._hand_out_grants()
        self._changed.set()
        self._changed = asyncio.Event()

    def _hand_out_grants(self) -> None:
        for key, grant in self._buffer.issue_grants(time.monotonic()):
            self._outboxes[key].grant(grant)

    # Actors

    async def _append_segments(
        self, requests: AsyncIterator[replay_pb2.AppendSegmentsRequest], context: Context
    ) -> None:
        opening = await opening_message(requests)
        if opening.WhichOneof("message") != "open":
            raise InvalidSegment("an append stream must begin with `open`")
        schema = decode_schema(opening.open.schema)
        key = ActorKey(opening.open.slot, opening.open.incarnation)
        watermark = self._buffer.open_actor(key, schema, opening.open.window_segments, time.monotonic())
        # A client that lost its stream comes back before this server has noticed; the old stream is then nobody's.
        outbox = self._outboxes[key] = _Outbox(watermark)
        try:
            self._distribute()
            async with asyncio.TaskGroup() as tasks:
                writing = tasks.create_task(self._write_acknowledgements(outbox, context))
                await self._read_windows(requests, key, outbox, schema, opening.open.window_segments)
                writing.cancel()
        finally:
            if self._outboxes.get(key) is outbox:
                del self._outboxes[key]
                self._buffer.close_actor(key)
                self._distribute()

    async def _read_windows(
        self,
        requests: AsyncIterator[replay_pb2.AppendSegmentsRequest],
        key: ActorKey,
        outbox: _Outbox,
        schema: Schema,
        window_segments: int,
    ) -> None:
        assembler = wire.WindowAssembler(
            schema=schema, slot=key.slot, incarnation=key.incarnation, window_segments=window_segments
        )
        async for request in requests:
            self._check_current(key, outbox)
            kind = request.WhichOneof("message")
            if kind == "heartbeat":
                self._buffer.heard(key, time.monotonic())
                continue
            if kind != "window":
                raise InvalidSegment("after `open` an append stream carries windows and heartbeats")
            metrics.REPLAY_RECEIVED_BYTES.inc(len(request.window.block.payload))
            window = assembler.add(request.window)
            if window is None:
                continue
            outbox.granted.clear()
            while (stored := self._buffer.append(window, time.monotonic())) is None:
                waited = time.monotonic()
                # Offering the window again is a sign of life; the heartbeats that come behind it are not read.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(outbox.granted.wait(), _TICK_S)
                outbox.granted.clear()
                self._check_current(key, outbox)
                metrics.REPLAY_WAIT_SECONDS.labels("actor", "grant").inc(time.monotonic() - waited)
            outbox.acknowledge(stored)
            metrics.REPLAY_INSERTED.inc(window.columns.segments)
            self._distribute()

    def _check_current(self, key: ActorKey, outbox: _Outbox) -> None:
        if self._outboxes.get(key) is not outbox:
            raise Unavailable(f"slot {key.slot} has opened another stream since")

    @staticmethod
    async def _write_acknowledgements(outbox: _Outbox, context: Context) -> None:
        while True:
            await write_whole(context, await outbox.next())

    # The learner

    async def _sample_batches(self, requests: AsyncIterator[replay_pb2.SampleBatchesRequest], context: Context) -> None:
        opening = await opening_message(requests)
        if opening.WhichOneof("message") != "plan":
            raise InvalidSegment("a sampling stream must begin with `plan`")
        plan = wire.decode_plan(opening.plan)
        former = self._buffer.plan
        self._buffer.adopt_plan(plan)
        if former is not None and former != plan:
            for outbox in self._outboxes.values():
                outbox.recall()
        self._distribute()
        async for request in requests:
            if request.WhichOneof("message") != "batch" or not 0 <= request.batch.part < max(1, request.batch.parts):
                raise InvalidSegment(
                    "after `plan` a sampling stream carries requests for part 0 to parts - 1 of batches"
                )
            lease = await self._wait_for_lease(request.batch, plan.session, context)
            await self._send_batch(lease, request.batch, context)

    async def _wait_for_lease(self, request: replay_pb2.BatchRequest, session: int, context: Context) -> Lease:
        notice_due = time.monotonic() + _WAITING_NOTICE_S
        while True:
            changed = self._changed
            if self._buffer.session != session:
                raise SchemaMismatch("another learner session has taken over; only one learner may train a run")
            lease = self._buffer.lease(request.batch)
            if lease is not None:
                return lease
            # Looking for fresh segments may have retired late ones, and made room.
            self._hand_out_grants()
            reason, waited = self._buffer.training_waits_for(), time.monotonic()
            try:
                # Changes come more often than notices are due.
                await asyncio.wait_for(changed.wait(), max(0.0, notice_due - waited))
            except TimeoutError:
                notice_due = time.monotonic() + _WAITING_NOTICE_S
                await context.write(
                    replay_pb2.SampleBatchesResponse(
                        batch=request.batch, part=request.part, parts=request.parts, waiting=reason
                    )
                )
            metrics.REPLAY_WAIT_SECONDS.labels("learner", reason).inc(time.monotonic() - waited)

    async def _send_batch(self, lease: Lease, request: replay_pb2.BatchRequest, context: Context) -> None:
        schema = self._buffer.schema
        assert schema is not None
        part, parts = request.part, max(1, request.parts)
        payload, columns = block.allocate(schema, len(range(part, lease.keys.size, parts)))
        batch = await asyncio.to_thread(self._buffer.gather, lease, columns, part, parts)
        for message in wire.encode_batch(batch, payload, part, parts):
            await context.write(message)
        metrics.REPLAY_SENT_BYTES.inc(payload.nbytes)
        metrics.REPLAY_SAMPLED.labels("fresh").inc(batch.fresh_segments)
        metrics.REPLAY_SAMPLED.labels("replayed").inc(batch.keys.size - batch.fresh_segments)

    async def _commit_batch(
        self, request: replay_pb2.CommitBatchRequest, context: Context
    ) -> replay_pb2.CommitBatchResponse:
        outcome = self._buffer.commit(
            request.session,
            request.batch,
            np.array(request.keys, np.uint64),
            np.array(request.priorities, np.float64),
            request.version,
        )
        self._distribute()
        return replay_pb2.CommitBatchResponse(
            updated=outcome.updated, overwritten=outcome.overwritten, repeated_commit=outcome.repeated
        )

    # Whoever looks on

    async def _get_status(
        self, request: replay_pb2.GetReplayStatusRequest, context: Context
    ) -> replay_pb2.GetReplayStatusResponse:
        return replay_pb2.GetReplayStatusResponse(
            counts=wire.encode_counts(self._buffer.counts()),
            version=self._buffer.version,
            actors=self._buffer.actors,
            collection_waits_for=self._buffer.collection_waits_for(),
            training_waits_for=self._buffer.training_waits_for(),
        )

    def _observe(self) -> None:
        counts = self._buffer.counts()
        metrics.REPLAY_CAPACITY.set(counts.capacity)
        metrics.REPLAY_SEGMENTS.labels("unseen").set(counts.unseen)
        metrics.REPLAY_SEGMENTS.labels("leased").set(counts.leased)
        metrics.REPLAY_SEGMENTS.labels("seen").set(counts.stored - counts.unseen - counts.leased)
        metrics.REPLAY_GRANTED.set(counts.granted)
        metrics.REPLAY_LATE.set(counts.late)
        metrics.REPLAY_ACTORS.set(self._buffer.actors)
        metrics.REPLAY_VERSION.set(self._buffer.version)
        metrics.REPLAY_IGNORED_PRIORITIES.set(self._buffer.ignored_priorities)
        metrics.REPLAY_REFUNDED.set(self._buffer.refunded_leases)
