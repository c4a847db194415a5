"""The log file of a child process: bounded, and searched for the reason of the child's death.

The child writes it through a descriptor of its own, opened for appending; environments print there too, a line a step
if they like. So the launcher looks at its size now and then and cuts its middle out.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO

MOST_BYTES = 64 * 2**20
"""A log that has grown beyond this is cut: more than any run of ours has written, little beside a run's other files."""

HEAD_BYTES, TAIL_BYTES = 2**20, 15 * 2**20
"""What is kept of a log that is cut: how it began, and what came last."""

_SEARCHED_BYTES = 2**18
_LONGEST_COMPLAINT = 500
_OURS = "penstock: "
_TRACEBACK = "Traceback (most recent call last):"
_FATAL = "Fatal Python error: "
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(: |$)")


class ChildLog:
    """The log of one child, over all its lives. Used by the launcher's main thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._life_from = 0

    @contextlib.contextmanager
    def opened(self) -> Iterator[IO[bytes]]:
        """The file to start the child's next process with: what that says comes after what is there.

        A disk that is full or read-only must not keep a child from starting: its words are lost then.
        """
        with contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context(self.path.open("ab"))
            except OSError:
                file = stack.enter_context(Path(os.devnull).open("ab"))
            self._life_from = file.tell()
            yield file

    def cut(self) -> None:
        """Cuts the middle out if the log has grown too large. What is written in this moment may be lost."""
        with contextlib.suppress(OSError):
            if self.path.stat().st_size > MOST_BYTES:
                self._cut()

    def complaint(self) -> str:
        """Why the process that writes it gave up or died, as far as the log tells; one line."""
        lines = self._last_lines()
        reason = _own_reason(lines) or _fatal_error(lines) or _exception(lines) or _last_of_others(lines)
        return reason[:_LONGEST_COMPLAINT] or "it said nothing"

    def own_reason(self) -> str:
        """The line in which Penstock itself gave up; empty if it did not."""
        return _own_reason(self._last_lines())

    def _cut(self) -> None:
        with self.path.open("r+b") as file:
            file.seek(HEAD_BYTES)
            file.readline()
            head = file.tell()
            file.seek(-TAIL_BYTES, os.SEEK_END)
            file.readline()
            dropped = file.tell() - head
            # Of a line that is being written, a part may be there.
            tail = file.read()
            tail = tail[: tail.rfind(b"\n") + 1]
            note = f"[penstock: {dropped:,} bytes were cut out of this log here]\n".encode()
            file.seek(head)
            file.write(note + tail)
            file.truncate()
        if self._life_from > head:
            self._life_from = max(head, self._life_from - dropped + len(note))

    def _last_lines(self) -> list[str]:
        """Of this process's life."""
        try:
            with self.path.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(self._life_from, end - _SEARCHED_BYTES))
                return file.read().decode(errors="replace").splitlines()
        except OSError:
            return []


def _own_reason(lines: list[str]) -> str:
    return next((line.removeprefix(_OURS) for line in reversed(lines) if line.startswith(_OURS)), "")


def _fatal_error(lines: list[str]) -> str:
    """Of a signal that Python's faulthandler saw, which writes stacks after it."""
    return next((line.removeprefix(_FATAL) for line in reversed(lines) if line.startswith(_FATAL)), "")


def _exception(lines: list[str]) -> str:
    """The exception's own line of the last traceback, which others may have written after."""
    starts = [number for number, line in enumerate(lines) if line == _TRACEBACK]
    if not starts:
        return ""
    return next((line for line in lines[starts[-1] + 1 :] if _EXCEPTION.match(line)), "")


def _last_of_others(lines: list[str]) -> str:
    """The last line that is no event of ours: what an environment or a library has printed."""
    return next((line.strip() for line in reversed(lines) if line.strip() and not _is_event(line)), "")


def _is_event(line: str) -> bool:
    try:
        return isinstance(event := json.loads(line), dict) and "event" in event
    except ValueError:
        return False
