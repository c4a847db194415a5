"""The replay service over gRPC. Decodes requests, calls the buffer, which decides, and encodes responses.

Runs on one event loop. Only work on large payloads moves to worker threads (`off_loop`). Streams wait on `_changed`,
which is set at every change of the buffer's state.
"""

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import DamagedWindow, InvalidSegment, SchemaMismatch, Unavailable
from penstock.replay.admission import ActorKey
from penstock.replay.buffer import MAX_LEASES, ReplayBuffer, Reservation
from penstock.replay.fresh_segments import Lease
from penstock.replay.store.staging import StagingArea, StagingAreas
from penstock.rpc import methods
from penstock.rpc.loop import off_loop
from penstock.rpc.server import Server
from penstock.rpc.service import Context, Method, logged_stay, opening_message, write_whole
from penstock.telemetry import metrics
from penstock.types.payloads import layout
from penstock.types.replay import BatchHead, Grant, SamplingPlan, StagingOffer, WindowHead
from penstock.v1 import replay_pb2
from penstock.wire import replay as wire
from penstock.wire.schema import decode_schema
from penstock.wire.staged_checksum import SUMS, checksum_of

_WAITING_NOTICE_S = 1.0
_TICK_S = 0.5
_VERSION_PATIENCE_S = 30.0
"""Seconds that a window waits for a connected learner to report its version. A hung learner's stream ends in 15 s."""

_ANSWERED_WITHIN_S = 0.1
"""Longest delay in seconds of the answer to a window or a commit, which may go with another message."""


class _Outbox:
    """Messages owed to an actor's stream. Acknowledgements and grants accumulate while it writes.

    An acknowledgement waits briefly for a grant to go with it, because a message costs more than its content.
    """

    def __init__(self, stored_sequence: int, staging: StagingOffer | None) -> None:
        self._stored_sequence, self._staging = stored_sequence, staging
        self._grants: list[Grant] = []
        self._staging_proof: int | None = None
        self._returned = 0
        self._recalled = False
        self._due: asyncio.TimerHandle | None = None
        self._filled = asyncio.Event()
        self.granted = asyncio.Event()
        self._filled.set()

    def acknowledge(self, sequence: int) -> None:
        self._stored_sequence = sequence
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(_ANSWERED_WITHIN_S, self._filled.set)

    def grant(self, grant: Grant) -> None:
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
        """Ends the stream, because all its grants have returned to the gate and its actor still counts on them."""
        self._recalled = True
        self._filled.set()

    async def next(self) -> replay_pb2.AppendSegmentsResponse:
        await self._filled.wait()
        if self._recalled:
            raise Unavailable("the learner came with a new plan and all grants are void; open the stream again")
        return self.take()

    @property
    def owes(self) -> bool:
        return self._due is not None

    def take(self) -> replay_pb2.AppendSegmentsResponse:
        self._filled.clear()
        if self._due is not None:
            self._due.cancel()
            self._due = None
        grants, self._grants = self._grants, []
        returned, self._returned = self._returned, 0
        staging, self._staging = self._staging, None
        proof, self._staging_proof = self._staging_proof, None
        return wire.encode_append_response(self._stored_sequence, grants, staging, returned, proof)


class _Writer:
    """Writer of a learner's stream, shared by several tasks because gRPC accepts one message at a time.

    The answer to a commit that came with a request waits briefly to go with a batch, as an acknowledgement does.
    """

    def __init__(self, context: Context) -> None:
        self._context, self._lock = context, asyncio.Lock()
        self._answers: deque[replay_pb2.SampleBatchesResponse] = deque()
        self.answer_due = math.inf
        self.newest_batch = -1

    async def write(self, message: replay_pb2.SampleBatchesResponse | bytes) -> None:
        async with self._lock:
            await write_whole(self._context, message)

    def owe(self, answer: replay_pb2.SampleBatchesResponse) -> None:
        """Keeps an answer until a batch's head carries it or it is due."""
        self._answers.append(answer)
        self.answer_due = min(self.answer_due, time.monotonic() + _ANSWERED_WITHIN_S)

    def take_answer(self) -> replay_pb2.SampleBatchesResponse | None:
        """Removes and returns the oldest owed answer; None without one."""
        answer = self._answers.popleft() if self._answers else None
        if not self._answers:
            self.answer_due = math.inf
        return answer

    async def write_answers(self) -> None:
        """Writes all owed answers, each in its own message."""
        while (answer := self.take_answer()) is not None:
            await self.write(answer)


