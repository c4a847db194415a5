"""An evaluator's stream to the learner, which receives tasks and sends results.

The stream runs on a loop thread and reopens after every break; the learner then sends an unfinished task again.
Callers use it from one other thread. Their next call raises the end of the run, or an error that no retry can fix.
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
        """Starts the stream."""
        self._thread, self._address = thread, address
        self._hello = evaluation_pb2.EvaluatorHello(environment=encode_environment(spec))
        self._tasks: queue.Queue[EvaluationTask | PenstockError] = queue.Queue()
        self._results: asyncio.Queue[EvaluationResult] = asyncio.Queue()
        self._task = thread.spawn(self._run())

    def next(self, timeout_s: float) -> EvaluationTask | None:
        """Waits for a task; None after `timeout_s`.

        Raises:
            RunFinished: The run is over.
            PenstockError: The error that ended the stream for good.
        """
        try:
            task = self._tasks.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(task, PenstockError):
            raise task
        return task

    def deliver(self, result: EvaluationResult) -> None:
        """Sends a result. Does not wait."""
        self._thread.call(self._results.put_nowait, result)

    def close(self) -> None:
        """Ends the stream."""
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

        # The learner sends tasks of a broken stream again on this one, so their results are dropped.
        self._results = asyncio.Queue()
        call = open_stream(channel, methods.RUN_EVALUATIONS)
        opening = evaluation_pb2.RunEvaluationsRequest(hello=self._hello)
        await exchange(call, opening, beside=(lambda: self._write_results(call),), take=take)

    async def _write_results(self, call: Stream) -> None:
        while True:
            result = await self._results.get()
            await call.write(evaluation_pb2.RunEvaluationsRequest(result=wire.encode_result(result)))
