"""Clients of the replay service: an actor's sink for segments, and the learner's source of batches.

Both keep their stream on a loop thread, open it again after every break, and send again what was not acknowledged.
Callers use them from one other thread. An error that no retry can cure is raised at the next call.
"""

import asyncio
import threading
import time
from collections import deque

import grpc
import numpy as np
from numpy.typing import NDArray

from penstock.errors import NotReady, PenstockError, Unavailable
from penstock.rpc import methods
from penstock.rpc.channel import Backoff, call_unary, connect, open_stream, translated
from penstock.rpc.errors import is_passing
from penstock.rpc.loop import LoopThread
from penstock.rpc.service import Stream
from penstock.telemetry import metrics
from penstock.types import Assignment, Batch, CommitOutcome, Grant, SamplingPlan, Schema, Window
from penstock.v1 import replay_pb2
from penstock.wire import replay as wire
from penstock.wire.schema import encode_schema

_MAX_UNACKNOWLEDGED = 4
"""Windows an actor keeps until they are stored; the gate grants two ahead, so this is never what it waits for."""

_HEARTBEAT_S = 1.0
_COMMIT_PATIENCE_S = 60.0
MAX_BATCH_BYTES = 2**31


class _Pending:
    """A window that was sent and is not stored yet."""

    def __init__(self, last_sequence: int, messages: list[bytes]) -> None:
        self.last_sequence, self.messages = last_sequence, messages


class ReplaySegmentSink:
    """Sends an actor's windows; implements `acting.protocols.SegmentSink`."""

    def __init__(self, thread: LoopThread, assignment: Assignment, schema: Schema) -> None:
        """Begins to connect to the replay service of the assignment."""
        self._thread, self._assignment, self._schema = thread, assignment, schema
        self._peer = f"the replay service at {assignment.replay_address}"
        self._lock = threading.Condition()
        self._grants: deque[Grant] = deque()
        self._pending: deque[_Pending] = deque()
        self._resent = 0
        self._failure: PenstockError | None = None
        self._wake = asyncio.Event()
        self._unsent: deque[_Pending] = deque()
        self._task = thread.spawn(self._run())

    def next_grant(self, timeout_s: float) -> Grant | None:
        """Waits for leave to collect a window. Raises what ended the stream for good."""
        with self._lock:
            self._lock.wait_for(lambda: self._grants or self._failure, timeout_s)
            self._raise_failure()
            return self._grants.popleft() if self._grants else None

    def send(self, window: Window) -> None:
        """Copies a window and sends it; waits while too many are unacknowledged. Raises what ended the stream for
        good.
        """
        last = window.first_sequence + window.columns.segments - 1
        pending = _Pending(last, list(wire.encode_window(window)))
        with self._lock:
            self._lock.wait_for(lambda: len(self._pending) < _MAX_UNACKNOWLEDGED or self._failure)
            self._raise_failure()
            self._pending.append(pending)
            metrics.ACTOR_UNACKNOWLEDGED.set(len(self._pending))
        self._thread.call(self._submit, pending)

    def drain(self, timeout_s: float) -> bool:
        """Waits until everything sent is stored; False if it was not in time."""
        with self._lock:
            return bool(self._lock.wait_for(lambda: not self._pending or self._failure, timeout_s))

    def close(self) -> None:
        """Ends the stream; its grants return to the gate."""
        with self._lock:
            self._failure = self._failure or Unavailable("the segment sink was closed")
            self._lock.notify_all()
        self._thread.call(self._task.cancel)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _submit(self, pending: _Pending) -> None:
        self._unsent.append(pending)
        self._wake.set()

    async def _run(self) -> None:
        backoff = Backoff()
        async with connect(self._assignment.replay_address) as channel:
            while True:
                try:
                    async with translated(self._peer):
                        await self._stream(channel, backoff)
                    error: PenstockError = Unavailable(f"{self._peer} ended the stream")
                except PenstockError as raised:
                    error = raised
                with self._lock:
                    self._grants.clear()
                    if not is_passing(error):
                        self._failure = error
                        self._lock.notify_all()
                        return
                metrics.RECONNECTIONS.labels("replay").inc()
                await asyncio.sleep(backoff.next_s())

    async def _stream(self, channel: grpc.aio.Channel, backoff: Backoff) -> None:
        call = open_stream(channel, methods.APPEND_SEGMENTS)
        opening = replay_pb2.OpenAppend(
            schema=encode_schema(self._schema),
            slot=self._assignment.slot,
            incarnation=self._assignment.incarnation,
            window_segments=len(self._assignment.environments),
        )
        try:
            await call.write(replay_pb2.AppendSegmentsRequest(open=opening))
            responses = aiter(call)
            self._resume(await anext(responses))
            backoff.reset()
            async with asyncio.TaskGroup() as tasks:
                writing = tasks.create_task(self._write(call))
                async for response in responses:
                    self._take(response)
                writing.cancel()
        finally:
            call.cancel()

    def _resume(self, first: replay_pb2.AppendSegmentsResponse) -> None:
        """After a break: forgets what was stored, and sends the rest again under the first grants that come."""
        with self._lock:
            while self._pending and self._pending[0].last_sequence <= first.stored_sequence:
                self._pending.popleft()
            self._unsent = deque(self._pending)
            self._resent = len(self._pending)
            self._lock.notify_all()
        self._wake.set()
        self._take(first)

    def _take(self, response: replay_pb2.AppendSegmentsResponse) -> None:
        with self._lock:
            while self._pending and self._pending[0].last_sequence <= response.stored_sequence:
                self._pending.popleft()
            for message in response.grants:
                if self._resent:
                    self._resent -= 1
                else:
                    self._grants.append(Grant(message.batch, message.minimum_version))
            metrics.ACTOR_UNACKNOWLEDGED.set(len(self._pending))
            self._lock.notify_all()

    async def _write(self, call: Stream) -> None:
        while True:
            self._wake.clear()
            while self._unsent:
                for message in self._unsent.popleft().messages:
                    await call.write(message)
            try:
                await asyncio.wait_for(self._wake.wait(), _HEARTBEAT_S)
            except TimeoutError:
                await call.write(replay_pb2.AppendSegmentsRequest(heartbeat=replay_pb2.Heartbeat()))


