"""An evaluator's stream to the learner, which receives tasks and sends results.

The stream runs on a loop thread and reopens after every break; the learner then sends an unfinished task again. Callers
use it from one other thread.
"""

import asyncio
import math
from collections import deque
from dataclasses import replace

from penstock.rpc import methods
from penstock.rpc.channel import Backoff, Stream, exchange
from penstock.rpc.clients.connection import Peer, PersistentStream
from penstock.rpc.loop import LoopThread
from penstock.telemetry import metrics
from penstock.types.evaluation import EvaluationResult, EvaluationTask, EvaluatorHello
from penstock.v1 import evaluation_pb2
from penstock.wire import run as wire


class EvaluationWork:
    """Tasks for an evaluator, one at a time; implements `acting.protocols.EvaluationQueue`."""

    def __init__(
        self, thread: LoopThread, peer: Peer, hello: EvaluatorHello, *, give_up_after_s: float = math.inf
    ) -> None:
        """Starts the stream to the learner. It ends for good after `give_up_after_s` without it."""
        self._thread, self._hello = thread, hello
        self._stream = PersistentStream(thread, "learner", peer, self._run, give_up_after_s=give_up_after_s)
        self._tasks: deque[EvaluationTask] = deque()
        self._results: asyncio.Queue[EvaluationResult] = asyncio.Queue()
        self._stream.open()

    def next(self, timeout_s: float) -> EvaluationTask | None:
        """Waits for a task; None after `timeout_s`.

        Raises `RunFinished` at the end of the run, or the error that ended the stream for good.
        """
        with self._stream.changed:
            self._stream.wait_for(lambda: self._tasks, timeout_s)
            self._stream.check()
            return self._tasks.popleft() if self._tasks else None

    def deliver(self, result: EvaluationResult) -> None:
        """Sends a result. Does not wait."""
        metrics.EVALUATOR_SECONDS.inc(result.seconds)
        self._thread.call(self._results.put_nowait, result)

    def close(self) -> None:
        """Ends the stream."""
        self._stream.close()

    async def _run(self, backoff: Backoff) -> None:
        tasks = wire.TaskAssembler()

        def take(response: evaluation_pb2.RunEvaluationsResponse) -> None:
            backoff.reset()
            if (task := tasks.add(response)) is not None:
                self._hello = replace(self._hello, run=task.run)
                with self._stream.changed:
                    self._tasks.append(task)
                    self._stream.changed.notify_all()

        # The learner sends tasks of a broken stream again on this one, so their results are dropped.
        self._results = asyncio.Queue()
        call = self._stream.open_stream(methods.RUN_EVALUATIONS, direct=False)
        opening = wire.encode_evaluator_hello(self._hello)
        await exchange(call, opening, beside=(lambda: self._write_results(call),), take=take)

    async def _write_results(self, call: Stream) -> None:
        while True:
            await call.write(wire.encode_result_request(await self._results.get()))