class ReplayServicer:
    """Servicer of one buffer. All methods run on the server's event loop.

    Attributes:
        run_finished: Whether the last learner has reported the end of its run.
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        *,
        max_actors: int,
        staging_bytes: int = 0,
        version_patience_s: float = _VERSION_PATIENCE_S,
        more_methods: Mapping[Method, Callable[..., Awaitable[Any]]] | None = None,
    ) -> None:
        """Creates the servicer and its server, which is not started.

        Args:
            buffer: Buffer to serve.
            max_actors: Limit on concurrent append streams.
            staging_bytes: Limit on the size of all staging areas together. A store without a folder has none.
            version_patience_s: Seconds that a window waits for a connected learner to report its version.
            more_methods: Further methods of the same server.
        """
        self._buffer, self._version_patience_s = buffer, version_patience_s
        self._staging = StagingAreas(buffer.folder, staging_bytes)
        self._outboxes: dict[ActorKey, _Outbox] = {}
        self._changed = asyncio.Event()
        self.run_finished = False
        self._drawn_ages: NDArray[np.int64] = np.zeros(0, np.int64)
        self._learner_streams, self._learner_came_at = 0, -math.inf
        self.server = Server(
            {
                methods.APPEND_SEGMENTS: self._append_segments,
                methods.SAMPLE_BATCHES: self._sample_batches,
                methods.COMMIT_BATCH: self._commit_batch,
                methods.FINISH_RUN: self._finish_run,
                methods.GET_REPLAY_STATUS: self._get_status,
                **(more_methods or {}),
            },
            # In addition to the actors' streams: a learner's ranks, commits, health checks and status queries.
            max_streams=max_actors + 64,
        )

    async def tick(self) -> None:
        """Takes back grants of silent and stuck actors and refreshes the metrics, until it is cancelled."""
        while True:
            await asyncio.sleep(_TICK_S)
            self._distribute()
            self._observe()

    def _distribute(self) -> None:
        """Hands new grants to their streams and wakes all tasks that wait for a change."""
        self._hand_out_grants()
        self._changed.set()
        self._changed = asyncio.Event()

    def _hand_out_grants(self) -> None:
        issued = self._buffer.issue_grants(time.monotonic())
        for key, count in self._buffer.take_returned().items():
            self._outboxes[key].take_back(count)
        for key, grant in issued:
            self._outboxes[key].grant(grant)

    # Actors

    async def _append_segments(self, requests: AsyncIterator[wire.AppendRequest], context: Context) -> None:
        opening = (await opening_message(requests)).message
        if opening.WhichOneof("message") != "open":
            raise InvalidSegment("an append stream must begin with `open`")
        schema = decode_schema(opening.open.schema)
        key = ActorKey(opening.open.slot, opening.open.incarnation)
        watermark = self._buffer.open_actor(key, schema, opening.open.window_segments, time.monotonic())
        _, window_bytes = layout(schema, opening.open.window_segments)
        staging = self._staging.allocate(window_bytes)
        returned = watermark > 0 or key in self._outboxes
        # A client may reconnect before this server notices the break. The old stream is then no longer current.
        outbox = self._outboxes[key] = _Outbox(watermark, staging.offer if staging else None)
        reader = wire.WindowReader(
            schema=schema,
            slot=key.slot,
            incarnation=key.incarnation,
            window_segments=opening.open.window_segments,
        )
        place = {"slot": str(key.slot), "incarnation": str(key.incarnation), "stored": str(watermark)}
        try:
            with logged_stay("actor", returned=returned, **place):
                self._distribute()
                async with asyncio.TaskGroup() as tasks:
                    writing = tasks.create_task(self._write_acknowledgements(outbox, context))
                    await self._read_windows(requests, key, outbox, reader, staging)
                    writing.cancel()
                if outbox.owes:
                    await write_whole(context, outbox.take())
        finally:
            if staging is not None:
                staging.close()
            if self._outboxes.get(key) is outbox:
                del self._outboxes[key]
                self._buffer.close_actor(key)
                self._distribute()

    async def _read_windows(
        self,
        requests: AsyncIterator[wire.AppendRequest],
        key: ActorKey,
        outbox: _Outbox,
        reader: wire.WindowReader,
        staging: StagingArea | None,
    ) -> None:
        reserved: Reservation | int = 0
        answering_s = 0.0
        answer_seconds = metrics.STREAM_SECONDS.labels(methods.REPLAY, methods.APPEND_SEGMENTS.name)
        try:
            async for request in requests:
                self._check_current(key, outbox)
                if request.window is None:
                    self._take_small(request.message, key, outbox, reader, staging)
                    continue
                part = reader.add(request.window)
                if not part.first:
                    self._buffer.heard(key, time.monotonic())
                metrics.REPLAY_RECEIVED_BYTES.inc(part.payload.size)
                if part.first:
                    # Released only once, because the rows may then belong to another window.
                    former, reserved = reserved, 0
                    self._give_up(former)
                    reserved, answering_s = await self._reserve(part.head, key, outbox), 0.0
                began = time.monotonic()
                if isinstance(reserved, Reservation):
                    try:
                        await off_loop(part.payload.size, self._put, reserved, part)
                    except DamagedWindow:
                        damaged, reserved = reserved, 0
                        self._buffer.refuse(damaged)
                        raise
                    self._check_current(key, outbox)
                if part.last:
                    complete, reserved = reserved, 0
                    await self._store(complete, key, outbox)
                answering_s += time.monotonic() - began
                if part.last:
                    answer_seconds.observe(answering_s)
        finally:
            self._give_up(reserved)

    def _take_small(
        self,
        message: replay_pb2.AppendSegmentsRequest,
        key: ActorKey,
        outbox: _Outbox,
        reader: wire.WindowReader,
        staging: StagingArea | None,
    ) -> None:
        kind = message.WhichOneof("message")
        if kind == "heartbeat":
            self._buffer.heard(key, time.monotonic(), message.heartbeat.steps)
        elif kind == "staging" and staging is not None:
            answer = staging.answer(message.staging.number)
            if answer:
                reader.take_staged(staging.slots)
            outbox.prove_staging(answer)
        else:
            raise InvalidSegment(
                "after `open` an append stream carries windows and heartbeats, and a proof of the staging area"
            )

    async def _reserve(self, head: WindowHead, key: ActorKey, outbox: _Outbox) -> Reservation | int:
        """Reserves rows for a window once it has a grant. Returns the last sequence if it is already stored."""
        await self._await_version(head, key, outbox)
        outbox.granted.clear()
        while (reserved := self._buffer.reserve(head, time.monotonic())) is None:
            waited = time.monotonic()
            # Each attempt counts as a sign of life, because the heartbeats behind the window are not read.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await outbox.granted.wait()
            outbox.granted.clear()
            self._check_current(key, outbox)
            metrics.REPLAY_WAIT_SECONDS.labels("actor", "grant").inc(time.monotonic() - waited)
        return reserved

    async def _await_version(self, head: WindowHead, key: ActorKey, outbox: _Outbox) -> None:
        """Waits until the buffer knows a window's version or a connected learner has not reported it for too long."""
        arrived = time.monotonic()
        while not self._buffer.knows_version(head):
            now = time.monotonic()
            if self._learner_streams and now > max(arrived, self._learner_came_at) + self._version_patience_s:
                return
            self._buffer.heard(key, now)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._changed.wait()
            self._check_current(key, outbox)

    def _put(self, reserved: Reservation, part: wire.WindowPart) -> None:
        sums = None if part.checksum is None else np.zeros(SUMS, np.uint64)
        for fragment in part.fragments:
            self._buffer.put(reserved, fragment, sums)
        if sums is not None:
            part.verify(checksum_of(sums))

    async def _store(self, reserved: Reservation | int, key: ActorKey, outbox: _Outbox) -> None:
        if isinstance(reserved, int):
            outbox.acknowledge(reserved)
            return
        size = reserved.keys.size * self._segment_bytes
        outbox.acknowledge(await off_loop(size, self._buffer.seal, reserved, time.monotonic()))
        metrics.REPLAY_INSERTED.inc(reserved.keys.size)
        self._distribute()

    def _give_up(self, reserved: Reservation | int) -> None:
        if isinstance(reserved, Reservation):
            self._buffer.release(reserved)

    @property
    def _segment_bytes(self) -> int:
        assert self._buffer.schema is not None
        return self._buffer.schema.segment_bytes

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
        # All open streams belong to one session, because no other is adopted while one is open.
        self._buffer.adopt_plan(plan, connected=self._learner_streams > 0)
        self._learner_streams, self._learner_came_at = self._learner_streams + 1, time.monotonic()
        returned = former is not None and former.session == plan.session
        try:
            with logged_stay("learner", returned=returned, batch=str(plan.next_batch)):
                await self._sample_by(plan, former, requests, context)
        finally:
            self._learner_streams -= 1

    async def _sample_by(
        self,
        plan: SamplingPlan,
        former: SamplingPlan | None,
        requests: AsyncIterator[replay_pb2.SampleBatchesRequest],
        context: Context,
    ) -> None:
        self.run_finished = False
        metrics.REPLAY_RUN_FINISHED.set(0)
        if former is not None and former != plan:
            for outbox in self._outboxes.values():
                outbox.recall()
        self._distribute()
        writer = _Writer(context)
        await self._wait_for_segments(writer)
        opened = replay_pb2.SamplingOpened(store=wire.encode_mapped_store(self._buffer.mapped_store))
        await writer.write(replay_pb2.SampleBatchesResponse(opened=opened))
        asked: asyncio.Queue[replay_pb2.BatchRequest | None] = asyncio.Queue(MAX_LEASES)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._serve_batches(asked, writer))
            async for request in requests:
                await self._take_request(request, asked, writer)
            await asked.put(None)

    async def _take_request(
        self,
        request: replay_pb2.SampleBatchesRequest,
        asked: "asyncio.Queue[replay_pb2.BatchRequest | None]",
        writer: _Writer,
    ) -> None:
        kind = request.WhichOneof("message")
        if kind == "plan":
            # Applied at once, even while a batch waits, because it may wait for this plan.
            self._buffer.adjust_plan(wire.decode_plan(request.plan))
            self._distribute()
        elif kind == "commit":
            writer.owe(self._answer(request.commit))
            await writer.write_answers()
        elif kind == "prove":
            proof = replay_pb2.StoreProof(number=self._buffer.prove_store())
            await writer.write(replay_pb2.SampleBatchesResponse(proof=proof))
        elif kind == "batch" and 0 <= request.batch.part < max(1, request.batch.parts):
            if request.batch.HasField("commit"):
                writer.owe(self._answer(request.batch.commit))
            if request.batch.head_only and request.batch.batch <= writer.newest_batch:
                # Requested again, because segments were overwritten while the client read them. It must not queue
                # behind a later batch whose fresh segments may be collected only after this batch is trained.
                await self._serve(request.batch, writer)
            else:
                await asked.put(request.batch)
        else:
            raise InvalidSegment(
                "after `plan` a sampling stream carries plans, commits, `prove`, and requests for part 0 to parts - 1"
            )

    def _answer(self, commit: replay_pb2.CommitBatchRequest) -> replay_pb2.SampleBatchesResponse:
        return replay_pb2.SampleBatchesResponse(batch=commit.batch, committed=self._commit(commit))

    async def _serve_batches(self, asked: "asyncio.Queue[replay_pb2.BatchRequest | None]", writer: _Writer) -> None:
        while (request := await asked.get()) is not None:
            await self._serve(request, writer)

    async def _serve(self, request: replay_pb2.BatchRequest, writer: _Writer) -> None:
        lease = await self._wait_for_lease(request, writer)
        writer.newest_batch = max(writer.newest_batch, request.batch)
        with metrics.STREAM_SECONDS.labels(methods.REPLAY, methods.SAMPLE_BATCHES.name).time():
            await self._send_batch(lease, request, writer)

    async def _wait_for_segments(self, writer: _Writer) -> None:
        """Waits until the store has a layout, which the first actor's schema determines."""
        while self._buffer.schema is None:
            await writer.write(replay_pb2.SampleBatchesResponse(waiting=self._buffer.training_waits_for()))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_WAITING_NOTICE_S):
                    await self._changed.wait()

    async def _wait_for_lease(self, request: replay_pb2.BatchRequest, writer: _Writer) -> Lease:
        notice_due = time.monotonic() + _WAITING_NOTICE_S
        while True:
            changed = self._changed
            wanted = request.replay_segments if request.HasField("replay_segments") else None
            lease = self._buffer.lease(request.batch, wanted)
            if lease is not None:
                return lease
            # The search for fresh segments may have retired late ones, which makes room for grants.
            self._hand_out_grants()
            reason, waited = self._buffer.training_waits_for(), time.monotonic()
            try:
                # The due time spans several turns of this loop, because changes are more frequent than notices.
                async with asyncio.timeout(max(0.0, min(notice_due, writer.answer_due) - waited)):
                    await changed.wait()
            except TimeoutError:
                await writer.write_answers()
                if time.monotonic() >= notice_due:
                    notice_due = time.monotonic() + _WAITING_NOTICE_S
                    await writer.write(
                        replay_pb2.SampleBatchesResponse(
                            batch=request.batch, part=request.part, parts=request.parts, waiting=reason
                        )
                    )
            metrics.REPLAY_WAIT_SECONDS.labels("learner", reason).inc(time.monotonic() - waited)

    async def _send_batch(self, lease: Lease, request: replay_pb2.BatchRequest, writer: _Writer) -> None:
        part, parts = request.part, max(1, request.parts)
        attempt = 0
        if not request.head_only:
            # A head with columns carries no answer, because it may be discarded before it is written.
            await writer.write_answers()
        while True:
            head = self._buffer.head(lease, part, parts, attempt)
            if request.head_only:
                await writer.write(wire.encode_batch_head(head, part, parts, writer.take_answer()))
                break
            if await self._send_columns(head, part, parts, writer):
                break
            attempt += 1
        self._drawn_ages = head.ages
        metrics.REPLAY_SAMPLED.labels("fresh").inc(head.fresh_segments)
        metrics.REPLAY_SAMPLED.labels("replayed").inc(head.keys.size - head.fresh_segments)

    async def _send_columns(self, head: BatchHead, part: int, parts: int, writer: _Writer) -> bool:
        """Sends a batch with its columns. Returns False if rows were overwritten; the client restarts at a part 0."""
        schema = self._buffer.schema
        assert schema is not None
        offsets, _ = layout(schema, head.keys.size)
        writing: Awaitable[None] | None = None
        try:
            for message, start, payload in wire.batch_messages(head, schema, part, parts):
                whole = await off_loop(payload.size, self._buffer.copy_bytes, head, offsets, start, payload)
                if writing is not None:
                    former, writing = writing, None
                    await former
                if not whole:
                    return False
                # Sends this part while the next one is copied.
                writing = asyncio.ensure_future(writer.write(message))
                metrics.REPLAY_SENT_BYTES.inc(payload.size)
        finally:
            if writing is not None:
                await writing
        return True

    async def _commit_batch(
        self, request: replay_pb2.CommitBatchRequest, context: Context
    ) -> replay_pb2.CommitBatchResponse:
        return self._commit(request)

    async def _finish_run(self, request: replay_pb2.FinishRunRequest, context: Context) -> replay_pb2.FinishRunResponse:
        if request.session != self._buffer.session:
            raise SchemaMismatch("another learner session has taken over, and its run is not over")
        self.run_finished = True
        metrics.REPLAY_RUN_FINISHED.set(1)
        return replay_pb2.FinishRunResponse()

    def _commit(self, request: replay_pb2.CommitBatchRequest) -> replay_pb2.CommitBatchResponse:
        if request.batch > wire.MAX_BATCH:
            raise InvalidSegment(f"batch {request.batch} can't be committed: the largest number is {wire.MAX_BATCH}")
        outcome = self._buffer.commit(
            request.session,
            request.batch,
            wire.column_of(request.keys, np.uint64),
            wire.column_of(request.priorities, np.float64),
        )
        self._distribute()
        return replay_pb2.CommitBatchResponse(
            updated=outcome.updated, overwritten=outcome.overwritten, repeated_commit=outcome.repeated
        )

    # Status and metrics

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
        schema = self._buffer.schema
        metrics.REPLAY_STORED_BYTES.set(counts.stored * schema.segment_bytes if schema is not None else 0)
        metrics.REPLAY_MASS.set(self._buffer.mass.total)
        priorities, ages = self._buffer.looked_over()
        metrics.set_quantiles(metrics.REPLAY_PRIORITY, priorities)
        metrics.set_quantiles(metrics.REPLAY_AGE, ages)
        metrics.set_quantiles(metrics.REPLAY_DRAWN_AGE, self._drawn_ages)
        metrics.REPLAY_GRANTED.set(counts.granted)
        metrics.REPLAY_LATE.set(counts.late)
        metrics.REPLAY_ACTORS.set(self._buffer.actors)
        metrics.REPLAY_VERSION.set(self._buffer.version)
        metrics.REPLAY_IGNORED_PRIORITIES.set(self._buffer.ignored_priorities)
        metrics.REPLAY_REFUNDED.set(counts.refunded)
        metrics.REPLAY_REFUSED.set(counts.refused)
        metrics.REPLAY_STUCK_ACTORS.set(self._buffer.stuck_actors)
        metrics.REPLAY_TIMED_OUT.set(self._buffer.timed_out_grants)