class ReplayBatchSource:
    """The learner's batches; implements `learning.protocols.BatchSource`."""

    def __init__(self, thread: LoopThread, address: str, schema: Schema, *, prefetch_batches: int) -> None:
        """Args:
        thread: Where the stream lives.
        address: host:port of the replay service.
        schema: Of the run's segments.
        prefetch_batches: Batches asked for ahead of the one that `next` hands out.
        """
        self._thread, self._schema, self._prefetch = thread, schema, prefetch_batches
        self._peer = f"the replay service at {address}"
        self._channel = thread.run(self._connect(address))
        self._lock = threading.Condition()
        self._ready: deque[Batch] = deque()
        self._plan: SamplingPlan | None = None
        self._failure: PenstockError | None = None
        self._waiting = "the replay service"
        self._next_number = 0
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @staticmethod
    async def _connect(address: str) -> grpc.aio.Channel:
        return connect(address)

    def open(self, plan: SamplingPlan) -> None:
        """Announces how batches are wanted, and asks for the first ones."""
        self._plan, self._next_number = plan, plan.next_batch
        self._task = self._thread.spawn(self._run(plan))

    @property
    def waiting_for(self) -> str:
        """What the next batch is waiting for."""
        with self._lock:
            return "" if self._ready else self._waiting

    def next(self, timeout_s: float) -> Batch | None:
        """Waits for the next batch. Raises what ended the stream for good."""
        with self._lock:
            self._lock.wait_for(lambda: self._ready or self._failure, timeout_s)
            if self._failure is not None:
                raise self._failure
            if not self._ready:
                return None
            batch = self._ready.popleft()
            self._next_number = batch.number + 1
        self._thread.call(self._wanted.set)
        return batch

    def commit(self, batch: Batch, priorities: NDArray[np.float64], version: int) -> CommitOutcome:
        """Ends a batch's lease; tries again through breaks for a minute. Raises what no retry can cure."""
        assert self._plan is not None
        request = replay_pb2.CommitBatchRequest(
            session=self._plan.session,
            batch=batch.number,
            keys=batch.keys.tolist(),
            priorities=priorities.tolist(),
            version=version,
        )
        backoff, deadline = Backoff(), time.monotonic() + _COMMIT_PATIENCE_S
        while True:
            try:
                response = self._thread.run(call_unary(self._channel, methods.COMMIT_BATCH, request, self._peer))
                return CommitOutcome(response.updated, response.overwritten, response.repeated_commit)
            except (Unavailable, NotReady):
                if time.monotonic() > deadline:
                    raise
                time.sleep(backoff.next_s())

    def close(self) -> None:
        """Ends the stream; leases stay with the session."""
        if self._task is not None:
            self._thread.call(self._task.cancel)
        self._thread.run(self._channel.close())

    async def _run(self, plan: SamplingPlan) -> None:
        backoff = Backoff()
        while True:
            try:
                async with translated(self._peer):
                    await self._stream(plan, backoff)
                error: PenstockError = Unavailable(f"{self._peer} ended the stream")
            except PenstockError as raised:
                error = raised
            with self._lock:
                self._waiting = "the replay service"
                if not is_passing(error):
                    self._failure = error
                    self._lock.notify_all()
                    return
            metrics.RECONNECTIONS.labels("replay").inc()
            await asyncio.sleep(backoff.next_s())

    async def _stream(self, plan: SamplingPlan, backoff: Backoff) -> None:
        call = open_stream(self._channel, methods.SAMPLE_BATCHES)
        assembler = wire.BatchAssembler(MAX_BATCH_BYTES)
        try:
            await call.write(replay_pb2.SampleBatchesRequest(plan=wire.encode_plan(plan)))
            async with asyncio.TaskGroup() as tasks:
                writing = tasks.create_task(self._request(call))
                async for response in call:
                    backoff.reset()
                    self._take(assembler, response)
                writing.cancel()
        finally:
            call.cancel()

    async def _request(self, call: Stream) -> None:
        with self._lock:
            asked = self._ready[-1].number + 1 if self._ready else self._next_number
        while True:
            self._wanted.clear()
            while asked <= self._next_number + self._prefetch:
                request = replay_pb2.BatchRequest(batch=asked, part=0, parts=1)
                await call.write(replay_pb2.SampleBatchesRequest(batch=request))
                asked += 1
            await self._wanted.wait()

    def _take(self, assembler: wire.BatchAssembler, response: replay_pb2.SampleBatchesResponse) -> None:
        if response.waiting:
            with self._lock:
                self._waiting = response.waiting
            return
        batch = assembler.add(self._schema, response)
        if batch is not None:
            with self._lock:
                self._ready.append(batch)
                self._waiting = "fresh segments"
                self._lock.notify_all()
