"""Processes in virtual time on one event loop: one seed decides which of them runs next.

A simulated process has an event loop and a main thread, as the real one has. Callbacks of one loop run in the order in
which they were scheduled, as asyncio promises. Between loops and main threads the order is random. Each callback takes
`CALLBACK_S`, and time jumps to the next timer when no callback is ready.

Main threads of production code block in conditions, in `time.sleep` and in `LoopThread.run`. Here each is a real
thread, of which one at a time runs: it parks there, and the loop resumes it.

A process that is killed or paused runs nothing, not even a `finally`. `SimulatedLoop.close` lets all of them end.
"""

import asyncio
import contextlib
import contextvars
import heapq
import itertools
import math
import sys
import threading
import zlib
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from random import Random
from typing import Any, TypeVar

from penstock.rpc.loop import LoopThread

T = TypeVar("T")

CALLBACK_S = 2e-5
_START_S = 1_000.0
_PREEMPTED = 0.2
"""Probability that others run before a main thread enters a condition."""

_LEFTOVER_ROUNDS = 100


class Ended(BaseException):
    """The simulation is over, so the main thread that waits must end."""


class Process:
    """A simulated process.

    Attributes:
        name: Name, which a process that replaces it has too.
        alive: Whether it has neither ended nor been killed.
        paused: Whether it is stopped, as by SIGSTOP.
        clock_ahead_s: Seconds by which its wall clock is ahead.
        loop_lane, main_lane: Callbacks that are ready on its event loop, and its main thread if that can run.
        context: Context of its callbacks.
    """

    def __init__(self, name: str) -> None:
        self.name, self.alive, self.paused, self.clock_ahead_s = name, True, False, 0.0
        self.loop_lane, self.main_lane = Lane(self, "loop"), Lane(self, "main")
        self.context = contextvars.Context()
        self.context.run(_PROCESS.set, self)


class Lane:
    """Callbacks of one process that run in their order."""

    def __init__(self, process: Process, name: str) -> None:
        self.process, self.ready = process, deque[asyncio.Handle]()
        self.name = f"{process.name} {name}"


_PROCESS: contextvars.ContextVar[Process] = contextvars.ContextVar("process")
_THREAD = threading.local()


def current_process() -> Process:
    """Returns the process whose code runs now."""
    return _PROCESS.get()


