"""The services of a local run as child processes: started, watched, started again, and never left behind."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from penstock.apps.service import SUPERVISED_VARIABLE
from penstock.cli.exit_codes import USAGE_ERROR
from penstock.cli.options import ENVIRONMENT_PREFIX
from penstock.errors import ConfigurationError, PenstockError

_PORTS = range(20_000, 32_768)
"""Below the range from which Linux takes ports for outgoing connections, so that none of those gets in between."""

_GRACE_S = 8.0
_RESTART_PAUSE_S = 0.2
_FAREWELL_S = 5.0
"""A child that ended well was told that the run is over, or was stopped by somebody else; by then the learner has ended
too."""


def free_ports(count: int) -> list[int]:
    """Loopback ports that nobody listens on now."""
    found: list[int] = []
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise ConfigurationError(
        f"{count} free ports are needed between {_PORTS.start} and {_PORTS.stop}; there are {len(found)}"
    )


@dataclass(slots=True)
class Child:
    """One service of the run.

    Attributes:
        name: replay, learner, evaluator or actor-0 and so on; its log is called so too.
        arguments: Of the `penstock` command.
        process: Running or just ended.
        restarts: How often it was started again.
        log_start: Bytes in its log when this process was started.
        ended_well_at: When it was first seen to have ended with exit code 0.
    """

    name: str
    arguments: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    log_start: int = 0
    ended_well_at: float | None = None

    def start(self) -> None:
        """Starts the process, in a session of its own so that a Ctrl-C in the terminal is the launcher's to handle."""
        self.ended_well_at = None
        environment = {key: value for key, value in os.environ.items() if not key.startswith(ENVIRONMENT_PREFIX)}
        environment[SUPERVISED_VARIABLE] = "1"
        # A Ctrl-C inside of Popen would leave a process that nobody knows; it is held back meanwhile.
        held_back: list[int] = []
        with self.log.open("ab") as log, _handling(lambda number, frame: held_back.append(number)):
            self.log_start = log.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock", *self.arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        for number in held_back[:1]:
            signal.raise_signal(number)

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it runs."""
        return self.process.poll() if self.process else None

    def ask_to_end(self) -> None:
        """Sends SIGTERM, if it runs."""
        if self.process is not None and self.exit_code is None:
            self.process.send_signal(signal.SIGTERM)

    def end(self, timeout_s: float) -> None:
        """Waits for its end, and kills it if that does not come in time."""
        if self.process is None:
            return
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()

    def says_farewell(self) -> bool:
        """Whether it ended well only just now."""
        self.ended_well_at = self.ended_well_at or time.monotonic()
        return time.monotonic() - self.ended_well_at < _FAREWELL_S

    def complaint(self) -> str:
        """The last thing it said when it gave up, or the last line of its log."""
        text = self.log.read_bytes()[self.log_start :].decode(errors="replace") if self.log.exists() else ""
        lines = text.splitlines()
        said = [line.removeprefix("penstock: ") for line in lines if line.startswith("penstock: ")]
        return said[-1] if said else (lines[-1] if lines else "it said nothing")


@dataclass(slots=True)
class Children:
    """All services of a run. Use it as a context: whatever happens inside, none is left when it ends."""

    max_restarts: int
    members: list[Child] = field(default_factory=list)
    dismissed: list[tuple[Child, float]] = field(default_factory=list)
    """Those that were asked to end, and by when."""
    restarted: list[str] = field(default_factory=list)

    def __enter__(self) -> "Children":
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def add(self, child: Child) -> None:
        """Starts a child and watches it from now on."""
        self.members.append(child)
        child.start()

    def find(self, name: str) -> Child:
        """The child of this name."""
        return next(child for child in self.members if child.name == name)

    def dismiss(self, name: str) -> None:
        """Asks a child to end and forgets it; does not wait for that."""
        child = self.find(name)
        self.members.remove(child)
        self.dismissed.append((child, time.monotonic() + _GRACE_S))
        child.ask_to_end()

    def revive(self) -> list[str]:
        """Starts again whatever died; returns a line for each. A learner that ended well has finished the run.

        Raises:
            PenstockError: A child gave up for a reason that starting again would not cure, or died too often.
        """
        told = []
        for child, deadline in [*self.dismissed]:
            if child.exit_code is not None or time.monotonic() > deadline:
                self.dismissed.remove((child, deadline))
                child.end(0.0)
        for child in self.members:
            code = child.exit_code
            if code is None or (code == 0 and (child.name == "learner" or child.says_farewell())):
                continue
            if code == USAGE_ERROR:
                raise ConfigurationError(child.complaint())
            if child.restarts >= self.max_restarts:
                raise PenstockError(
                    f"{child.name} died {child.restarts + 1} times, the last time with {_describe(code)}:"
                    f" {child.complaint()}"
                    f" (see {child.log})"
                )
            child.restarts += 1
            time.sleep(_RESTART_PAUSE_S)
            child.start()
            told.append(f"{child.name} ended with {_describe(code)} and was started again (see {child.log})")
        self.restarted += told
        return told

    def stop(self, *names: str) -> None:
        """Asks children (all, or those named) to end, waits for them, and kills what does not."""
        # No further Ctrl-C cuts the clean-up short; it has a deadline of its own.
        with _handling(signal.SIG_IGN):
            self._stop(names)

    def _stop(self, names: tuple[str, ...]) -> None:
        everybody = [*self.members, *(child for child, _ in self.dismissed)]
        chosen = [child for child in everybody if not names or child.name in names]
        for child in chosen:
            child.ask_to_end()
        deadline = time.monotonic() + _GRACE_S
        for child in chosen:
            child.end(max(0.0, deadline - time.monotonic()))


@contextlib.contextmanager
def _handling(handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> Iterator[None]:
    """Has Ctrl-C and `kill` handled so inside; only the main thread gets any."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [(number, signal.signal(number, handler)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield
    finally:
        for number, former in before:
            signal.signal(number, former)


def _describe(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
