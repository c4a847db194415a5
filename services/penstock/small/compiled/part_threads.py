"""Threads that work on the parts of a task beside the thread that has it."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from queue import SimpleQueue


@dataclass(frozen=True, slots=True)
class _Task:
    """A task whose parts each thread claims one by one.

    Attributes:
        do: Function that does a part, from the numbers of the thread and of the part.
        parts: Parts that no thread has claimed. A thread claims one by `next`, which is atomic.
        done: Receives None, or the error, for each part that a helper has done.
    """

    do: Callable[[int, int], None]
    parts: Iterator[int]
    done: "SimpleQueue[BaseException | None]" = field(default_factory=SimpleQueue)


class PartThreads:
    """Helpers of one thread, which live until the process ends.

    The thread itself works too, and no part waits for a helper that the operating system has not woken yet.
    """

    def __init__(self, threads: int) -> None:
        """Starts as many helpers as are missing to this number of threads."""
        self._wakings: list[SimpleQueue[_Task]] = [SimpleQueue() for _ in range(threads - 1)]
        for number, waking in enumerate(self._wakings, 1):
            threading.Thread(target=_help, args=(number, waking), name=f"part {number}", daemon=True).start()

    def run(self, do: Callable[[int, int], None], parts: int) -> None:
        """Calls `do` with the numbers of a thread, from 0, and of a part, once for each part. Raises its errors."""
        task, own = _Task(do, iter(range(parts))), 0
        for waking in self._wakings[: parts - 1]:
            waking.put(task)
        for part in task.parts:
            do(0, part)
            own += 1
        errors = [error for _ in range(parts - own) if (error := task.done.get())]
        if errors:
            raise errors[0]


def _help(number: int, waking: "SimpleQueue[_Task]") -> None:
    while True:
        task = waking.get()
        for part in task.parts:
            try:
                task.do(number, part)
            except BaseException as error:
                task.done.put(error)
            else:
                task.done.put(None)