class _Task(asyncio.Task[Any]):
    """A task whose hash is not its address, because asyncio keeps tasks in sets."""

    def __init__(self, number: int, coroutine: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._number = number
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._number


class SimulatedLoop(asyncio.BaseEventLoop):
    """Event loop of all processes. Its `run` replaces `run_forever`.

    Attributes:
        random: Generator of the order.
        now: Virtual seconds.
        callbacks: Number of callbacks that have run.
        digest: Checksum of the times and lanes of all callbacks so far.
        world: Process of the simulation itself, which is never killed.
        failures: Errors that no code caught.
    """

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.random, self.now, self.callbacks, self.digest = random, _START_S, 0, 0
        self.world = Process("world")
        self.processes = [self.world]
        self.failures: list[str] = []
        self._timers: list[tuple[float, int, Lane, asyncio.TimerHandle]] = []
        self._numbers = itertools.count()
        self._tasks: list[asyncio.Task[Any]] = []
        self._threads: list[MainThread] = []
        self.set_task_factory(self._make_task)
        self.set_exception_handler(self._note_failure)

    def start_process(self, name: str) -> Process:
        """Adds a process, which runs nothing yet."""
        process = Process(name)
        self.processes.append(process)
        return process

    def run(self, stops: Callable[[], bool], observe: Callable[[Process], None] = lambda process: None) -> None:
        """Runs callbacks until `stops` is true. Calls `observe` after each with its process."""
        with self._running():
            while not stops():
                observe(self._run_next())

    def deliver(self, when: float, process: Process, function: Callable[..., object], *arguments: Any) -> None:
        """Calls a function on a process's loop at a time; later if it is paused then."""
        self._schedule(when, process.loop_lane, function, arguments, process.context)

    def resume_at(self, when: float, process: Process, function: Callable[..., object], *arguments: Any) -> None:
        """Calls a function that resumes the process's main thread, as `deliver`."""
        self._schedule(when, process.main_lane, function, arguments, process.context)

    def close(self) -> None:
        """Lets all processes end: cancels their tasks and ends their main threads."""
        with self._running():
            for process in self.processes:
                process.alive, process.paused = True, False
            for _ in range(_LEFTOVER_ROUNDS):
                left = [task for task in self._tasks if not task.done()]
                threads = [thread for thread in self._threads if not thread.done]
                if not left and not threads:
                    break
                for thread in threads:
                    thread.end()
                for task in left:
                    task.cancel()
                until = self.now + 1.0
                while self.now < until:
                    self._run_next()
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.exception()
        super().close()

    # The interface of asyncio

    def time(self) -> float:
        return self.now

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        context = context or contextvars.copy_context()
        handle = asyncio.Handle(callback, args, self, context)
        context.get(_PROCESS, self.world).loop_lane.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        context = context or contextvars.copy_context()
        process: Process = context.get(_PROCESS, self.world)
        return self._schedule(when, process.loop_lane, callback, args, context)

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Runs work of worker threads between two callbacks."""
        result = self.create_future()

        def work() -> None:
            if not result.cancelled():
                try:
                    result.set_result(func(*args))
                except Exception as error:
                    result.set_exception(error)

        self.call_later(self.random.uniform(0.0, 0.002), work)
        return result

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:  # type: ignore[override]
        """Refuses sockets, so that streams stay with gRPC."""
        raise OSError("a simulated process has no sockets")

    def remove_reader(self, fd: Any) -> bool:
        """Does nothing, because there are no readers."""
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def _make_task(self, loop: Any, coroutine: Any, **options: Any) -> Any:
        if len(self._tasks) > 10_000:
            self._tasks = [task for task in self._tasks if not task.done()]
        task = _Task(next(self._numbers), coroutine, loop=self, **options)
        # A dead process keeps its tasks, because their `finally` would run when they are collected.
        self._tasks.append(task)
        return task

    def _note_failure(self, loop: Any, failure: dict[str, Any]) -> None:
        self.failures.append(f"{failure.get('message')}: {failure.get('exception')!r}")

    # Its work

    def _schedule(
        self, when: float, lane: Lane, function: Callable[..., object], arguments: Any, context: contextvars.Context
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, function, arguments, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), lane, handle))
        return handle

    def _run_next(self) -> Process:
        """Runs one callback, and returns its process."""
        while True:
            while self._timers and self._timers[0][0] <= self.now:
                _, _, lane, handle = heapq.heappop(self._timers)
                lane.ready.append(handle)
            lanes = [
                lane
                for process in self.processes
                if process.alive and not process.paused
                for lane in (process.loop_lane, process.main_lane)
                if lane.ready
            ]
            if not lanes:
                assert self._timers, "nothing will happen any more"
                self.now = max(self.now, self._timers[0][0])
                continue
            lane = lanes[int(self.random.random() * len(lanes))]
            next_one = lane.ready.popleft()
            if next_one.cancelled():
                continue
            self.digest = zlib.crc32(f"{self.now:.9f} {lane.name}".encode(), self.digest)
            self.now += CALLBACK_S
            self.callbacks += 1
            next_one._run()
            return lane.process

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        hooks = sys.get_asyncgen_hooks()
        asyncio._set_running_loop(self)
        sys.set_asyncgen_hooks(finalizer=self._asyncgen_finalizer_hook)  # type: ignore[attr-defined]
        try:
            yield
        finally:
            sys.set_asyncgen_hooks(*hooks)
            asyncio._set_running_loop(None)


class MainThread:
    """Main thread of a process, which runs only while the loop waits for it."""

    def __init__(self, loop: SimulatedLoop, process: Process, body: Callable[[], None]) -> None:
        """Starts it at the loop's next opportunity."""
        self.done, self._loop, self._process, self._ending, self._parks = False, loop, process, False, 0
        # Each is released to pass the turn, and acquired to wait for it.
        self._goes, self._parked = threading.Lock(), threading.Lock()
        self._goes.acquire()
        self._parked.acquire()
        self._thread = threading.Thread(target=self._run, args=(body,), name=process.name, daemon=True)
        self._thread.start()
        loop._threads.append(self)
        self.wake()

    def park(self, timeout_s: float | None) -> None:
        """Lets others run until `wake`, or for some seconds. Must be called on this thread."""
        if self._ending:
            raise Ended
        self._parks += 1
        if timeout_s is not None:
            self._loop.resume_at(self._loop.now + timeout_s, self._process, self._resume, self._parks)
        self._parked.release()
        self._goes.acquire()
        if self._ending:
            raise Ended

    def wake(self) -> None:
        """Resumes the thread soon, if it is parked."""
        self._loop.resume_at(self._loop.now, self._process, self._resume, self._parks)

    def end(self) -> None:
        """Ends the thread, which raises `Ended` wherever it is parked."""
        self._ending = True
        self._resume(self._parks)

    def _resume(self, park: int) -> None:
        # It may have been resumed already, by its other reason.
        if park == self._parks and not self.done:
            self._goes.release()
            self._parked.acquire()

    def _run(self, body: Callable[[], None]) -> None:
        _THREAD.current = self
        self._goes.acquire()
        context = contextvars.Context()
        context.run(_PROCESS.set, self._process)
        try:
            if not self._ending:
                context.run(body)
        except Ended:
            pass
        except BaseException as error:
            self._loop.failures.append(f"the main thread of {self._process.name} failed: {error!r}")
        finally:
            self.done = True
            self._parked.release()


def _current_thread() -> MainThread:
    thread: MainThread | None = getattr(_THREAD, "current", None)
    assert thread is not None, "code on the loop must not wait"
    return thread


def sleep(seconds: float) -> None:
    """Replaces `time.sleep` on main threads."""
    _current_thread().park(seconds)


class SimulatedCondition:
    """Replaces `threading.Condition`. Code on the loop may enter it and not wait."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop, self._entered = loop, 0
        self._waiting: list[MainThread] = []

    def __enter__(self) -> bool:
        thread: MainThread | None = getattr(_THREAD, "current", None)
        if thread is not None and not self._entered and self._loop.random.random() < _PREEMPTED:
            thread.park(0.0)
        self._entered += 1
        return True

    def __exit__(self, *error: object) -> None:
        self._entered -= 1

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for `notify_all`, as `threading.Condition.wait`."""
        thread, entered = _current_thread(), self._entered
        self._waiting.append(thread)
        self._entered = 0
        try:
            thread.park(timeout)
        finally:
            self._entered = entered
        if notified := thread not in self._waiting:
            return notified
        self._waiting.remove(thread)
        return False

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        """Waits until the predicate holds, as `threading.Condition.wait_for`."""
        ends = None if timeout is None else self._loop.now + timeout
        while not (result := predicate()):
            if ends is not None and self._loop.now >= ends:
                break
            self.wait(None if ends is None else ends - self._loop.now)
        return result

    def notify_all(self) -> None:
        """Wakes all that wait."""
        waiting, self._waiting = self._waiting, []
        for thread in waiting:
            thread.wake()


class SimulatedLoopThread(LoopThread):
    """Replaces `LoopThread`: the loop of a simulated process, called from its main thread."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.credentials, self.loop = None, loop

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Runs a coroutine on the loop and parks until it has ended."""
        thread = _current_thread()
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        future.add_done_callback(lambda done: thread.wake())
        ends = math.inf if timeout_s is None else self.loop.time() + timeout_s
        while not future.done() and self.loop.time() < ends:
            thread.park(timeout_s)
        return future.result(0.0)

    def close(self) -> None:
        """Does nothing: the process ends with its main thread."""
