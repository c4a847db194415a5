"""Clients of the learner: an actor's membership, an evaluator's work, and the run's status.

Streams live on a loop thread and are opened again after every break; callers use them from one other thread. An error
that no retry can cure, and the end of the run, are raised at the next call.
"""

import asyncio
import queue
import threading

import grpc

from penstock.errors import PenstockError, RunFinished, Unavailable
from penstock.rpc import methods
from penstock.rpc.channel import Backoff, call_unary, connect, open_stream, translated
from penstock.rpc.errors import is_passing
from penstock.rpc.loop import LoopThread
from penstock.rpc.service import Stream
from penstock.telemetry import metrics
from penstock.types import (
    ActorReport,
    Assignment,
    EnvironmentSpec,
    EvaluationResult,
    EvaluationTask,
    RunStatus,
    Schema,
    Weights,
)
from penstock.v1 import evaluation_pb2, run_pb2
from penstock.wire import run as wire
from penstock.wire.schema import encode_environment, encode_schema

_MAX_REPORTS = 64
"""Reports kept while the learner is away; older ones are let go."""


class Membership:
    """An actor's place in the run and its weights; implements `acting.protocols.WeightSource`."""

    def __init__(
        self, thread: LoopThread, address: str, schema: Schema, spec: EnvironmentSpec, environments: int
    ) -> None:
        """Begins to join."""
        self._thread, self._address = thread, address
        self._peer = f"the learner at {address}"
        self._hello = run_pb2.Hello(
            schema=encode_schema(schema), environment=encode_environment(spec), environments=environments
        )
        self._lock = threading.Condition()
        self._assignment: Assignment | None = None
        self._weights: Weights | None = None
        self._failure: PenstockError | None = None
        self._reports: asyncio.Queue[ActorReport] = asyncio.Queue()
        self._task = thread.spawn(self._run())

    def assignment(self, timeout_s: float) -> Assignment | None:
        """Waits for a place in the run; it changes if the learner did not take this actor back as whom it was.

        Raises:
            RunFinished: There is nothing left to do.
            PenstockError: What ended the membership for good.
        """
        with self._lock:
            self._lock.wait_for(lambda: self._assignment or self._failure, timeout_s)
            self._raise_failure()
            return self._assignment

    def at_least(self, version: int, timeout_s: float) -> Weights | None:
        """Waits for weights of this version or newer and returns the newest. Raises as `assignment`."""
        with self._lock:
            self._lock.wait_for(
                lambda: (self._weights is not None and self._weights.version >= version) or self._failure, timeout_s
            )
            self._raise_failure()
            return self._weights if self._weights is not None and self._weights.version >= version else None

    def report(self, report: ActorReport) -> None:
        """Tells the learner what happened. Does not wait."""
        self._thread.call(self._enqueue, report)

    def close(self) -> None:
        """Leaves the run."""
        with self._lock:
            self._failure = self._failure or Unavailable("the membership was closed")
            self._lock.notify_all()
        self._thread.call(self._task.cancel)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _enqueue(self, report: ActorReport) -> None:
        while self._reports.qsize() >= _MAX_REPORTS:
            self._reports.get_nowait()
        self._reports.put_nowait(report)

    async def _run(self) -> None:
        backoff = Backoff()
        async with connect(self._address) as channel:
            while True:
                try:
                    async with translated(self._peer):
                        await self._stream(channel, backoff)
                    error: PenstockError = Unavailable(f"{self._peer} ended the stream")
                except PenstockError as raised:
                    error = raised
                if not is_passing(error):
                    with self._lock:
                        self._failure = error
                        self._lock.notify_all()
                    return
                metrics.RECONNECTIONS.labels("learner").inc()
                await asyncio.sleep(backoff.next_s())

    async def _stream(self, channel: grpc.aio.Channel, backoff: Backoff) -> None:
        call = open_stream(channel, methods.JOIN)
        assembler = wire.WeightsAssembler()
        try:
            await call.write(run_pb2.JoinRequest(hello=self._hello))
            async with asyncio.TaskGroup() as tasks:
                writing = tasks.create_task(self._write_reports(call))
                async for response in call:
                    backoff.reset()
                    self._take(assembler, response)
                writing.cancel()
        finally:
            call.cancel()

    def _take(self, assembler: wire.WeightsAssembler, response: run_pb2.JoinResponse) -> None:
        kind = response.WhichOneof("message")
        if kind == "finished":
            raise RunFinished(response.finished.reason)
        with self._lock:
            if kind == "assignment":
                self._assignment = wire.decode_assignment(response.assignment)
                self._hello.token = self._assignment.token
            elif kind == "weights":
                weights = assembler.add(response.weights)
                self._weights = weights or self._weights
            self._lock.notify_all()

    async def _write_reports(self, call: Stream) -> None:
        while True:
            report = await self._reports.get()
            await call.write(run_pb2.JoinRequest(report=wire.encode_report(report)))


