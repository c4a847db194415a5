"""Event loop in a thread, for processes whose main thread computes, and a way to keep long work off a loop."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from penstock.security.credentials import Credentials

T = TypeVar("T")

_CANCEL_AGAIN_S = 0.1

_SMALL_BYTES = 2**20
"""Bytes below which work stays on the loop. A worker thread may wait as long for the interpreter lock afterwards."""


async def off_loop(size: int, function: Callable[..., T], *arguments: Any) -> T:
    """Calls a function that touches `size` bytes, in a worker thread if it would block the loop for too long."""
    if size < _SMALL_BYTES:
        return function(*arguments)
    working = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        # The thread keeps running, so the memory it writes to must not be reused before it ends.
        await asyncio.gather(working, return_exceptions=True)
        raise


class _Loop(asyncio.SelectorEventLoop):
    """Event loop that ignores what gRPC reports to it after its end.

    gRPC handles the events of all loops of a process together, and an exception about this one would delay those of the
    others.
    """

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any, **options: Any) -> asyncio.Handle:  # type: ignore[override]
        try:
            return super().call_soon_threadsafe(callback, *args, **options)
        except RuntimeError:
            if not self.is_closed():
                raise
            return asyncio.Handle(callback, args, self)


class LoopThread:
    """Thread that runs coroutines beside the main thread. Close it last.

    Attributes:
        credentials: Credentials of all connections that are made on it; None: they are in plain text.
    """

    def __init__(self, credentials: "Credentials | None" = None) -> None:
        self.credentials = credentials
        self.loop: asyncio.AbstractEventLoop = _Loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="grpc", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Runs a coroutine on the loop and waits for its result. Must not be called on the loop, or after its end."""
        assert not self.loop.is_closed()
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout_s)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Starts a coroutine on the loop without waiting for its result."""

        async def start() -> "asyncio.Task[None]":
            return asyncio.create_task(coroutine)

        return self.run(start())

    def call(self, function: Any, *arguments: Any) -> None:
        """Schedules a function call on the loop."""
        self.loop.call_soon_threadsafe(function, *arguments)

    def close(self) -> None:
        """Cancels all tasks and ends the thread."""

        async def cancel_all() -> None:
            # Repeated, because a task whose awaitable has just completed may miss its cancellation (Python 3.11).
            while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks, timeout=_CANCEL_AGAIN_S)

        self.run(cancel_all(), 5.0)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5.0)
        self.loop.close()
