"""An actor's stream to the learner, which receives its slot and the latest weights and sends reports.

The stream runs on a loop thread and reopens with the token after every break. Callers use it from one other thread.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace

from penstock.rpc import methods
from penstock.rpc.channel import Backoff, Stream, exchange
from penstock.rpc.clients.connection import Peer, PersistentStream
from penstock.rpc.loop import LoopThread
from penstock.telemetry import metrics
from penstock.types.block import Schema
from penstock.types.location import UNKNOWN, Location, Place
from penstock.types.run import ActorProgress, ActorReport, Assignment, EnvironmentFault, Hello, LostPlace, Weights
from penstock.types.spaces import EnvironmentSpec
from penstock.v1 import run_pb2
from penstock.wire import run as wire

_MAX_REPORTS = 64
"""Limit on queued reports and faults while the learner is away; the oldest are dropped."""

_PROGRESS_S = 1.0


class Membership:
    """An actor's slot in the run; implements `acting.protocols.RunLink`. Owns unsent reports and the newest weights."""

    def __init__(
        self,
        thread: LoopThread,
        peer: Peer,
        schema: Schema,
        spec: EnvironmentSpec,
        environments: int,
        *,
        name: str = "",
        location: Location = UNKNOWN,
        progress: Callable[[], ActorProgress] = ActorProgress,
        assigned: Callable[[Assignment], None] = lambda assignment: None,
        give_up_after_s: float = math.inf,
    ) -> None:
        """Starts to join the run of the learner.

        The loop calls `progress` for the actor's progress, and `assigned` with each assignment before others see it.
        The membership ends for good after `give_up_after_s` without the learner.
        """
        self._thread, self._progress, self._assigned = thread, progress, assigned
        self._hello = Hello(schema, spec, environments, name, location=location)
        self._stream = PersistentStream(thread, "learner", peer, self._run, give_up_after_s=give_up_after_s)
        self._lock = self._stream.changed
        self._assignment: Assignment | None = None
        self._weights: Weights | None = None
        self._unsent: asyncio.Queue[run_pb2.JoinRequest] = asyncio.Queue()
        self._stream.open()

    def assignment(self, timeout_s: float) -> Assignment | None:
        """Waits for the assignment; None after `timeout_s`. A break may change it.

        Raises `RunFinished` at the end of the run, or the error that ended the membership for good.
        """
        with self._lock:
            self._stream.wait_for(lambda: self._assignment, timeout_s)
            self._stream.check()
            return self._assignment

    def replay(self) -> Place:
        """Returns where the actor's replay service is, as far as the learner has said. Any thread may call it."""
        with self._lock:
            return self._assignment.replay if self._assignment is not None else Place()

    def at_least(self, version: int, timeout_s: float) -> Weights | None:
        """Waits for weights of this version or newer; returns the newest, None on timeout. Raises as `assignment`."""
        with self._lock:
            self._stream.wait_for(lambda: self._weights is not None and self._weights.version >= version, timeout_s)
            self._stream.check()
            return self._weights if self._weights is not None and self._weights.version >= version else None

    def join_again(self, taken_by: int = 0) -> None:
        """Gives up the slot, which incarnation `taken_by` has (0: none), and joins as a new actor. Does not wait."""
        with self._lock:
            lost, self._assignment = self._assignment, None
        self._thread.call(self._restart, LostPlace(lost.slot, taken_by) if lost is not None and taken_by else None)

    def report(self, report: ActorReport) -> None:
        """Sends a report to the learner, and counts it in the actor's metrics. Does not wait."""
        metrics.ACTOR_STEPS.inc(report.env_steps)
        metrics.ACTOR_LATE_STEPS.inc(report.late_steps)
        for activity, seconds in report.timing.by_activity().items():
            metrics.ACTOR_SECONDS.labels(activity).inc(seconds)
        self._thread.call(self._enqueue, wire.encode_join_request(report))

    def report_fault(self, fault: EnvironmentFault) -> None:
        """Sends an environment's fault to the learner, and counts a dropped window. Does not wait."""
        metrics.ACTOR_DROPPED_WINDOWS.inc(fault.dropped)
        self._thread.call(self._enqueue, wire.encode_join_request(fault))

    def drain(self, timeout_s: float) -> None:
        """Waits up to `timeout_s` until all reports and faults are written."""

        async def written() -> None:
            async with asyncio.timeout(timeout_s):
                await self._unsent.join()

        with contextlib.suppress(TimeoutError, FutureTimeoutError):
            self._thread.run(written(), 2.0 * timeout_s)

    def close(self) -> None:
        """Leaves the run."""
        self._stream.close()

    def _restart(self, lost: LostPlace | None) -> None:
        self._hello = replace(self._hello, token=b"", lost=lost or self._hello.lost)
        self._stream.restart()

    def _enqueue(self, request: run_pb2.JoinRequest) -> None:
        while self._unsent.qsize() >= _MAX_REPORTS:
            self._unsent.get_nowait()
            self._unsent.task_done()
        self._unsent.put_nowait(request)

    async def _run(self, backoff: Backoff) -> None:
        reader = wire.JoinReader()

        def take(response: run_pb2.JoinResponse) -> None:
            backoff.reset()
            received = reader.add(response)
            with self._lock:
                match received:
                    case Assignment():
                        self._assigned(received)
                        self._assign(received)
                    case Place() if self._assignment is not None:
                        self._assignment = replace(self._assignment, replay=received)
                    case tuple() if self._assignment is not None:
                        self._assignment = replace(self._assignment, variants=received)
                    case Weights():
                        self._weights = received
                        metrics.restart_age(metrics.ACTOR_WEIGHTS_AGE)
                self._lock.notify_all()

        call = self._stream.open_stream(methods.JOIN)
        await exchange(call, wire.encode_hello(self._hello), beside=(lambda: self._write(call),), take=take)

    def _assign(self, assignment: Assignment) -> None:
        """Takes an assignment. A learner that has just started may not know yet where replay is."""
        former = self._assignment
        if assignment == former and not assignment.replay.addresses:
            assignment = replace(assignment, replay=former.replay)
        self._assignment = assignment
        self._hello = replace(self._hello, token=assignment.token, lost=None, run=assignment.run)

    async def _write(self, call: Stream) -> None:
        """Writes reports and faults, and every second the actor's progress, even while its main thread hangs."""
        due = 0.0
        while True:
            try:
                async with asyncio.timeout(max(0.0, due - time.monotonic())):
                    request = await self._unsent.get()
            except TimeoutError:
                due = time.monotonic() + _PROGRESS_S
                await call.write(wire.encode_join_request(self._progress()))
            else:
                try:
                    await call.write(request)
                finally:
                    self._unsent.task_done()