class EvaluationWork:
    """Tasks for an evaluator, one at a time."""

    def __init__(self, thread: LoopThread, address: str, spec: EnvironmentSpec) -> None:
        """Begins to ask for work."""
        self._thread, self._address = thread, address
        self._peer = f"the learner at {address}"
        self._hello = evaluation_pb2.EvaluatorHello(environment=encode_environment(spec))
        self._tasks: queue.Queue[EvaluationTask | PenstockError] = queue.Queue()
        self._results: asyncio.Queue[EvaluationResult] = asyncio.Queue()
        self._task = thread.spawn(self._run())

    def next(self, timeout_s: float) -> EvaluationTask | None:
        """Waits for a task; None if none came in time.

        Raises:
            RunFinished: There is nothing left to do.
            PenstockError: What ended the work for good.
        """
        try:
            task = self._tasks.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(task, PenstockError):
            raise task
        return task

    def deliver(self, result: EvaluationResult) -> None:
        """Sends a result."""
        self._thread.call(self._results.put_nowait, result)

    def close(self) -> None:
        """Asks for no more work."""
        self._thread.call(self._task.cancel)

    async def _run(self) -> None:
        backoff = Backoff()
        async with connect(self._address) as channel:
            while True:
                try:
                    async with translated(self._peer):
                        await self._stream(channel, backoff)
                    error: PenstockError = Unavailable(f"{self._peer} ended the stream")
                except PenstockError as raised:
                    error = raised
                if not is_passing(error):
                    self._tasks.put(error)
                    return
                metrics.RECONNECTIONS.labels("learner").inc()
                await asyncio.sleep(backoff.next_s())

    async def _stream(self, channel: grpc.aio.Channel, backoff: Backoff) -> None:
        call = open_stream(channel, methods.RUN_EVALUATIONS)
        assembler = wire.WeightsAssembler()
        head = evaluation_pb2.EvaluationTask()
        # What was asked for on a stream that broke is asked for again on this one.
        self._results = asyncio.Queue()
        try:
            await call.write(evaluation_pb2.RunEvaluationsRequest(hello=self._hello))
            async with asyncio.TaskGroup() as tasks:
                writing = tasks.create_task(self._write_results(call))
                async for response in call:
                    backoff.reset()
                    kind = response.WhichOneof("message")
                    if kind == "finished":
                        raise RunFinished(response.finished.reason)
                    if kind == "task":
                        head = response.task
                    elif (weights := assembler.add(response.weights)) is not None:
                        self._tasks.put(wire.decode_task(head, weights))
                writing.cancel()
        finally:
            call.cancel()

    async def _write_results(self, call: Stream) -> None:
        while True:
            result = await self._results.get()
            await call.write(evaluation_pb2.RunEvaluationsRequest(result=wire.encode_result(result)))


class StatusClient:
    """Asks a learner how its run goes."""

    def __init__(self, thread: LoopThread, address: str) -> None:
        self._thread, self._peer = thread, f"the learner at {address}"
        self._channel = thread.run(self._connect(address))

    @staticmethod
    async def _connect(address: str) -> grpc.aio.Channel:
        return connect(address)

    def get(self, timeout_s: float) -> RunStatus:
        """The run now. Raises `Unavailable` if the learner does not answer in time."""
        request = run_pb2.GetRunStatusRequest()
        message = self._thread.run(call_unary(self._channel, methods.GET_RUN_STATUS, request, self._peer, timeout_s))
        return wire.decode_status(message)

    def close(self) -> None:
        """Closes the channel."""
        self._thread.run(self._channel.close())
