"""A process that has imported what services need, from which they are forked.

A service imports torch, numba and gRPC, which takes some seconds of processor time. The template imports them once, so
that four services start in the time of one, and a service that died is back at once. Services share the memory of what
was imported. See `cli.template_process` for the other side.

Linux only: elsewhere, and when the template has failed, services are started as commands.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import IO

from penstock.cli.variables import without_settings

PENSTOCK = [sys.executable, "-Pm", "penstock"]
"""The program. The folder where it starts must not shadow installed modules (-P)."""

_LARGEST_MESSAGE = 65_536
_FORK_TIMEOUT_S = 10.0
_END_S = 2.0
_PADDING = "." * 4096
"""The longest command line of a service."""


class Template:
    """The launcher's end. Use it as a context. `fork` and the processes that it returns belong to one thread."""

    def __init__(self) -> None:
        """Starts the process and does not wait for its imports."""
        self._ready = False
        self._ended: dict[int, int] = {}
        self._forked: set[int] = set()
        self._started: int | None = None
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        if sys.platform != "linux":
            return
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [*PENSTOCK[:-1], "penstock.cli.template_process", str(theirs.fileno()), _PADDING],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=without_settings(os.environ),
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    def __enter__(self) -> "Template":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process. Services that still run go on, and how they end is not known."""
        self._lose()
        if self._process is not None:
            # It may be in the middle of its imports, and has nothing to save.
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)

    @property
    def pid(self) -> int | None:
        """The number of the process; None where there is none."""
        return self._process.pid if self._process is not None else None

    @property
    def pending(self) -> bool:
        """Whether the imports still go on; before their end, `fork` returns None."""
        while not self._ready and self._control is not None and self._receive(0.0):
            pass
        return not self._ready and self._control is not None

    def fork(self, command: Sequence[str], name: str, output: int) -> "ForkedProcess | None":
        """Starts a service in a process that leads a session and a group of its own.

        Args:
            command: Of the service; begins with `PENSTOCK`.
            name: What the service is called in this run.
            output: Descriptor of the file for standard output and errors.

        Returns:
            The process, or None if the template can't fork this command now: start the command itself.
        """
        program, arguments = list(command[: len(PENSTOCK)]), list(command[len(PENSTOCK) :])
        if program != PENSTOCK or self.pending or self._control is None:
            return None
        reading, writing = os.pipe()
        request = json.dumps({"arguments": arguments, "name": name}).encode()
        try:
            socket.send_fds(self._control, [request], [reading, output])
        except OSError:
            self._lose()
        finally:
            os.close(reading)
        started = self._next_started()
        if started is None:
            os.close(writing)
            return None
        self._forked.add(started)
        return ForkedProcess(self, started, os.fdopen(writing, "wb"))

    def end_of(self, pid: int) -> int | None:
        """The exit code of a service that has ended and was not reaped yet, as `subprocess` has it; None: it runs."""
        while pid not in self._ended and self._control is not None and self._receive(0.0):
            pass
        return self._ended.get(pid)

    def reap(self, pid: int) -> None:
        """Lets the number of a service that has ended be used again."""
        self._forked.discard(pid)
        del self._ended[pid]
        if self._control is not None:
            with suppress(OSError):
                self._control.send(json.dumps({"reap": pid}).encode())

    def _next_started(self) -> int | None:
        """Waits for the number of the service that was asked for; None if none comes."""
        while self._started is None and self._control is not None:
            self._receive(_FORK_TIMEOUT_S)
        started, self._started = self._started, None
        return started

    def _receive(self, timeout_s: float) -> bool:
        """Takes one message; whether there was one. Without an answer in time, the template is given up."""
        assert self._control is not None
        self._control.settimeout(timeout_s)
        try:
            data = self._control.recv(_LARGEST_MESSAGE)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._lose()
            return False
        message = json.loads(data)
        if "ready" in message:
            self._ready = True
        elif "started" in message:
            self._started = message["started"]
        else:
            self._ended[message["ended"]] = message["code"]
        return True

    def _lose(self) -> None:
        """Goes on without the template. How its services end can't be seen any more, so they are ended and replaced."""
        if self._control is None:
            return
        self._control.close()
        self._control = None
        for pid in self._forked - self._ended.keys():
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            self._ended[pid] = -signal.SIGKILL


class ForkedProcess:
    """A service that was forked; has of `subprocess.Popen` what `cli.process_group` uses."""

    def __init__(self, template: Template, pid: int, stdin: IO[bytes]) -> None:
        self._template = template
        self.pid, self.stdin = pid, stdin
        self.stdout: IO[bytes] | None = None
        self.returncode: int | None = None

    def has_ended(self) -> bool:
        """Whether it has ended; it is not reaped before `wait`."""
        return self.returncode is not None or self._template.end_of(self.pid) is not None

    def wait(self) -> int:
        """Reaps the process, which has ended; its exit code."""
        if self.returncode is None:
            code = self._template.end_of(self.pid)
            assert code is not None
            self._template.reap(self.pid)
            self.returncode = code
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal to the process, which was not reaped yet."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)
