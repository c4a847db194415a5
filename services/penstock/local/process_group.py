"""Child processes that lead their own process groups, and the signals of this process while it starts them.

A group is killed when its leader ends for any reason: processes forked by an environment must not outlive their actor.
If this process is killed, `local.run_guard` kills the groups.
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
from types import FrameType
from typing import IO

from penstock.local import run_guard
from penstock.local.template import ForkedProcess

_POLL_S = 0.02
_GUARD_END_S = 2.0
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Guard:
    """A helper process that kills the remaining groups after this process has died."""

    def __init__(self, grace_s: float) -> None:
        """Starts the helper process. After this process has died, groups get `grace_s` seconds to end by themselves."""
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(run_guard.__file__)), str(grace_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ.copy(),
            start_new_session=True,
        )

    def close(self) -> None:
        """Ends the helper process, which kills groups that are still registered after the grace period."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GUARD_END_S)

    def note(self, sign: str, group: int) -> None:
        """Registers a group that was started (`+`), or removes one that has ended (`-`)."""
        # A run continues even if its guard was killed.
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.write(f"{sign} {group}\n".encode())
                self._process.stdin.flush()


class CommandProcess(subprocess.Popen[bytes]):
    """A command in its own session and process group, with a pipe for its standard input."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdout: int | IO[bytes],
        environment: Mapping[str, str],
        pass_fds: Sequence[int] = (),
    ) -> None:
        """Starts the command with these environment variables; `stdout` receives its standard error as well."""
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
        """Returns whether the process has ended, without reaping it where the system supports that."""
        if self.returncode is not None or not hasattr(os, "waitid"):  # macOS before Python 3.13
            return self.poll() is not None
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


class ProcessGroup:
    """A process and the process group that it leads, which a Ctrl-C in the terminal does not reach."""

    def __init__(self, process: CommandProcess | ForkedProcess, guard: Guard) -> None:
        """Takes over a process that was just started as the leader of its own session and group.

        Start the process and create its group inside `signals_held_back`: an interrupt between the two would leave a
        process that nothing ends.
        """
        self._guard, self._process, self.pid = guard, process, process.pid
        guard.note("+", process.pid)

    @property
    def exit_code(self) -> int | None:
        """Exit code of the leader as in `subprocess`; None while it runs. Kills the group once the leader has ended."""
        if self._process.returncode is None and self._process.has_ended():
            # Before the leader is reaped, since another group may have its id afterwards.
            self._kill_group()
            self._process.wait()
            self._guard.note("-", self.pid)
            if self._process.stdin is not None:
                with contextlib.suppress(OSError):
                    self._process.stdin.close()
        return self._process.returncode

    def terminate(self) -> None:
        """Sends SIGTERM to the leader if it runs."""
        if self.exit_code is None:
            self._process.send_signal(signal.SIGTERM)

    def end(self, timeout_s: float) -> None:
        """Waits for the leader to end, kills the group after `timeout_s` seconds, and closes the leader's streams."""
        deadline = time.monotonic() + timeout_s
        while self.exit_code is None:
            if time.monotonic() >= deadline:
                self._kill_group()
            time.sleep(_POLL_S)
        output = self._process.stdout
        if output is not None:
            output.close()

    def _kill_group(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)


def describe_exit(code: int) -> str:
    """Describes an exit code of `subprocess`: `exit code 1`, or the name of a signal."""
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


@contextlib.contextmanager
def signals_held_back() -> Iterator[None]:
    """Defers SIGINT, SIGTERM and SIGHUP inside the context, and raises the first of them afterwards."""
    held: list[int] = []
    with signals_handled(lambda number, frame: held.append(number)):
        yield
    for number in held[:1]:
        signal.raise_signal(number)


@contextlib.contextmanager
def signals_handled(handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> Iterator[None]:
    """Installs a handler for SIGINT, SIGTERM and SIGHUP inside the context; has no effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [(number, signal.getsignal(number)) for number in _ENDING_SIGNALS]
    # Ignored signals stay ignored, as `nohup` requires for SIGHUP.
    taken = [(number, former) for number, former in before if former not in (signal.SIG_IGN, None)]
    for number, _ in taken:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, former in taken:
            signal.signal(number, former)
