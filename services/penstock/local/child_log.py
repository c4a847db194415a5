"""The log file of a child process: bounded in size, and searched for the cause of the child's death.

Environments print to it as well, possibly a line per step. The launcher therefore cuts out its middle periodically.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from penstock.files import open_own

MOST_BYTES = 64 * 2**20
"""Size in bytes above which a log is cut: above the logs of normal runs, and small compared with the store."""

HEAD_BYTES, TAIL_BYTES = 2**20, 15 * 2**20
"""Bytes kept from the beginning and the end of a log that is cut."""

_SEARCHED_BYTES = 2**18
_LONGEST_CAUSE = 500
_OURS = "penstock: "
_TRACEBACK = "Traceback (most recent call last):"
_FATAL = "Fatal Python error: "
"""Line of Python's faulthandler, which writes stacks after it."""
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(: |$)")


class ChildLog:
    """The log of one child, across its restarts. Used only on the launcher's main thread."""

    def __init__(self, path: Path, begin: int = 0) -> None:
        """Names the log. The current process begins to write at byte `begin`."""
        self.path = path
        self._life_from = begin

    @contextlib.contextmanager
    def opened(self) -> Iterator[IO[bytes]]:
        """Opens the log for the child's next process, which appends to it."""
        try:
            file = os.fdopen(open_own(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab")
        except OSError:
            # A full or read-only disk must not keep a child from starting.
            file = Path(os.devnull).open("ab")  # noqa: SIM115 - closed below
        with file:
            self._life_from = file.tell()
            yield file

    def cut(self) -> None:
        """Cuts out the middle of a log that has grown too large. Output written meanwhile may be lost."""
        with contextlib.suppress(OSError):
            if self.path.stat().st_size > MOST_BYTES:
                self._cut()

    def cause(self) -> str:
        """Returns the reason why the process gave up or died, as far as the log shows it, in one line."""
        lines = self._last_lines()
        reason = _last_after(_OURS, lines) or _last_after(_FATAL, lines) or _exception(lines) or _last_of_others(lines)
        return reason[:_LONGEST_CAUSE] or "no output"

    def own_reason(self) -> str:
        """Returns the reason that Penstock itself logged when it gave up; empty if there is none."""
        return _last_after(_OURS, self._last_lines())

    def _cut(self) -> None:
        with os.fdopen(open_own(self.path, os.O_RDWR), "r+b") as file:
            file.seek(HEAD_BYTES)
            file.readline()
            head = file.tell()
            file.seek(-TAIL_BYTES, os.SEEK_END)
            file.readline()
            dropped = file.tell() - head
            # The last line may be incomplete, because the child is writing it.
            tail = file.read()
            tail = tail[: tail.rfind(b"\n") + 1]
            note = f"[penstock: {dropped:,} bytes were cut out of this log here]\n".encode()
            file.seek(head)
            file.write(note + tail)
            file.truncate()
        if self._life_from > head:
            self._life_from = max(head, self._life_from - dropped + len(note))

    def _last_lines(self) -> list[str]:
        """Returns the last lines that the current or latest process has written."""
        try:
            with self.path.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(self._life_from, end - _SEARCHED_BYTES))
                return file.read().decode(errors="replace").splitlines()
        except OSError:
            return []


def _last_after(prefix: str, lines: list[str]) -> str:
    """Returns the rest of the last line that begins with the prefix."""
    return next((line.removeprefix(prefix) for line in reversed(lines) if line.startswith(prefix)), "")


def _exception(lines: list[str]) -> str:
    """Returns the exception line of the last traceback, which other output may follow."""
    starts = [number for number, line in enumerate(lines) if line == _TRACEBACK]
    if not starts:
        return ""
    return next((line for line in lines[starts[-1] + 1 :] if _EXCEPTION.match(line)), "")


def _last_of_others(lines: list[str]) -> str:
    """Returns the last line that is not a log event: output of an environment or a library."""
    return next((line.strip() for line in reversed(lines) if line.strip() and not _is_event(line)), "")


def _is_event(line: str) -> bool:
    try:
        return isinstance(event := json.loads(line), dict) and "event" in event
    except ValueError:
        return False
