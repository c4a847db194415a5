"""SampleBatches, CommitBatch and FinishRun: the learner's calls. Decodes requests, calls the buffer, encodes responses.

Runs on one event loop. Only work on large payloads moves to worker threads (`off_loop`).
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable

import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from penstock.errors import SchemaMismatch
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.leases import MAX_LEASES
from penstock.replay.segments import Lease
from penstock.rpc import methods
from penstock.rpc.errors import logged_refusal
from penstock.rpc.loop import off_loop
from penstock.rpc.proofs import prover_of
from penstock.rpc.service import Context, Method, logged_stay, opening_message, write_whole
from penstock.rpc.servicers.append import ANSWERED_WITHIN_S, AppendServicer
from penstock.telemetry import metrics
from penstock.types.codecs import Codec
from penstock.types.replay import BatchHead, CommitOutcome, SamplingPlan
from penstock.types.waits import Awaited
from penstock.v1 import replay_pb2
from penstock.wire import batches as wire

_WAITING_NOTICE_S = 1.0


class _Writer:
    """Writer of a learner's stream, shared by several tasks because gRPC accepts one message at a time.

    The answer to a commit that came with a request waits briefly to go with a batch, as an acknowledgement does.

    Attributes:
        codecs: Codecs that the learner reads besides raw bytes.
    """

    def __init__(self, context: Context, codecs: tuple[Codec, ...]) -> None:
        self._context, self._lock, self.codecs = context, asyncio.Lock(), codecs
        self._answers: deque[wire.SampleResponseMessage] = deque()
        self.answer_due = math.inf
        self.newest_batch = -1

    async def write(self, message: wire.SampleResponseMessage | bytes) -> None:
        async with self._lock:
            await write_whole(self._context, message)

    def owe(self, answer: wire.SampleResponseMessage) -> None:
        """Keeps an answer until a batch's head carries it or it is due."""
        self._answers.append(answer)
        self.answer_due = min(self.answer_due, time.monotonic() + ANSWERED_WITHIN_S)

    def take_answer(self) -> wire.SampleResponseMessage | None:
        """Removes and returns the oldest owed answer; None without one."""
        answer = self._answers.popleft() if self._answers else None
        if not self._answers:
            self.answer_due = math.inf
        return answer

    async def write_answers(self) -> None:
        """Writes all owed answers, each in its own message."""
        while (answer := self.take_answer()) is not None:
            await self.write(answer)


