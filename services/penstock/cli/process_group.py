"""Child processes that lead process groups of their own, and how the signals of this process are handled meanwhile.

A group ends with its leader, however the leader ended: what an environment forked must not outlive its actor.
Also when this process is killed: then `cli.run_guard` ends the groups.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO

from penstock.cli import run_guard
from penstock.cli.template import ForkedProcess

_POLL_S = 0.02
_GUARD_END_S = 2.0
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Guard:
    """A process beside this one that kills the groups which this one leaves. Use it as a context."""

    def __init__(self, grace_s: float) -> None:
        """Starts it.

        Args:
            grace_s: How long the groups may go on after this process has died, to end by themselves.
        """
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(run_guard.__file__)), str(grace_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def __enter__(self) -> "Guard":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends it. Groups that are still noted are killed after the grace period all the same."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GUARD_END_S)

    def note(self, sign: str, group: int) -> None:
        """Notes that a group was started (`+`) or has ended (`-`)."""
        # A guard that was killed guards no more, which is no reason to end a run.
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.write(f"{sign} {group}\n".encode())
                self._process.stdin.flush()


class CommandProcess(subprocess.Popen[bytes]):
    """A command in a session and a group of its own, with a pipe for its standard input."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdout: int | IO[bytes],
        environment: Mapping[str, str],
        pass_fds: Sequence[int] = (),
    ) -> None:
        """Starts the command.

        Args:
            command: Program and arguments.
            stdout: File, descriptor or `subprocess.PIPE` for its output and its errors.
            environment: All of its variables.
            pass_fds: Descriptors that it inherits.
        """
        super().__init__(
            command,
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            env=environment,
            pass_fds=pass_fds,
            start_new_session=True,
        )

    def has_ended(self) -> bool:
        """Whether it has ended; it is not reaped before `wait`, where the system allows that."""
        if self.returncode is not None or not hasattr(os, "waitid"):  # macOS before Python 3.13
            return self.poll() is not None
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


class ProcessGroup:
    """A process with the group that it leads, so that a Ctrl-C in the terminal does not reach it."""

    def __init__(self, process: CommandProcess | ForkedProcess, guard: Guard) -> None:
        """Takes charge of a process that was just started.

        Start the process and make the group inside `signals_held_back`: an interrupt in between would leave a process
        that nothing ends.

        Args:
            process: The leader of a session and a group.
            guard: Who ends the group when this process can't.
        """
        self._guard, self._process = guard, process
        guard.note("+", process.pid)

    @property
    def pid(self) -> int:
        """The leader's, and the group's."""
        return self._process.pid

    @property
    def stdin(self) -> IO[bytes] | None:
        """The leader's standard input, which ends when this process does."""
        return self._process.stdin

    @property
    def stdout(self) -> IO[bytes] | None:
        """The leader's output, if it is a pipe."""
        return self._process.stdout

    @property
    def exit_code(self) -> int | None:
        """How the leader ended, as `subprocess` has it; None while it runs. Its group ends with it."""
        if self._process.returncode is None and self._process.has_ended():
            # Before the leader is reaped, so that its number is still the group's.
            self._kill_group()
            self._process.wait()
            self._guard.note("-", self.pid)
            if self._process.stdin is not None:
                with contextlib.suppress(OSError):
                    self._process.stdin.close()
        return self._process.returncode

    def terminate(self) -> None:
        """Sends SIGTERM to the leader, if it runs."""
        if self.exit_code is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kills the group and waits for the leader's end."""
        self._kill_group()
        while self.exit_code is None:
            time.sleep(_POLL_S)

    def end(self, timeout_s: float) -> int:
        """Waits for the leader's end and kills the group if that does not come in time; the exit code."""
        deadline = time.monotonic() + timeout_s
        while self.exit_code is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if self.exit_code is None:
            self.kill()
        assert self.exit_code is not None
        return self.exit_code

    def _kill_group(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)


def describe_exit(code: int) -> str:
    """An exit code of `subprocess` in words: `exit code 1`, or the name of a signal."""
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


@contextlib.contextmanager
def signals_held_back() -> Iterator[None]:
    """Holds Ctrl-C and `kill` back inside, and lets the first of them act afterwards."""
    held: list[int] = []
    with signals_handled(lambda number, frame: held.append(number)):
        yield
    for number in held[:1]:
        signal.raise_signal(number)


@contextlib.contextmanager
def signals_handled(handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> Iterator[None]:
    """Has Ctrl-C, `kill` and the end of the terminal handled so inside; only the main thread gets any."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [(number, signal.getsignal(number)) for number in _ENDING_SIGNALS]
    # What is ignored stays ignored: `nohup` wants the end of its terminal to be.
    taken = [(number, former) for number, former in before if former not in (signal.SIG_IGN, None)]
    for number, _ in taken:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, former in taken:
            signal.signal(number, former)
