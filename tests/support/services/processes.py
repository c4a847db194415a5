"""Penstock's commands as real processes: started, watched, signalled, and checked for leftover processes.

Every process that a command starts inherits a mark in its environment, so that orphans are found too.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from penstock.errors import Unavailable
from penstock.rpc.clients.operator import StatusClient
from penstock.rpc.loop import LoopThread
from penstock.runs.folder import RunFolder
from penstock.types.status import RunStatus
from tests.support.machine.timing import PATIENCE_S, Bound, start_patience_now_s, wait_for
from tests.support.services.link import Host
from tests.support.services.switch import SwitchedHost

# A program in the background of a script ignores Ctrl-C, and its commands would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

PENSTOCK = str(Path(sys.executable).with_name("penstock"))
ROOT = Path(__file__).parents[3]
WITH_HELPERS = {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}
"""Environment variables of a command that uses the environments of `tests/support`."""

_MARK = "TEST_MARK_OF_PENSTOCK"

_END_MULTIPLE = 10.0
"""Largest ratio of an end to the command's start (up to the first condition that the test waited for).

Undisturbed, both take a second or two. An end may also wait for processes that are still importing.
"""
_END_FIXED_S = 15.0
"""Seconds of the product's own timeouts in an end.

A launcher gives a service 8 s before it kills it, and then 5 s to the rest. A service gives work in progress 10 s after
its launcher has ended.
"""

T = TypeVar("T")


class Command:
    """One `penstock` command as a process, with its output so far."""

    def __init__(
        self,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        terminal: bool = False,
        host: Host | SwitchedHost | None = None,
        program: Sequence[str] = (PENSTOCK,),
    ) -> None:
        """Starts the command, here or on another host; in a terminal of its own, or with its output in files.

        `program` starts Penstock; another environment's interpreter starts it with `-m penstock`.
        """
        self.arguments = arguments
        self._started_at, self._start_s = time.monotonic(), 0.0
        self.mark = uuid.uuid4().hex
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK")}
        kept |= {_MARK: self.mark, "TERM": "xterm-256color", **(environment or {})}
        self._files = tempfile.TemporaryDirectory()
        self._stdout, self._stderr = Path(self._files.name) / "stdout", Path(self._files.name) / "stderr"
        self._master: int | None = None
        self._slave: int | None = None
        if terminal:
            self._master, self._slave = os.openpty()
        command = [*program, *arguments] if host is None else host.command(*program, *arguments)
        if self._slave is not None:
            # The first terminal that a session's leader opens becomes its controlling terminal, which sends Ctrl-C to
            # it.
            command = ["sh", "-c", 'exec "$@" <>"$0" >&0 2>&0', os.ttyname(self._slave), *command]
        with self._stdout.open("wb") as stdout, self._stderr.open("wb") as stderr:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=kept,
                cwd=directory,
                start_new_session=True,
            )
        if self._master is not None:
            threading.Thread(target=self._read_terminal, args=(self._master,), daemon=True).start()

    def __enter__(self) -> "Command":
        return self

    def __exit__(self, *exception: object) -> None:
        """Kills all remaining processes, so that a failing test leaves nothing behind."""
        for process in self.marked():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()
        if self._slave is not None:
            os.close(self._slave)
        self._files.cleanup()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stdout(self) -> str:
        return self._stdout.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return self._stderr.read_text(errors="replace")

    def until(self, condition: Callable[[], T | None], what: str, timeout_s: float | None = None) -> T:
        """Waits like `wait_for`, but fails as soon as the command has ended.

        The first wait of a command measures its start, the baseline of `end_bound`.
        """

        def check() -> T | None:
            ended = self.process.poll() is not None
            value = condition()
            assert value or not ended, f"{self} ended before {what}:\n{self.stdout}\n{self.stderr}"
            return value

        value = wait_for(check, what, timeout_s, longest_s=start_patience_now_s)
        self._start_s = self._start_s or time.monotonic() - self._started_at
        return value

    @property
    def end_bound(self) -> Bound:
        """Bound of the end of the command and of everything it started, after a request to stop."""
        assert self._start_s, f"{self} was never waited for, so that its end has no baseline"
        return Bound(_END_MULTIPLE, self._start_s, _END_FIXED_S)

    def until_output(self, text: str) -> None:
        """Waits until standard output contains this text."""
        self.until(lambda: text in self.stdout, f"{self} to print {text!r}")

    def wait(self, timeout_s: float | None = None) -> int:
        """Waits for the command's end; returns its exit code."""

        def ended() -> bool:
            return self.process.poll() is not None

        try:
            wait_for(ended, f"the end of {self}", timeout_s, poll_s=0.01, longest_s=start_patience_now_s)
        except AssertionError as error:
            raise AssertionError(f"{error}:\n{self.stdout}\n{self.stderr}") from None
        return self.process.wait()

    def interrupt(self) -> None:
        """Presses Ctrl-C in the command's terminal, or sends the signal that a terminal would send."""
        if self._master is not None:
            os.write(self._master, b"\x03")
        else:
            os.killpg(self.pid, signal.SIGINT)

    def terminate(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        self.process.kill()

    def family(self) -> list[psutil.Process]:
        """Returns the command's process and its descendants that are alive; orphans are not found."""
        try:
            parent = psutil.Process(self.pid)
            return [process for process in [parent, *parent.children(recursive=True)] if _is_alive(process)]
        except psutil.NoSuchProcess:
            return []

    def marked(self) -> list[psutil.Process]:
        """Returns the command's process and all it started that are alive, including orphans."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if process.environ().get(_MARK) == self.mark and _is_alive(process):
                    found.append(process)
        return found

    def children(self) -> dict[str, psutil.Process]:
        """Returns the started services by the name of their command: replay, learner, evaluator, actor."""
        found = {}
        for process in self.family():
            with suppress(psutil.NoSuchProcess):
                # The launcher may have forked it; the environment variables that /proc shows are then the launcher's.
                words = process.cmdline()
                if words[1:3] == ["-Pm", "penstock"]:
                    found[words[3]] = process
        return found

    def ports(self) -> set[int]:
        """Returns the ports on which the command and its children listen now."""
        found = set()
        for process in self.family():
            with suppress(psutil.NoSuchProcess):
                found |= {at.laddr.port for at in process.net_connections("tcp") if at.status == psutil.CONN_LISTEN}
        return found

    def has_loaded(self, library: str) -> bool:
        """Returns whether the command's process has loaded a shared library with this in its name."""
        try:
            return any(library in mapped.path for mapped in psutil.Process(self.pid).memory_maps())
        except psutil.NoSuchProcess:
            return False

    def left_behind(self) -> list[str]:
        """Returns the command lines of started processes that are still alive."""
        left = []
        for process in self.marked():
            with suppress(psutil.NoSuchProcess):
                left.append(" ".join(filter(None, process.cmdline())))
        return left

    def _read_terminal(self, master: int) -> None:
        with self._stdout.open("ab", buffering=0) as file, suppress(OSError):
            while data := os.read(master, 65_536):
                file.write(data)
        os.close(master)

    def __str__(self) -> str:
        return f"penstock {' '.join(self.arguments)}"


def is_alive(pid: int) -> bool:
    """Returns whether a process runs; one that has ended and was not reaped does not."""
    try:
        return _is_alive(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@dataclass(frozen=True, slots=True)
class Ended:
    """The result of a command: its exit code, its output, and processes left behind."""

    code: int
    stdout: str
    stderr: str
    left_behind: list[str]


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A run that has ended: its folder, its result, and the ports on which it listened."""

    folder: Path
    end: Ended
    ports: set[int]


def end_of(command: Command, timeout_s: float | None = None) -> Ended:
    """Waits for a command's end; returns its result."""
    code = command.wait(timeout_s)
    return Ended(code, command.stdout, command.stderr, command.left_behind())


def end_in_time(command: Command) -> Ended:
    """Waits for the end of a stopping command, within its `end_bound`."""
    return end_of(command, command.end_bound.seconds)


def run(*arguments: str, timeout_s: float | None = None, **options: Any) -> Ended:
    """Runs a command to its end."""
    with Command(*arguments, **options) as command:
        return end_of(command, timeout_s)


def listening(ports: set[int]) -> set[int]:
    """Returns those of these ports on which a process listens."""
    connections = [at for at in psutil.net_connections("tcp") if at.status == psutil.CONN_LISTEN]
    return ports & {at.laddr.port for at in connections if at.laddr}


class Watch:
    """Reads the status of a running run from its learner."""

    def __init__(self, command: Command, client: StatusClient) -> None:
        self._command, self._client = command, client

    def status(self) -> RunStatus:
        return self._client.get(PATIENCE_S)

    def until(self, condition: Callable[[RunStatus], bool], what: str, timeout_s: float | None = None) -> RunStatus:
        """Waits for a matching status, also while the learner is temporarily unavailable."""

        def look() -> RunStatus | None:
            with suppress(Unavailable):
                status = self.status()
                return status if condition(status) else None
            return None

        status = self._command.until(look, what, timeout_s)
        assert status is not None
        return status


@contextmanager
def watching(command: Command, folder: Path) -> Iterator[Watch]:
    """Watches the run that a command has started in this folder."""
    services = RunFolder(folder).services
    command.until(services.exists, f"the services of {folder}")
    thread = LoopThread()
    try:
        client = StatusClient(thread, json.loads(services.read_text())["learner"])
        try:
            yield Watch(command, client)
        finally:
            client.close()
    finally:
        thread.close()
