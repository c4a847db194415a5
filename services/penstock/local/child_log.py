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

from penstock.machine.files import open_own
from penstock.machine.system_errors import disk_fault
from penstock.process.output import KEPT_BYTES, LOG_VARIABLE, NOTE

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
        self.memory: int | None = None
        """Descriptor of a block of memory for output that the disk does not take (`process.output`), if possible."""

    @property
    def named(self) -> dict[str, str]:
        """The environment variable by which a child finds its log and the block of memory."""
        return {} if self.memory is None else {LOG_VARIABLE: f"{self.memory}:{self.path.absolute()}"}

    @contextlib.contextmanager
    def opened(self) -> Iterator[IO[bytes]]:
        """Opens the log for the child's next process, which appends to it."""
        self.close()
        self.memory = _memory()
        file: IO[bytes]
        try:
            file = os.fdopen(open_own(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab")
        except OSError:
            # A full or read-only disk must not keep a child from starting. The child opens the log later.
            file = Path(os.devnull).open("ab")  # noqa: SIM115 - closed below
        with file:
            self._life_from = self._size()
            yield file

    def close(self) -> None:
        """Frees the block of memory after the child's end."""
        self._keep_crash()
        if self.memory is not None:
            os.close(self.memory)
            self.memory = None

    def cut(self) -> None:
        """Cuts out the middle of a log that has grown too large. Output written meanwhile may be lost."""
        with contextlib.suppress(OSError):
            if self.path.stat().st_size > MOST_BYTES:
                self._cut()

    def cause(self) -> str:
        """Returns the reason why the process gave up or died, as far as the log shows it, in one line."""
        reason = self.own_reason() or self.error() or _last_of_others(self._last_lines())
        fault = disk_fault(self.path.parent)
        reasons = [reason[:_LONGEST_CAUSE] or "no output", f"its log can't be written: {fault}" if fault else ""]
        return "; ".join(filter(None, reasons))

    def error(self) -> str:
        """Returns the last crash or exception of the process, which may still run; empty if there is none."""
        lines = self._last_lines()
        return _last_after(_FATAL, lines) or _exception(lines)

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
            note = f"{NOTE}{dropped:,} bytes were cut out of this log here]\n".encode()
            file.seek(head)
            file.write(note + tail)
            file.truncate()
        if self._life_from > head:
            self._life_from = max(head, self._life_from - dropped + len(note))

    def _last_lines(self) -> list[str]:
        """Returns the last lines of the current or latest process, with those that the disk did not take."""
        written = b""
        with contextlib.suppress(OSError), self.path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(self._life_from, end - _SEARCHED_BYTES))
            written = file.read()
        lost, stack = self._remembered()
        return b"\n".join((written, lost, stack)).decode(errors="replace").splitlines()

    def _remembered(self) -> tuple[bytes, bytes]:
        """Returns the last output that the disk did not take, and the stack of a crash."""
        if self.memory is None:
            return b"", b""
        content = os.pread(self.memory, os.fstat(self.memory).st_size, 0)
        return content[:KEPT_BYTES].rstrip(b"\0"), content[KEPT_BYTES:]

    def _keep_crash(self) -> None:
        """Appends the stack of a crash to the log."""
        _, stack = self._remembered()
        with contextlib.suppress(OSError):
            if stack:
                with self.path.open("ab") as file:
                    file.write(stack)

    def _size(self) -> int:
        with contextlib.suppress(OSError):
            return self.path.stat().st_size
        return 0


def _memory() -> int | None:
    if not hasattr(os, "memfd_create"):  # macOS
        return None
    memory: int | None = None
    with contextlib.suppress(OSError):
        memory = os.memfd_create("last output of a child")
    return memory


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
    if line.startswith(NOTE):
        return True
    try:
        return isinstance(event := json.loads(line), dict) and "event" in event
    except ValueError:
        return False
