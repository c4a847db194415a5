"""An actor's stream to the learner, which receives its slot and the latest weights and sends reports.

The stream runs on a loop thread and reopens with the token after every break. Callers use the membership from one other
thread. Their next call raises the end of the run, or an error that no retry can fix.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeoutError

import grpc

from penstock.errors import PenstockError, RunFinished, Unavailable
from penstock.rpc import methods
from penstock.rpc.channel import Backoff, Stream, connect, exchange, keep_open, open_stream
from penstock.rpc.loop import LoopThread
from penstock.telemetry import metrics
from penstock.types import (
    ActorProgress,
    ActorReport,
    Assignment,
    EnvironmentFault,
    EnvironmentSpec,
    Schema,
    Weights,
)
from penstock.v1 import run_pb2
from penstock.wire import run as wire
from penstock.wire.schema import encode_environment, encode_schema

_MAX_REPORTS = 64
"""Limit on queued reports and faults while the learner is away; the oldest are dropped."""

_PROGRESS_S = 1.0


class Membership:
    """An actor's slot in the run and its weights; implements `acting.protocols.WeightSource`."""

    def __init__(
        self,
        thread: LoopThread,
        address: str,
        schema: Schema,
        spec: EnvironmentSpec,
        environments: int,
        *,
        name: str = "",
        progress: Callable[[], ActorProgress] = ActorProgress,
    ) -> None:
        """Starts to join the run.

        Args:
            thread: Thread whose loop runs the stream.
            address: Address of the learner as host:port.
            schema: Schema of the actor's segments.
            spec: Spec of the actor's environments.
            environments: Number of environments.
            name: Display name of the actor.
            progress: Function that returns the actor's progress. Called on the loop.
        """
        self._thread, self._address, self._progress = thread, address, progress
        self._hello = run_pb2.Hello(
            schema=encode_schema(schema),
            environment=encode_environment(spec),
            environments=environments,
            name=name[: wire.MAX_NAME],
        )
        self._lock = threading.Condition()
        self._assignment: Assignment | None = None
        self._weights: Weights | None = None
        self._failure: PenstockError | None = None
        self._unsent: asyncio.Queue[run_pb2.JoinRequest] = asyncio.Queue()
        self._task = thread.spawn(self._run())

    def assignment(self, timeout_s: float) -> Assignment | None:
        """Waits for the assignment; None after `timeout_s`.

        It changes after a break if the learner does not restore the actor's slot.

        Raises:
            RunFinished: The run is over.
            PenstockError: The error that ended the membership for good.
        """
        with self._lock:
            self._lock.wait_for(lambda: self._assignment or self._failure, timeout_s)
            self._raise_failure()
            return self._assignment

    def at_least(self, version: int, timeout_s: float) -> Weights | None:
        """Waits for weights of at least this version and returns the newest; None after `timeout_s`.

        Raises as `assignment`.
        """
        with self._lock:
            self._lock.wait_for(
                lambda: (self._weights is not None and self._weights.version >= version) or self._failure, timeout_s
            )
            self._raise_failure()
            return self._weights if self._weights is not None and self._weights.version >= version else None

    def join_again(self, taken_by: int = 0) -> None:
        """Gives up the slot and joins again as a new actor. Does not wait.

        Args:
            taken_by: Incarnation that has taken the slot at the replay service; 0 if none has.
        """
        with self._lock:
            lost, self._assignment = self._assignment, None
        self._thread.call(self._restart, lost.slot if lost is not None else 0, taken_by if lost is not None else 0)

    def report(self, report: ActorReport) -> None:
        """Sends a report to the learner. Does not wait."""
        self._thread.call(self._enqueue, run_pb2.JoinRequest(report=wire.encode_report(report)))

    def tell(self, fault: EnvironmentFault) -> None:
        """Sends an environment's fault to the learner. Does not wait."""
        self._thread.call(self._enqueue, run_pb2.JoinRequest(fault=wire.encode_fault(fault)))

    def drain(self, timeout_s: float) -> None:
        """Waits up to `timeout_s` until all reports and faults are written."""

        async def written() -> None:
            async with asyncio.timeout(timeout_s):
                await self._unsent.join()

        with contextlib.suppress(TimeoutError, FutureTimeoutError):
            self._thread.run(written(), 2.0 * timeout_s)

    def close(self) -> None:
        """Leaves the run."""
        with self._lock:
            self._failure = self._failure or Unavailable("the membership was closed")
            self._lock.notify_all()
        self._thread.call(self._task.cancel)

    def _restart(self, slot: int, taken_by: int) -> None:
        self._task.cancel()
        self._hello.token = b""
        if taken_by:
            self._hello.lost.CopyFrom(run_pb2.LostPlace(slot=slot, taken_by=taken_by))
        self._task = asyncio.create_task(self._run())

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _enqueue(self, request: run_pb2.JoinRequest) -> None:
        while self._unsent.qsize() >= _MAX_REPORTS:
            self._unsent.get_nowait()
            self._unsent.task_done()
        self._unsent.put_nowait(request)

    async def _run(self) -> None:
        async with connect(self._address) as channel:
            error = await keep_open(
                channel,
                lambda backoff: self._stream(channel, backoff),
                peer=f"the learner at {self._address}",
                service="learner",
                broken=lambda error: None,
            )
        with self._lock:
            self._failure = self._failure or error
            self._lock.notify_all()

    async def _stream(self, channel: grpc.aio.Channel, backoff: Backoff) -> None:
        assembler = wire.WeightsAssembler()

        def take(response: run_pb2.JoinResponse) -> None:
            backoff.reset()
            self._take(assembler, response)

        call = open_stream(channel, methods.JOIN)
        opening = run_pb2.JoinRequest(hello=self._hello)
        await exchange(call, opening, beside=(lambda: self._write(call),), take=take)

    def _take(self, assembler: wire.WeightsAssembler, response: run_pb2.JoinResponse) -> None:
        kind = response.WhichOneof("message")
        if kind == "finished":
            raise RunFinished(response.finished.reason)
        with self._lock:
            if kind == "assignment":
                self._assignment = wire.decode_assignment(response.assignment)
                self._hello.token = self._assignment.token
                self._hello.ClearField("lost")
            elif kind == "weights":
                weights = assembler.add(response.weights)
                if weights is not None:
                    self._weights = weights
                    metrics.ACTOR_WEIGHTS_TIME.set(time.time())
            self._lock.notify_all()

    async def _write(self, call: Stream) -> None:
        """Writes reports and faults, and every second the actor's progress, even while its main thread hangs."""
        due = 0.0
        while True:
            try:
                async with asyncio.timeout(max(0.0, due - time.monotonic())):
                    request = await self._unsent.get()
            except TimeoutError:
                due = time.monotonic() + _PROGRESS_S
                await call.write(run_pb2.JoinRequest(progress=wire.encode_progress(self._progress())))
            else:
                try:
                    await call.write(request)
                finally:
                    self._unsent.task_done()
