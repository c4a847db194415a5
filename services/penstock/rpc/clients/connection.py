"""Connection of a client to one service: unary calls, and a stream that reopens after every break."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

import grpc

from penstock.errors import PeerFailed, PenstockError, Unavailable
from penstock.rpc.channel import UNARY_TIMEOUT_S, Backoff, call_unary, connect, note_absence, translated
from penstock.rpc.errors import is_passing
from penstock.rpc.loop import LoopThread
from penstock.rpc.service import Method
from penstock.telemetry import logs, metrics

_PEER_FAILURES = 10
"""Unexpected errors of a peer after which the client gives up. A restart of the peer may help before that."""

_SOUND_S = 60.0
"""Seconds after which a stream counts as sound, which resets the peer's failures."""

_SERVICES = {"replay": "the replay service", "learner": "the learner"}


class Connection:
    """Channel to one service, used on a loop thread. Metrics label the service, and messages name it `peer`."""

    def __init__(self, thread: LoopThread, service: Literal["replay", "learner"], address: str) -> None:
        """Creates a channel to host:port, which connects on first use. Must not be called on the loop."""
        self.address = address
        self.thread, self.service, self.peer = thread, service, f"{_SERVICES[service]} at {address}"
        self.channel = thread.run(_connect(address))

    def call(self, method: Method, timeout_s: float = UNARY_TIMEOUT_S, **request: Any) -> Any:
        """Makes a unary call with these values. Raises the server's error, or `Unavailable` after `timeout_s`."""
        return self.thread.run(call_unary(self.channel, method, method.request(**request), self.peer, timeout_s))

    @asynccontextmanager
    async def answered_within(self, timeout_s: float) -> AsyncIterator[None]:
        """Raises `Unavailable` if what it encloses takes longer than `timeout_s`. Runs on the loop."""
        try:
            async with asyncio.timeout(timeout_s):
                yield
        except TimeoutError:
            raise Unavailable(f"{self.peer} sent nothing for {timeout_s:.0f} s") from None

    def close(self) -> None:
        """Closes the channel."""
        self.thread.run(self.channel.close())


async def _connect(address: str) -> grpc.aio.Channel:
    # gRPC ties a channel to the loop on which it is created.
    return connect(address)


class PersistentStream(Connection):
    """Stream that runs on a loop thread, reopens after every break, and ends with an error that no retry can fix.

    It owns this error and the lock of its client.

    Attributes:
        changed: Condition that guards the state shared by the stream and the client's user. Notify it of every change.
    """

    def __init__(
        self,
        thread: LoopThread,
        service: Literal["replay", "learner"],
        address: str,
        run: Callable[[Backoff], Awaitable[None]],
        *,
        broken: Callable[[PenstockError], None] = lambda error: None,
        ended: Callable[[PenstockError], None] = lambda error: None,
        changed: threading.Condition | None = None,
    ) -> None:
        """Creates the channel, as `Connection` does. `open` starts the stream.

        `run` opens the stream, resets the backoff at the first answer, and runs the stream to its end. `broken` is
        called after each break with its reason, and `ended` with the error that ended the stream for good, all on the
        loop. Several streams may share one condition `changed`.
        """
        super().__init__(thread, service, address)
        self._run, self._broken, self._ended = run, broken, ended
        self.changed = changed or threading.Condition()
        self._failure: PenstockError | None = None
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Starts the stream. Must not be called on the loop."""
        self._task = self.thread.spawn(self._keep_open())

    def restart(self) -> None:
        """Cancels the stream and starts it again. Must be called on the loop."""
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.create_task(self._keep_open())

    def check(self) -> None:
        """Raises the error that ended the stream for good, if any. The caller holds `changed`."""
        if self._failure is not None:
            raise self._failure

    def wait_for(self, condition: Callable[[], object], timeout_s: float) -> None:
        """Waits until the condition holds, the stream has ended or the time is over. The caller holds `changed`."""
        self.changed.wait_for(lambda: condition() or self._failure, timeout_s)

    def close(self) -> None:
        """Ends the stream and closes the channel. Later calls of `check` raise `Unavailable`."""
        self._fail(Unavailable(f"the stream to {self.peer} was closed"))
        if self._task is not None:
            self.thread.call(self._task.cancel)
        super().close()

    def _fail(self, error: PenstockError) -> None:
        with self.changed:
            self._failure = self._failure or error
            self.changed.notify_all()

    async def _keep_open(self) -> None:
        absence = asyncio.create_task(note_absence(self.channel, self.peer))
        try:
            error = await self._reopen()
        finally:
            absence.cancel()
            await asyncio.wait([absence])
        self._fail(error)
        self._ended(error)

    async def _reopen(self) -> PenstockError:
        """Runs the stream again after every break, with growing pauses. Returns the error that no retry can fix.

        Logs the first reason of each break, and each new kind of error.
        """
        reconnections = metrics.RECONNECTIONS.labels(self.service)
        backoff, noted, failures = Backoff(), PenstockError, 0
        while True:
            began = time.monotonic()
            error = await self._run_once(backoff)
            self._broken(error)
            if time.monotonic() - began > _SOUND_S:
                failures = 0
            failures += isinstance(error, PeerFailed)
            if not is_passing(error):
                return error
            if failures >= _PEER_FAILURES:
                return PenstockError(f"gave up after {failures} attempts: {error}")
            reconnections.inc()
            # The texts of one break differ: a connection is lost, then refused, then timed out.
            if backoff.is_first or type(error) is not noted:
                noted = type(error)
                logs.note("trying again", reason=str(error))
            await asyncio.sleep(backoff.next_s())

    async def _run_once(self, backoff: Backoff) -> PenstockError:
        try:
            async with translated(self.peer):
                await self._run(backoff)
        except PenstockError as error:
            return error
        except Exception as error:
            # No code awaits this task, so our own errors must reach the caller like any other failure.
            return PenstockError(f"the stream to {self.peer} failed with {type(error).__name__}: {error}")
        return Unavailable(f"{self.peer} ended the stream")
