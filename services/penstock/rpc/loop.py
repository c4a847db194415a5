"""An event loop in a thread, for processes whose main thread computes; and what is too long for any loop."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_CANCEL_AGAIN_S = 0.1

_SMALL_BYTES = 2**20
"""What is copied on the loop itself. A thread that comes back from copying may wait for the interpreter for as long."""


async def off_loop(size: int, function: Callable[..., T], *arguments: Any) -> T:
    """Calls a function that touches `size` bytes: in a thread, if that takes longer than to get there and back."""
    if size < _SMALL_BYTES:
        return function(*arguments)
    working = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        # The thread goes on: what it writes to must not be given to somebody else meanwhile.
        await asyncio.gather(working, return_exceptions=True)
        raise


class LoopThread:
    """Runs coroutines beside the main thread. Close it last."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="grpc", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Runs a coroutine on the loop and waits for its result. Not to be called on the loop itself."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout_s)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Begins a coroutine on the loop that nobody waits for."""

        async def start() -> "asyncio.Task[None]":
            return asyncio.create_task(coroutine)

        return self.run(start())

    def call(self, function: Any, *arguments: Any) -> None:
        """Has the loop call a function soon."""
        self.loop.call_soon_threadsafe(function, *arguments)

    def close(self) -> None:
        """Cancels what still runs, and ends the thread."""

        async def cancel_all() -> None:
            # Again and again: one that was just done with what it awaited may miss being cancelled (Python 3.11).
            while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks, timeout=_CANCEL_AGAIN_S)

        self.run(cancel_all(), 5.0)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5.0)
        self.loop.close()
