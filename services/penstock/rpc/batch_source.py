"""The learner's stream from the replay service: batches in, asked for ahead; priorities back by commits.

The stream lives on a loop thread and is opened again after every break; commits are tried again. The training thread
uses the source. An error that no retry can cure is raised at the next call.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable

import grpc
import numpy as np
from numpy.typing import NDArray

from penstock.errors import NotReady, PenstockError, Unavailable
from penstock.rpc import methods
from penstock.rpc.channel import Backoff, call_unary, connect, exchange, keep_open, open_stream
from penstock.rpc.loop import LoopThread
from penstock.rpc.service import Stream
from penstock.types import Batch, CommitOutcome, SamplingPlan, Schema
from penstock.v1 import replay_pb2
from penstock.wire import replay as wire

_COMMIT_PATIENCE_S = 60.0
MAX_BATCH_BYTES = 2**31


class ReplayBatchSource:
    """The learner's batches; implements `learning.protocols.BatchSource`."""

    def __init__(
        self,
        thread: LoopThread,
        address: str,
        schema: Schema,
        *,
        prefetch_batches: int,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """Args:
        thread: Where the stream lives.
        address: host:port of the replay service.
        schema: Of the run's segments.
        prefetch_batches: Batches asked for ahead of the one that `next` hands out.
        stopping: When true, a commit that fails is not tried again.
        """
        self._thread, self._schema, self._prefetch, self._stopping = thread, schema, prefetch_batches, stopping
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
                if time.monotonic() > deadline or self._stopping():
                    raise
                time.sleep(backoff.next_s())

    def close(self) -> None:
        """Ends the stream; leases stay with the session."""
        if self._task is not None:
            self._thread.call(self._task.cancel)
        self._thread.run(self._channel.close())

    async def _run(self, plan: SamplingPlan) -> None:
        error = await keep_open(
            lambda backoff: self._stream(plan, backoff),
            peer=self._peer,
            service="replay",
            broken=self._wait_for_service,
        )
        with self._lock:
            self._failure = error
            self._lock.notify_all()

    def _wait_for_service(self) -> None:
        with self._lock:
            self._waiting = "the replay service"

    async def _stream(self, plan: SamplingPlan, backoff: Backoff) -> None:
        assembler = wire.BatchAssembler(MAX_BATCH_BYTES)

        def take(response: replay_pb2.SampleBatchesResponse) -> None:
            backoff.reset()
            self._take(assembler, response)

        opening = replay_pb2.SampleBatchesRequest(plan=wire.encode_plan(plan))
        call = open_stream(self._channel, methods.SAMPLE_BATCHES)
        await exchange(call, opening, write=self._request, take=take)

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
