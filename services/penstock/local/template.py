"""A template process that has imported the services' modules, and from which services are forked.

Importing torch, numba and gRPC takes some seconds of processor time. The template imports them once, so that four
services start in the time of one, and a service that died restarts immediately. Services share the memory of the
imported modules. See `local.template_process` for the other side.

Linux only. On other systems, and after the template has failed, services are started as commands.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import IO, Any

from penstock.local.variables import of_services
from penstock.machine import library_variables

PENSTOCK = [sys.executable, "-Pm", "penstock"]
"""Command that starts Penstock. With -P, the current folder does not shadow installed modules."""

_LARGEST_MESSAGE = 65_536
_FORK_TIMEOUT_S = 10.0
_END_S = 2.0
_PADDING = "." * 4096
"""Space for the command line of a service, which is cut if it is longer."""


class Template(AbstractContextManager["Template"]):
    """The launcher's side of the template. Use it as a context manager.

    Only one thread may call `fork` and use the processes that it returns.

    Attributes:
        unusable: Why services can't be forked and are started as commands, in one line; empty if they can be.
    """

    def __init__(self) -> None:
        """Starts the template process without waiting for its imports."""
        self._ready, self.unusable = False, ""
        self._loading = {"replay": "loading"}
        self._ended: dict[int, int] = {}
        self._forked: set[int] = set()
        self._started: int | None = None
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.pid: int | None = None
        if sys.platform != "linux":
            return
        variables = of_services(os.environ)
        library_variables.prepare(variables)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [*PENSTOCK[:-1], "penstock.local.template_process", str(theirs.fileno()), _PADDING],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=variables,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self.pid = self._process.pid

    def __exit__(self, *exception: object) -> None:
        """Ends the template process, and kills services that still run."""
        self._lose()
        if self._process is not None:
            # It may still be importing, and has nothing to save.
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)

    @property
    def pending(self) -> bool:
        """Whether the template is still importing; until it is done, `fork` returns None."""
        while not self._ready and self._control is not None and self._receive(0.0):
            pass
        return not self._ready and self._control is not None

    def state_of(self, service: str) -> str:
        """Returns how far the imports of a service are: waiting, loading, compiling or loaded; empty without them."""
        if self.pending:
            return self._loading.get(service, "waiting")
        return "loaded" if self._ready else ""

    def fork(
        self, command: Sequence[str], variables: Mapping[str, str], outputs: Sequence[int], log: Path
    ) -> "ForkedProcess | None":
        """Starts a service in a process that leads its own session and process group.

        `variables` are the service's own environment variables. `outputs` are descriptors: of the file `log`, for
        standard output and error, and of the log's block of memory, if it has one (`local.child_log`). Returns None if
        the template can't fork the command now; the caller then starts it. It forks those that begin with `PENSTOCK`.
        """
        program, arguments = list(command[: len(PENSTOCK)]), list(command[len(PENSTOCK) :])
        if program != PENSTOCK or self.pending or self._control is None:
            return None
        reading, writing = os.pipe()
        request = json.dumps({"arguments": arguments, "variables": variables, "log": str(log.absolute())}).encode()
        try:
            socket.send_fds(self._control, [request], [reading, *outputs])
        except OSError:
            self._lose()
        finally:
            os.close(reading)
        started = self._next_started()
        if started is None or started < 0:
            os.close(writing)
            return None
        self._forked.add(started)
        return ForkedProcess(self, started, os.fdopen(writing, "wb"))

    def end_of(self, pid: int) -> int | None:
        """Returns the exit code, as in `subprocess`, of a service that was not reaped yet; None while it runs."""
        while pid not in self._ended and self._control is not None and self._receive(0.0):
            pass
        return self._ended.get(pid)

    def reap(self, pid: int) -> None:
        """Reaps a service that has ended, so that its process id may be reused."""
        self._forked.discard(pid)
        del self._ended[pid]
        if self._control is not None:
            with suppress(OSError):
                self._control.send(json.dumps({"reap": pid}).encode())

    def _next_started(self) -> int | None:
        """Waits for the process id of the requested service; returns None if the template fails."""
        while self._started is None and self._control is not None:
            self._receive(_FORK_TIMEOUT_S)
        started, self._started = self._started, None
        return started

    def _receive(self, timeout_s: float) -> bool:
        """Receives one message; returns whether there was one. Abandons a template that does not answer in time."""
        assert self._control is not None
        self._control.settimeout(timeout_s)
        try:
            data = self._control.recv(_LARGEST_MESSAGE)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        message: dict[str, Any] = json.loads(data) if data else {"unusable": "it has ended"}
        if "unusable" in message:
            if not self._ready:
                self.unusable = f"services load one by one, because their template is not usable: {message['unusable']}"
            self._lose()
            return False
        if "loading" in message:
            self._loading = {**dict.fromkeys(self._loading, "loaded"), message["loading"]: "loading"}
        elif "compiling" in message:
            self._loading[message["compiling"]] = "compiling"
        elif "ready" in message:
            self._ready = True
        elif "started" in message:
            self._started = message["started"]
        else:
            self._ended[message["ended"]] = message["code"]
        return True

    def _lose(self) -> None:
        """Abandons the template, and kills its services, whose exit codes are no longer available."""
        if self._control is None:
            return
        self._control.close()
        self._control = None
        for pid in self._forked - self._ended.keys():
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            self._ended[pid] = -signal.SIGKILL


class ForkedProcess:
    """A forked service, with the part of `subprocess.Popen` that `local.process_group` uses."""

    def __init__(self, template: Template, pid: int, stdin: IO[bytes]) -> None:
        self._template = template
        self.pid, self.stdin, self.stdout = pid, stdin, None
        self.returncode: int | None = None

    def has_ended(self) -> bool:
        """Returns whether the process has ended, without reaping it."""
        return self.returncode is not None or self._template.end_of(self.pid) is not None

    def wait(self) -> int:
        """Reaps the process, which must have ended; returns its exit code."""
        if self.returncode is None:
            code = self._template.end_of(self.pid)
            assert code is not None
            self._template.reap(self.pid)
            self.returncode = code
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal to the process, which must not have been reaped."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)
