"""Connection of a client to one service: unary calls, and a stream that reopens after every break."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import grpc

from penstock.errors import PenstockError, Unavailable
from penstock.rpc.channel import UNARY_TIMEOUT_S, Backoff, call_unary, connect, keep_open
from penstock.rpc.loop import LoopThread
from penstock.rpc.service import Method

_SERVICES = {"replay": "the replay service", "learner": "the learner"}


class Connection:
    """Channel to one service, used on a loop thread.

    Attributes:
        thread: Thread whose loop runs the calls.
        service: Label of the service in metrics.
        peer: Name of the service in messages.
        channel: gRPC's channel.
    """

    def __init__(self, thread: LoopThread, service: Literal["replay", "learner"], address: str) -> None:
        """Creates a channel to host:port, which connects on first use. Must not be called on the loop."""
        self.thread, self.service, self.peer = thread, service, f"{_SERVICES[service]} at {address}"
        self.channel = thread.run(_connect(address))

    def call(self, method: Method, timeout_s: float = UNARY_TIMEOUT_S, **request: Any) -> Any:
        """Makes a unary call with these values. Raises the server's error, or `Unavailable` after `timeout_s`."""
        return self.thread.run(call_unary(self.channel, method, method.request(**request), self.peer, timeout_s))

    def close(self) -> None:
        """Closes the channel."""
        self.thread.run(self.channel.close())


async def _connect(address: str) -> grpc.aio.Channel:
    # gRPC ties a channel to the loop on which it is created.
    return connect(address)


class PersistentStream:
    """Stream that runs on a loop thread, reopens after every break, and ends with an error that no retry can fix.

    Attributes:
        changed: Condition that guards the state shared by the stream and the client's user. Notify it of every change.
    """

    def __init__(
        self,
        connection: Connection,
        run: Callable[[Backoff], Awaitable[None]],
        *,
        broken: Callable[[PenstockError], None] = lambda error: None,
        ended: Callable[[PenstockError], None] = lambda error: None,
        changed: threading.Condition | None = None,
    ) -> None:
        """Prepares the stream, which `open` starts.

        Args:
            connection: Connection to the service.
            run: Coroutine function that opens the stream and runs it to its end, as `keep_open` requires.
            broken: Callback after each break, with its reason. Called on the loop.
            ended: Callback with the error that ended the stream for good. Called on the loop.
            changed: Condition to use; several streams may share one.
        """
        self._connection, self._run, self._broken, self._ended = connection, run, broken, ended
        self.changed = changed or threading.Condition()
        self._failure: PenstockError | None = None
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Starts the stream. Must not be called on the loop."""
        self._task = self._connection.thread.spawn(self._keep_open())

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
        """Ends the stream and closes the connection. Later calls of `check` raise `Unavailable`."""
        with self.changed:
            self._failure = self._failure or Unavailable(f"the stream to {self._connection.peer} was closed")
            self.changed.notify_all()
        if self._task is not None:
            self._connection.thread.call(self._task.cancel)
        self._connection.close()

    async def _keep_open(self) -> None:
        connection = self._connection
        error = await keep_open(
            connection.channel, self._run, peer=connection.peer, service=connection.service, broken=self._broken
        )
        with self.changed:
            self._failure = self._failure or error
            self.changed.notify_all()
        self._ended(error)
