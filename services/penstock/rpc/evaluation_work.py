"""An evaluator's stream to the learner: tasks in, results out.

The stream lives on a loop thread and is opened again after every break; a task that was out then is asked for again.
Callers use it from one other thread. An error that no retry can cure, and the end of the run, are raised at the next
call.
"""

import asyncio
import queue

import grpc

from penstock.errors import PenstockError, RunFinished
from penstock.rpc import methods
from penstock.rpc.channel import Backoff, Stream, connect, exchange, keep_open, open_stream
from penstock.rpc.loop import LoopThread
from penstock.types import EnvironmentSpec, EvaluationResult, EvaluationTask
from penstock.v1 import evaluation_pb2
from penstock.wire import run as wire
from penstock.wire.schema import encode_environment


class EvaluationWork:
    """Tasks for an evaluator, one at a time."""

    def __init__(self, thread: LoopThread, address: str, spec: EnvironmentSpec) -> None:
        """Begins to ask for work."""
        self._thread, self._address = thread, address
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
        async with connect(self._address) as channel:
            error = await keep_open(
                channel,
                lambda backoff: self._stream(channel, backoff),
                peer=f"the learner at {self._address}",
                service="learner",
                broken=lambda error: None,
            )
        self._tasks.put(error)

    async def _stream(self, channel: grpc.aio.Channel, backoff: Backoff) -> None:
        assembler = wire.WeightsAssembler()
        head = evaluation_pb2.EvaluationTask()

        def take(response: evaluation_pb2.RunEvaluationsResponse) -> None:
            nonlocal head
            backoff.reset()
            kind = response.WhichOneof("message")
            if kind == "finished":
                raise RunFinished(response.finished.reason)
            if kind == "task":
                head = response.task
            elif (weights := assembler.add(response.weights)) is not None:
                self._tasks.put(wire.decode_task(head, weights))

        # What was asked for on a stream that broke is asked for again on this one.
        self._results = asyncio.Queue()
        call = open_stream(channel, methods.RUN_EVALUATIONS)
        opening = evaluation_pb2.RunEvaluationsRequest(hello=self._hello)
        await exchange(call, opening, beside=(lambda: self._write_results(call),), take=take)

    async def _write_results(self, call: Stream) -> None:
        while True:
            result = await self._results.get()
            await call.write(evaluation_pb2.RunEvaluationsRequest(result=wire.encode_result(result)))
