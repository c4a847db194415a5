"""The learner's stream from the replay service, which requests batches ahead and returns priorities in commits.

The stream runs on a loop thread and reopens after every break. Commits are resent until they are answered. The
training thread uses the source. Its next call raises an error that no retry can fix.
"""

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigurationError, InvalidSegment, PenstockError, Unavailable
from penstock.replay.store_reader import StoreReader
from penstock.rpc import methods
from penstock.rpc.channel import Backoff, Stream, call_unary, connect, exchange, keep_open, open_stream
from penstock.rpc.loop import LoopThread, off_loop
from penstock.telemetry import logs, metrics
from penstock.types import Batch, BatchHead, CommitOutcome, MappedStore, SamplingPlan, Schema
from penstock.v1 import replay_pb2
from penstock.wire import block
from penstock.wire import replay as wire
from penstock.wire.block import PayloadPool

_MAX_UNCOMMITTED = 8
"""Limit on unanswered commits. The learner never gets far ahead of them, because the gate waits for them too."""

_STOP_CHECK_S = 0.1
FAREWELL_S = 2.0
"""Seconds that `close` waits for outstanding commits, and the default deadline of `finish`."""

MAX_BATCH_BYTES = 2**31


class ReplayBatchSource:
    """Source of the learner's batches; implements `learning.protocols.BatchSource`."""

    def __init__(
        self,
        thread: LoopThread,
        address: str,
        schema: Schema,
        *,
        prefetch_batches: int,
        stopping: Callable[[], bool] = lambda: False,
        replay_segments: Callable[[int], int | None] = lambda number: None,
        changed: threading.Condition | None = None,
        arrived: Callable[[Batch], None] = lambda batch: None,
    ) -> None:
        """Creates a channel to the replay service; `open` starts the stream.

        Args:
            thread: Thread whose loop runs the stream.
            address: Address of the replay service as host:port.
            schema: Schema of the run's segments.
            prefetch_batches: Batches requested ahead of the one that `next` returns.
            stopping: Function that returns whether the process is to stop. `commit` then no longer waits for room.
            replay_segments: Function that maps a batch's number to the number of segments to replay in it, or to None
                for the plan's number. Called on the loop.
            changed: Condition that guards the state and is notified of every change; several sources may share one.
            arrived: Callback for each batch before `next` returns it. Called on the loop; must not wait.
        """
        self._arrived = arrived
        self._replay_segments = replay_segments
        self._thread, self._schema, self._prefetch, self._stopping = thread, schema, prefetch_batches, stopping
        self._peer = f"the replay service at {address}"
        self._channel = thread.run(self._connect(address))
        self._lock = changed or threading.Condition()
        self._ready: deque[Batch] = deque()
        self._pool = PayloadPool()
        self.reads = ""
        self._plan: SamplingPlan | None = None
        self._adjusted = self._noted_columns = False
        self._uncommitted: deque[_Commit] = deque()
        self._unsent: deque[_Commit] = deque()
        self._failure: PenstockError | None = None
        self._waiting = "the replay service"
        self._next_number = self._last_wanted = 0
        self._skipped = False
        self._heard_at = -math.inf
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @staticmethod
    async def _connect(address: str) -> grpc.aio.Channel:
        return connect(address)

    def open(self, plan: SamplingPlan) -> None:
        """Starts the stream: sends the plan and requests the first batches."""
        self._plan, self._next_number = plan, plan.next_batch
        self._last_wanted = plan.next_batch + self._prefetch
        self._task = self._thread.spawn(self._run())

    def adjust(self, plan: SamplingPlan) -> None:
        """Replaces the plan within the session, which changes later batches and how far collection may run ahead."""
        with self._lock:
            self._plan, self._adjusted = plan, True
        self._thread.call(self._wanted.set)

    @property
    def waiting_for(self) -> str:
        """Reason why the next batch is not ready; empty if it is."""
        with self._lock:
            return "" if self._ready else self._waiting

    @property
    def ready(self) -> Batch | None:
        """Batch that `next` would return immediately, if any. Raises the error that ended the stream for good."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            return self._ready[0] if self._ready else None

    @property
    def heard_at(self) -> float:
        """Time of the last message on the open stream, by `time.monotonic`; minus infinity while none is open."""
        with self._lock:
            return self._heard_at

    def skip(self) -> None:
        """Skips the batch that `next` would return. The caller must then commit it without keys."""
        with self._lock:
            self._next_number += 1
            self._last_wanted = max(self._last_wanted, self._next_number + self._prefetch)
            self._skipped = True
            while self._ready and self._ready[0].number < self._next_number:
                self._ready.popleft()

    def next(self, timeout_s: float) -> Batch | None:
        """Waits for the next batch; None after `timeout_s`. Raises the error that ended the stream for good."""
        with self._lock:
            self._lock.wait_for(lambda: self._ready or self._failure, timeout_s)
            if self._failure is not None:
                raise self._failure
            if not self._ready:
                return None
            batch = self._ready.popleft()
            self._next_number = batch.number + 1
            wanted = self._next_number + self._prefetch > self._last_wanted
            self._last_wanted = max(self._last_wanted, self._next_number + self._prefetch)
        if wanted:
            self._thread.call(self._wanted.set)
        return batch

    def commit(self, batch: Batch, priorities: NDArray[np.float64]) -> Future[CommitOutcome]:
        """Ends a batch's lease with <float64>[B] new priorities.

        The future yields the answer, even if the stream breaks meanwhile. Waits while too many commits are unanswered.

        Raises:
            Unavailable: There is no room for the commit and the process is to stop.
            PenstockError: The error that ended the stream for good.
        """
        return self.commit_keys(batch.number, batch.keys, priorities)

    def commit_keys(
        self, number: int, keys: NDArray[np.uint64], priorities: NDArray[np.float64]
    ) -> Future[CommitOutcome]:
        """Commits a batch by its keys, otherwise as `commit`. Without keys, passes over all batches up to `number`."""
        assert self._plan is not None
        request = replay_pb2.CommitBatchRequest(
            session=self._plan.session,
            batch=number,
            keys=keys.astype("<u8", copy=False).tobytes(),
            priorities=priorities.astype("<f8", copy=False).tobytes(),
        )
        commit = _Commit(request, Future())
        with self._lock:
            while keys.size and len(self._uncommitted) >= _MAX_UNCOMMITTED and self._failure is None:
                if self._stopping():
                    raise Unavailable(f"{self._peer} does not answer to {len(self._uncommitted)} commits")
                self._lock.wait(_STOP_CHECK_S)
            if self._failure is not None:
                raise self._failure
            self._skipped = self._skipped and keys.size > 0
            # The learner takes batch `number + 1` next. Requesting now what that will allow lets the request carry
            # this commit.
            self._last_wanted = max(self._last_wanted, number + 2 + self._prefetch)
            if not keys.size and self._unsent and not self._unsent[-1].request.keys:
                # Merges commits without keys into the last one, so that no queue grows while the service is away.
                commit = _Commit(request, self._unsent.pop().outcome)
                self._uncommitted.pop()
            self._uncommitted.append(commit)
            self._unsent.append(commit)
        self._thread.call(self._wanted.set)
        return commit.outcome

    def finish(self, timeout_s: float = FAREWELL_S) -> None:
        """Reports the end of the run to the service. A failure is logged, not raised."""
        assert self._plan is not None
        request = replay_pb2.FinishRunRequest(session=self._plan.session)
        try:
            self._thread.run(call_unary(self._channel, methods.FINISH_RUN, request, self._peer, timeout_s))
        except PenstockError as error:
            logs.note("the end of the run was not told", reason=str(error))

    def close(self, farewell_s: float = FAREWELL_S) -> None:
        """Waits up to `farewell_s` for outstanding commits, then ends the stream. Leases stay with the session."""
        if self._task is not None:
            with self._lock:
                self._lock.wait_for(lambda: not self._uncommitted or self._failure, farewell_s)
            self._thread.call(self._task.cancel)
            self._task = None
        self._thread.run(self._channel.close())

    async def _run(self) -> None:
        error = await keep_open(
            self._channel,
            self._stream,
            peer=self._peer,
            service="replay",
            broken=lambda error: self._wait_for_service(),
        )
        with self._lock:
            self._failure = error
            lost, self._uncommitted = self._uncommitted, deque()
            self._lock.notify_all()
        for commit in lost:
            commit.outcome.set_exception(error)

    def _wait_for_service(self) -> None:
        with self._lock:
            self._waiting, self._heard_at = "the replay service", -math.inf
            self._lock.notify_all()

    async def _stream(self, backoff: Backoff) -> None:
        with self._lock:
            plan, self._adjusted = self._plan, False
            # Commits are idempotent, so those that may not have arrived are resent before any request.
            self._unsent = deque(self._uncommitted)
            # A new store in place of a lost one starts at this batch and answers earlier commits as repeated.
            first = self._first_unasked
        assert plan is not None
        plan = replace(plan, next_batch=first)
        stream = _Stream(open_stream(self._channel, methods.SAMPLE_BATCHES), self._schema, self._pool)

        def take(response: wire.SampleResponse) -> None:
            backoff.reset()
            if stream.opened:
                self._heard_at = time.monotonic()
            if response.message.HasField("committed"):
                self._take_outcome(response.message)
                if not response.message.HasField("counts"):
                    return
            if response.message.HasField("opened") or response.message.HasField("proof"):
                self._heard_at = time.monotonic()
                if response.message.HasField("opened"):
                    reason = stream.open_store(wire.decode_mapped_store(response.message.opened))
                else:
                    reason = stream.read_if_shown(response.message.proof.number)
                self._note_columns(reason)
                if stream.opened:
                    self.reads = "mapped store" if stream.reader else "gRPC"
                    metrics.LEARNER_MAPPED.set(stream.reader is not None)
                self._wanted.set()
            elif response.message.waiting:
                with self._lock:
                    self._waiting = response.message.waiting
            else:
                stream.take(response)

        await stream.live(replay_pb2.SampleBatchesRequest(plan=wire.encode_plan(plan)), take, self._ask, self._deliver)

    def _note_columns(self, reason: str) -> None:
        if reason and not self._noted_columns:
            self._noted_columns = True
            logs.note("batches come from the replay service in messages", reason=reason)

    @property
    def _first_unasked(self) -> int:
        """Number of the first batch that a new stream requests."""
        return self._ready[-1].number + 1 if self._ready else self._next_number

    async def _ask(self, stream: "_Stream") -> None:
        with self._lock:
            asked = self._first_unasked
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            with self._lock:
                plan, adjusted, self._adjusted = self._plan, self._adjusted, False
            await stream.prove_if_mapped()
            if adjusted and plan is not None:
                await stream.adjust(replace(plan, next_batch=asked))
            while stream.opened:
                commit, number = self._next_unsent(), self._next_to_ask(asked)
                if number is not None:
                    await stream.ask(number, self._replay_segments(number), commit)
                    asked = number + 1
                elif commit is not None:
                    await stream.commit(commit)
                else:
                    break

    def _next_unsent(self) -> replay_pb2.CommitBatchRequest | None:
        with self._lock:
            if not self._unsent or (not self._unsent[0].request.keys and self._unsent[0] is not self._uncommitted[0]):
                # A commit without keys leaves once all earlier ones are answered. Until then a later one may replace it
                # in the queue.
                return None
            return self._unsent.popleft().request

    def _next_to_ask(self, asked: int) -> int | None:
        with self._lock:
            # The service expects a skipped batch until a commit passes over it.
            number = max(asked, self._next_number)
            return number if number <= self._last_wanted and not self._skipped and not self._unsent else None

    def _take_outcome(self, message: replay_pb2.SampleBatchesResponse) -> None:
        """Settles the oldest open commit. Answers come in the order of the commits, alone or in a batch's head."""
        answer = message.committed
        with self._lock:
            commit = self._uncommitted.popleft()
            if commit.request.batch != message.batch and not message.HasField("counts"):
                raise InvalidSegment(
                    f"{self._peer} answered to the commit of batch {message.batch}, and that of"
                    f" {commit.request.batch} was due"
                )
            self._lock.notify_all()
        if self._unsent:
            self._wanted.set()
        commit.outcome.set_result(CommitOutcome(answer.updated, answer.overwritten, answer.repeated_commit))

    def _deliver(self, batch: Batch) -> None:
        with self._lock:
            if batch.number >= self._next_number:
                self._arrived(batch)
                self._ready.append(batch)
            self._waiting = "fresh segments"
            self._lock.notify_all()


