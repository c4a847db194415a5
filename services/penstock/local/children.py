"""The services of a local run as child processes: started, watched, restarted, and always ended with the run."""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from penstock.errors import GAVE_UP, USAGE_ERROR, ConfigurationError, PenstockError
from penstock.local.child_log import ChildLog
from penstock.local.process_group import (
    CommandProcess,
    Guard,
    ProcessGroup,
    describe_exit,
    signals_handled,
    signals_held_back,
)
from penstock.local.template import PENSTOCK, Template
from penstock.local.variables import of_services
from penstock.machine.system_errors import disk_fault, in_words
from penstock.process.service import START_VARIABLE, SUPERVISED_VARIABLE

_GRACE_S = 8.0
"""Seconds to end for the replay service, which writes its store to disk, and for a learner with nothing to save."""

_COLLECTING_GRACE_S = 3.0
"""Seconds to end for actors and evaluators. Their work is useless without a learner, and an environment may hang."""

_ORPHANS_GRACE_S = 15.0
"""Seconds to end for all services after the launcher's death. They end themselves within 10 s, saving what they can."""

_DISMISSAL_S = 60.0
"""Seconds to end for a superfluous actor. It may first finish and send its window, and nothing waits for it."""

_END_OF_RUN_S = 5.0
"""Seconds until an exit with code 0 counts as a death. If the run is over, the learner ends within this time."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 5.0
"""Seconds before the second restart without progress, doubled for each further one. The first is immediate."""


def service_command(*arguments: str) -> list[str]:
    """Returns the command line of a service."""
    return [*PENSTOCK, *arguments]


@dataclass(slots=True)
class Child:
    """One service of the run.

    Attributes:
        name: Name of the service and of its log, such as replay, learner, evaluator or actor-0.
        command: Program and arguments.
        log: Log of the output of the service and its environments.
        group: Process group of the service, running or ended; None before the first start.
        deaths: Number of deaths since the service last made progress.
        progress: Largest amount of work reported so far, in any unit that only grows.
        restart_at: Time of the planned restart, by `time.monotonic`; None: no restart is planned.
        error: Last error that the running process had reported when `Children.new_errors` last looked.
        ended_at: Time at which exit code 0 was first seen, by `time.monotonic`; None: it was not seen.
    """

    name: str
    command: Sequence[str]
    log: ChildLog
    group: ProcessGroup | None = None
    deaths: int = 0
    progress: int = 0
    restart_at: float | None = None
    error: str = ""
    ended_at: float | None = None

    @property
    def exit_code(self) -> int | None:
        """Exit code of the service; None while it runs."""
        return self.group.exit_code if self.group else None

    def start(self, guard: Guard, template: Template | None, number: int) -> None:
        """Starts the process, forked from the template where possible. No two starts of a run have this number."""
        self.ended_at = self.restart_at = None
        with self.log.opened() as file, signals_held_back():
            own = {SUPERVISED_VARIABLE: self.name, START_VARIABLE: str(number)}
            memory = () if self.log.memory is None else (self.log.memory,)
            outputs = (file.fileno(), *memory)
            forked = template.fork(self.command, own, outputs, self.log.path) if template else None
            # Settings are in the run's file.
            variables = of_services(os.environ) | own | self.log.named
            process = forked or CommandProcess(self.command, stdout=file, environment=variables, pass_fds=memory)
            self.group = ProcessGroup(process, guard)

    def terminate(self) -> None:
        """Sends SIGTERM if the service runs."""
        if self.group is not None:
            self.group.terminate()

    def end(self, timeout_s: float) -> None:
        """Waits for the service to end; kills its group after `timeout_s` seconds."""
        if self.group is not None:
            self.group.end(timeout_s)

    def ended_just_now(self) -> bool:
        """Returns whether exit code 0 was first seen less than `_END_OF_RUN_S` ago. Call it only after such an exit."""
        self.ended_at = self.ended_at or time.monotonic()
        return time.monotonic() - self.ended_at < _END_OF_RUN_S


@dataclass(slots=True)
class Children(AbstractContextManager["Children"]):
    """All services of a run. Use it as a context manager, which ends all of them on exit.

    `starts` begins above the number of all starts in earlier sessions of the run.
    """

    max_restarts: int
    template: Template | None = None
    starts: int = 0
    members: list[Child] = field(default_factory=list)
    dismissed: list[tuple[Child, float]] = field(default_factory=list)
    """Children that received SIGTERM, each with its deadline by `time.monotonic`."""
    guard: Guard = field(default_factory=lambda: Guard(_ORPHANS_GRACE_S))

    def __exit__(self, *exception: object) -> None:
        # This takes a bounded time, so signals can be ignored.
        with signals_handled(signal.SIG_IGN):
            self._end_all()
            self.guard.close()

    def add(self, name: str, command: Sequence[str], log: Path) -> None:
        """Starts a child and begins to watch it."""
        child = Child(name, command, ChildLog(log))
        self.members.append(child)
        self._start(child)

    def find(self, name: str) -> Child:
        """Returns the child of this name."""
        return next(child for child in self.members if child.name == name)

    def dismiss(self, name: str) -> None:
        """Sends SIGTERM to a child without waiting for its end, and stops watching it."""
        child = self.find(name)
        self.members.remove(child)
        self.dismissed.append((child, time.monotonic() + _DISMISSAL_S))
        child.terminate()

    def progressed(self, amounts: Mapping[str, int]) -> None:
        """Records the work that each child has done so far, by name; growth resets its number of deaths."""
        for child in self.members:
            if amounts.get(child.name, 0) > child.progress:
                child.progress, child.deaths = amounts[child.name], 0

    def revive(self) -> list[str]:
        """Restarts children that died; returns a line for each death. A learner with exit code 0 has finished the run.

        Raises:
            ConfigurationError: A child refused its settings (exit code 2) before any has worked.
            PenstockError: A child gave up for a reason that a restart does not cure (exit code 3), or died too often
                without progress.
        """
        lines = []
        for child, deadline in [*self.dismissed]:
            if child.exit_code is not None or time.monotonic() > deadline:
                self.dismissed.remove((child, deadline))
                child.end(0.0)
                child.log.close()
        for child in self.members:
            child.log.cut()
            if child.restart_at is None and self._has_died(child):
                lines.append(self._plan_restart(child))
            if child.restart_at is not None and time.monotonic() >= child.restart_at:
                lines += self._restart(child)
        return lines

    def new_errors(self) -> list[str]:
        """Returns a line for each error that a running child has reported since the last call. It reads all logs."""
        lines = []
        for child in self.members:
            error = child.log.error() if child.exit_code is None else ""
            if error and error != child.error:
                lines.append(f"{child.name} runs, and has reported: {error} (see {child.log.path})")
            child.error = error
        return lines

    def kill(self, name: str) -> None:
        """Kills an unresponsive child and its group; this counts as a death."""
        self.find(name).end(0.0)

    def _start(self, child: Child) -> None:
        self.starts += 1
        child.start(self.guard, self.template, self.starts)

    def _has_died(self, child: Child) -> bool:
        code = child.exit_code
        return code is not None and not (code == 0 and (child.name == "learner" or child.ended_just_now()))

    def _restart(self, child: Child) -> list[str]:
        try:
            self._start(child)
        except OSError as error:
            # The machine may recover, and the other services continue.
            child.restart_at = time.monotonic() + _LONGEST_PAUSE_S
            return [f"{child.name} can't be started: {in_words(error)}; trying again in {_LONGEST_PAUSE_S:g} s"]
        return []

    def _plan_restart(self, child: Child) -> str:
        code, log = child.exit_code or 0, child.log.path
        # An environment may exit with any code. The code is Penstock's only if Penstock logged a reason.
        reason = child.log.own_reason()
        # A run that has made progress could use its settings and its folder, and can do so again when a disk recovers.
        # A nearly full disk that refused this service may have room at the moment.
        has_worked = any(each.progress for each in self.members)
        waits_for_disk = has_worked and disk_fault(log.parent)
        if code == USAGE_ERROR and reason and not has_worked:
            raise ConfigurationError(reason)
        if code == GAVE_UP and reason:
            raise PenstockError(f"{child.name}: {reason} (see {log})")
        how = f"{describe_exit(code)}: {child.log.cause()}"
        child.deaths = min(child.deaths + 1, self.max_restarts) if waits_for_disk else child.deaths + 1
        if child.deaths > self.max_restarts:
            raise PenstockError(
                f"{child.name} died {child.deaths} times without progress, most recently with {how} (see {log})"
            )
        pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** (child.deaths - 2)) if child.deaths > 1 else 0.0
        child.restart_at = time.monotonic() + pause_s
        again = f"restarting in {pause_s:g} s" if pause_s else "restarting"
        return f"{child.name} ended with {how}; {again} (see {log})"

    def _end_all(self) -> None:
        began, children = time.monotonic(), [*self.members, *(child for child, _ in self.dismissed)]
        for child in children:
            child.terminate()
        # Shortest grace period first, since all periods run at the same time.
        for child in sorted(children, key=_grace_s):
            child.end(max(0.0, began + _grace_s(child) - time.monotonic()))
            child.log.close()


def _grace_s(child: Child) -> float:
    return _COLLECTING_GRACE_S if child.name.startswith(("actor", "evaluator")) else _GRACE_S
