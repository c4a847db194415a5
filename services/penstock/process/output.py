"""Standard output and error of services and of `penstock train`: a write that fails loses lines and never raises.

The log of a service may be on a full disk, and its reader may have gone. An exception would end the work that had
something to log. Lost lines are counted, and the first line that can be written again follows their number.

Under a launcher, `LOG_VARIABLE` names the log and a block of memory. The last output that the log lacks is in that
block, with the stack of a crash, so that the launcher can show the reason for the service's death.
"""

import errno
import faulthandler
import io
import os
import sys
import threading
from contextlib import suppress
from typing import Any, TextIO

from penstock.machine.files import PRIVATE_FILE
from penstock.telemetry import metrics

LOG_VARIABLE = "PENSTOCK_LOG"
"""Variable with the descriptor of the block of memory and the absolute path of the log: `7:/runs/a/logs/replay.log`."""

KEPT_BYTES = 4096
"""Bytes of the last lost output at the beginning of the block. A crash writes its stack after them."""

NOTE = "[penstock: "
"""Beginning of a line about the log itself."""

_ERROR = 2
_NO_READER = "penstock: the reader of the output has left; the run continues, and Ctrl-C stops it\n"


class _Log:
    """The log that a launcher has opened for this process."""

    def __init__(self, memory: int, path: str) -> None:
        self._memory, self._path, self._kept = memory, path, b""
        self._is_missing = os.path.samestat(os.fstat(_ERROR), os.stat(os.devnull))  # noqa: PTH116 - a descriptor
        os.set_inheritable(memory, False)
        # A crash appends at the descriptor's position.
        os.lseek(memory, KEPT_BYTES, os.SEEK_SET)
        faulthandler.enable(memory)

    def lost(self, data: bytes) -> None:
        self._kept = (self._kept + data)[-KEPT_BYTES:]
        self._write()

    def forget(self) -> None:
        self._kept = b""
        self._write()

    def opened(self) -> None:
        """Opens the log for this process if the launcher could not. Raises `OSError`."""
        if not self._is_missing:
            return
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, PRIVATE_FILE)
        for target in (1, _ERROR):
            os.dup2(descriptor, target)
        os.close(descriptor)
        self._is_missing = False

    def _write(self) -> None:
        os.pwrite(self._memory, self._kept.ljust(KEPT_BYTES, b"\0"), 0)


class _Descriptor(io.RawIOBase):
    """A descriptor whose writes never raise. Any thread may write."""

    def __init__(self, descriptor: int, log: _Log | None, notice: str = "") -> None:
        self._descriptor, self._log, self._notice = descriptor, log, notice
        self._lost_lines, self._torn, self._reason = 0, False, ""
        self._lock = threading.Lock()
        # A process that an environment forks has no other thread that could release it.
        os.register_at_fork(after_in_child=self._unlock)

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        content = bytes(data)
        with self._lock:
            if (self._lost_lines and not self._recovers()) or not self._put(content):
                self._lose(content)
        return len(content)

    def _recovers(self) -> bool:
        """Writes how many lines were lost; returns whether that worked."""
        begin = "\n" if self._torn else ""
        note = f"{begin}{NOTE}log lines lost here: {self._lost_lines:,} ({self._reason})]\n"
        if not self._put(note.encode()):
            return False
        self._lost_lines, self._torn = 0, False
        if self._log is not None:
            self._log.forget()
        return True

    def _put(self, data: bytes) -> bool:
        """Writes all of the data; returns whether that worked."""
        rest = memoryview(data)
        try:
            if self._log is not None:
                self._log.opened()
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            if error.errno == errno.EPIPE:
                self._note()
            self._torn = self._torn or 0 < len(rest) < len(data)
            self._reason = error.strerror or str(error)
            return False
        return True

    def _note(self) -> None:
        """Tells the user once that the reader has left."""
        notice, self._notice = self._notice, ""
        with suppress(OSError):
            os.write(_ERROR, notice.encode())

    def _lose(self, data: bytes) -> None:
        lines = data.count(b"\n") or 1
        self._lost_lines += lines
        metrics.LOST_LOG_LINES.inc(lines)
        if self._log is not None:
            self._log.lost(data)

    def _unlock(self) -> None:
        self._lock = threading.Lock()


class _Text(io.TextIOWrapper):
    """A stream that code of users can't close, because the rest of the process still writes to it."""

    def close(self) -> None:
        self.flush()


def protect() -> None:
    """Replaces `sys.stdout` and `sys.stderr` of a service. Call it once, before anything is logged."""
    memory, _, path = os.environ.pop(LOG_VARIABLE, "").partition(":")
    log = _Log(int(memory), path) if path else None
    if log is None:
        # A crash in a library leaves a stack in the log.
        faulthandler.enable()
    sys.stdout, sys.stderr = _text(1, log), _text(_ERROR, log)


def protect_command() -> None:
    """Replaces both for a command whose work must not end because its output is on a full disk or its reader leaves.

    Streams that a caller has put in the place of the process's own stay.
    """
    if sys.stdout is sys.__stdout__:
        sys.stdout = _text(1, None, _NO_READER)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _text(_ERROR, None)


def protected(descriptor: int) -> TextIO:
    """Returns a stream on another descriptor, whose writes lose lines in place of raising."""
    return _text(descriptor, None)


def _text(descriptor: int, log: _Log | None, notice: str = "") -> TextIO:
    raw = _Descriptor(descriptor, log, notice)
    return _Text(raw, "utf-8", errors="backslashreplace", line_buffering=True)  # type: ignore[arg-type]