@dataclass(frozen=True, slots=True)
class _Commit:
    """Commit without an answer yet."""

    request: replay_pb2.CommitBatchRequest
    outcome: Future[CommitOutcome]


class _Stream:
    """SampleBatches stream. Its columns come in messages, or from the store's file if that can be mapped here."""

    def __init__(self, call: Stream, schema: Schema, pool: PayloadPool) -> None:
        self._call, self._schema, self._pool = call, schema, pool
        self._assembler = wire.BatchAssembler(MAX_BATCH_BYTES, pool)
        self._writing = asyncio.Lock()
        self._batches: asyncio.Queue[Batch | BatchHead] = asyncio.Queue()
        self._redrawn: asyncio.Queue[BatchHead] = asyncio.Queue()
        self._newest = -1
        self._mapped: StoreReader | None = None
        self._asked_for_proof = False
        self.opened = False
        self.reader: StoreReader | None = None

    def open_store(self, store: MappedStore | None) -> str:
        """Maps the store that the server offers, if any. It is read only after a proof (`read_if_shown`).

        Returns:
            Reason why an offered store is not read; empty otherwise.
        """
        reason = ""
        if store is not None:
            try:
                self._mapped = StoreReader(store, self._schema)
            except ConfigurationError as error:
                reason = str(error)
        self.opened = self._mapped is None
        return reason

    async def prove_if_mapped(self) -> None:
        """Requests a proof, once, that the memory mapped here is the one that the server writes."""
        if self._mapped is not None and not self._asked_for_proof:
            self._asked_for_proof = True
            async with self._writing:
                await self._call.write(replay_pb2.SampleBatchesRequest(prove=replay_pb2.ProveStore()))

    def read_if_shown(self, proof: int) -> str:
        """Reads the mapped store from now on if it shows the proof. Returns the reason otherwise, as `open_store`."""
        self.opened = True
        if self._mapped is None or not self._mapped.shows(proof):
            return "the store's file is seen here, and not the memory that the service maps"
        self.reader = self._mapped
        return ""

    async def adjust(self, plan: SamplingPlan) -> None:
        async with self._writing:
            await self._call.write(replay_pb2.SampleBatchesRequest(plan=wire.encode_plan(plan)))

    async def commit(self, request: replay_pb2.CommitBatchRequest) -> None:
        async with self._writing:
            await self._call.write(replay_pb2.SampleBatchesRequest(commit=request))

    async def ask(
        self,
        number: int,
        replay_segments: int | None = None,
        commit: replay_pb2.CommitBatchRequest | None = None,
    ) -> None:
        request = replay_pb2.BatchRequest(
            batch=number,
            part=0,
            parts=1,
            head_only=self.reader is not None,
            replay_segments=replay_segments,
            commit=commit,
        )
        async with self._writing:
            await self._call.write(replay_pb2.SampleBatchesRequest(batch=request))

    def take(self, response: wire.SampleResponse) -> None:
        if self.reader is None:
            batch = self._assembler.add(self._schema, response)
            if batch is not None:
                self._batches.put_nowait(batch)
            return
        head = wire.decode_batch_head(response.message)
        if head.number > self._newest:
            self._newest = head.number
            self._batches.put_nowait(head)
        else:
            self._redrawn.put_nowait(head)

    async def live(
        self,
        opening: replay_pb2.SampleBatchesRequest,
        take: Callable[[wire.SampleResponse], None],
        ask: Callable[["_Stream"], Coroutine[Any, Any, None]],
        deliver: Callable[[Batch], None],
    ) -> None:
        """Runs the stream until it ends."""

        async def finish() -> None:
            while True:
                batch = await self._batches.get()
                deliver(batch if isinstance(batch, Batch) else await self._read(batch))

        await exchange(self._call, opening, beside=(lambda: ask(self), finish), take=take)

    async def _read(self, head: BatchHead) -> Batch:
        """Reads a batch's columns from the store. Requests new draws for segments overwritten meanwhile."""
        assert self.reader is not None
        columns = block.allocate(self._schema, head.keys.size, self._pool)
        while not await off_loop(head.keys.size * self._schema.segment_bytes, self.reader.gather, head.keys, columns):
            metrics.LEARNER_REDRAWS.inc()
            await self.ask(head.number)
            head = await self._redrawn.get()
            if head.keys.size != columns.segments:
                columns = block.allocate(self._schema, head.keys.size, self._pool)
        return head.with_columns(columns)