class SampleServicer:
    """Servicer of the learner's calls of one buffer.

    Attributes:
        run_finished: Whether the last learner has reported the end of its run.
        drawn_ages: <int64>[B] ages of the segments in the newest batch.
    """

    def __init__(self, buffer: ReplayBuffer, actors: AppendServicer) -> None:
        self._buffer, self._actors = buffer, actors
        self._streams = 0
        self.run_finished = False
        self.drawn_ages: NDArray[np.int64] = np.zeros(0, np.int64)

    async def sample_batches(self, requests: AsyncIterator[replay_pb2.SampleBatchesRequest], context: Context) -> None:
        """Serves one stream."""
        opening = await opening_message(requests)
        plan = wire.decode_first_plan(opening)
        # All open streams belong to one session, because no other is adopted while one is open.
        with logged_refusal("learner", peer=context.peer()):
            prover = prover_of(methods.SAMPLE_BATCHES, context.challenge, opening)
            change = self._buffer.adopt_plan(plan, prover, connected=self._streams > 0)
        self._streams += 1
        self._actors.learner_came()
        try:
            with logged_stay("learner", returned=change.returned, batch=str(plan.next_batch)):
                self.run_finished = False
                metrics.REPLAY_RUN_FINISHED.set(0)
                if change.recalled:
                    self._actors.recall()
                self._actors.distribute()
                await self._serve(requests, _Writer(context, wire.decode_codecs(opening)))
        finally:
            self._streams -= 1
            if not self._streams:
                self._actors.learners_left()

    async def commit_batch(
        self, request: replay_pb2.CommitBatchRequest, context: Context
    ) -> replay_pb2.CommitBatchResponse:
        """Commits a batch outside of a stream."""
        commit = wire.decode_commit(request)
        self._check_holder(methods.COMMIT_BATCH, request, context)
        return wire.encode_outcome(self._commit(commit))

    async def finish_run(self, request: replay_pb2.FinishRunRequest, context: Context) -> replay_pb2.FinishRunResponse:
        """Records the end of the run."""
        self._check_holder(methods.FINISH_RUN, request, context)
        if request.session != self._buffer.session:
            raise SchemaMismatch("another learner session has taken over, and its run is not over")
        self.run_finished = True
        metrics.REPLAY_RUN_FINISHED.set(1)
        return wire.encode_finished()

    def _check_holder(self, method: Method, request: Message, context: Context) -> None:
        with logged_refusal("learner", peer=context.peer()):
            self._buffer.ownership.check_holder(method.name, prover_of(method, context.challenge, request))

    async def _serve(self, requests: AsyncIterator[replay_pb2.SampleBatchesRequest], writer: _Writer) -> None:
        await self._wait_for_segments(writer)
        self._buffer.check_capacity()
        await writer.write(wire.encode_opened(self._buffer.store.mapped))
        wanted: asyncio.Queue[wire.BatchRequest | None] = asyncio.Queue(MAX_LEASES)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._serve_batches(wanted, writer))
            async for request in requests:
                await self._take_request(wire.decode_sample_request(request), wanted, writer)
            await wanted.put(None)

    async def _take_request(
        self,
        request: SamplingPlan | wire.BatchRequest | wire.Commit | wire.ProofRequest,
        wanted: "asyncio.Queue[wire.BatchRequest | None]",
        writer: _Writer,
    ) -> None:
        match request:
            case SamplingPlan():
                # Applied at once, even while a batch waits, because it may wait for this plan.
                self._buffer.adjust_plan(request)
                self._actors.distribute()
            case wire.Commit():
                writer.owe(self._answer(request))
                await writer.write_answers()
            case wire.ProofRequest():
                await writer.write(wire.encode_proof(self._buffer.prove_store()))
            case wire.BatchRequest():
                if request.commit is not None:
                    writer.owe(self._answer(request.commit))
                if request.head_only and request.number <= writer.newest_batch:
                    # Requested again, because segments were overwritten while the client read them. It must not queue
                    # behind a later batch whose fresh segments may be collected only after this batch is trained.
                    await self._serve_batch(request, writer)
                else:
                    await wanted.put(request)

    async def _serve_batches(self, wanted: "asyncio.Queue[wire.BatchRequest | None]", writer: _Writer) -> None:
        while (request := await wanted.get()) is not None:
            await self._serve_batch(request, writer)

    async def _serve_batch(self, request: wire.BatchRequest, writer: _Writer) -> None:
        lease = await self._wait_for_lease(request, writer)
        writer.newest_batch = max(writer.newest_batch, request.number)
        with metrics.STREAM_SECONDS.labels(methods.REPLAY, methods.SAMPLE_BATCHES.name).time():
            await self._send_batch(lease, request, writer)

    async def _wait_for_segments(self, writer: _Writer) -> None:
        """Waits until the store has a layout, which the first actor's schema determines."""
        while self._buffer.store.schema is None:
            await writer.write(wire.encode_waiting(self._buffer.training_waits_for()))
            await self._actors.wait_for_change(_WAITING_NOTICE_S)

    async def _wait_for_lease(self, request: wire.BatchRequest, writer: _Writer) -> Lease:
        notice_due = time.monotonic() + _WAITING_NOTICE_S
        while True:
            changed = self._actors.changed
            lease = self._buffer.leases.draw(request.number, request.replay_segments)
            if lease is not None:
                return lease
            # The search for fresh segments may have retired late ones, which makes room for grants.
            self._actors.hand_out_grants()
            reason, waited = self._buffer.training_waits_for(), time.monotonic()
            try:
                # The due time spans several turns of this loop, because changes are more frequent than notices.
                async with asyncio.timeout(max(0.0, min(notice_due, writer.answer_due) - waited)):
                    await changed.wait()
            except TimeoutError:
                await writer.write_answers()
                if time.monotonic() >= notice_due:
                    notice_due = time.monotonic() + _WAITING_NOTICE_S
                    await writer.write(wire.encode_waiting(reason, request))
            metrics.REPLAY_WAIT_SECONDS.labels("learner", reason).inc(time.monotonic() - waited)

    async def _send_batch(self, lease: Lease, request: wire.BatchRequest, writer: _Writer) -> None:
        attempt = 0
        if not request.head_only:
            # A head with columns carries no answer, because it may be discarded before it is written.
            await writer.write_answers()
        while True:
            head = self._buffer.leases.head(lease, attempt)
            if request.head_only:
                await writer.write(wire.encode_batch_head(head, writer.take_answer()))
                break
            if await self._send_columns(head, writer):
                break
            attempt += 1
        self.drawn_ages = head.ages
        metrics.REPLAY_SAMPLED.labels("fresh").inc(head.fresh_segments)
        metrics.REPLAY_SAMPLED.labels("replayed").inc(head.keys.size - head.fresh_segments)

    async def _send_columns(self, head: BatchHead, writer: _Writer) -> bool:
        """Sends a batch with its columns. Returns False if rows were overwritten; the client restarts at a part 0."""
        schema = self._buffer.store.schema
        assert schema is not None
        where = self._buffer.leases.places(head, writer.codecs)
        writing: Awaitable[None] | None = None
        try:
            for message, start, payload in wire.batch_messages(head, schema, where):
                whole = await off_loop(payload.size, self._buffer.leases.copy_bytes, head, where, start, payload)
                if writing is not None:
                    former, writing = writing, None
                    await former
                if not whole:
                    return False
                # Sends this part while the next one is copied.
                writing = asyncio.ensure_future(writer.write(message))
                metrics.REPLAY_SENT_BYTES.inc(payload.size)
            metrics.REPLAY_SENT_RAW_BYTES.inc(head.keys.size * schema.segment_bytes)
        finally:
            if writing is not None:
                await writing
        return True

    def _answer(self, commit: wire.Commit) -> wire.SampleResponseMessage:
        return wire.encode_commit_answer(commit.number, self._commit(commit))

    def _commit(self, commit: wire.Commit) -> CommitOutcome:
        outcome = self._buffer.leases.commit(commit.session, commit.number, commit.keys, commit.priorities)
        if commit.keys.size and self._buffer.training_waits_for() != Awaited.NOTHING:
            # No batch that waits can be drawn now, so the commit only makes room for grants.
            self._actors.hand_out_grants()
        else:
            self._actors.distribute()
        return outcome
