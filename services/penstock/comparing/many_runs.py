"""Many runs on this machine: several at a time, each a child process with `penstock train`, resumed if it was stopped.

A run is its folder. One that has ended is not repeated, so that the same call continues after a kill.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from penstock.config import Config
from penstock.errors import USAGE_ERROR, ConfigurationError, PenstockError
from penstock.local.child_log import ChildLog
from penstock.local.first_checks import is_active
from penstock.local.process_group import (
    CommandProcess,
    Guard,
    ProcessGroup,
    describe_exit,
    signals_handled,
    signals_held_back,
)
from penstock.local.stopping import LONGEST_S, REPEAT_S
from penstock.local.template import PENSTOCK
from penstock.machine.cores import usable_cores
from penstock.runs.folder import RunFolder
from penstock.runs.summary import Summary, ended_summary

_POLL_S = 0.1
_GRACE_S = 30.0
"""Seconds beyond the end of a learner that a run takes to end its services and to draw its curve."""

_ORPHANS_S = 60.0
"""Most seconds to wait for the services of a run whose command was killed. They end within 15 s."""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run to train.

    Attributes:
        name: Name for display.
        folder: Folder of the run.
        log: File for the output of its command.
        settings: File with all settings, without a preset.
        seed: Seed of the run.
        trusted: Whether the code that the file names may be imported, also when the run is resumed.
    """

    name: str
    folder: Path
    log: Path
    settings: Path
    seed: int
    trusted: bool

    def summary(self) -> Summary | None:
        """Returns the results of the run; None if it has not ended."""
        return ended_summary(RunFolder(self.folder).summary)

    def command(self) -> list[str]:
        """Returns the command that starts or resumes the run."""
        folder = str(self.folder)
        if RunFolder(self.folder).config.exists():
            return [*PENSTOCK, "train", "--resume", folder, *(["--trust-code"] if self.trusted else [])]
        own = ("--run-dir", folder, "--seed", str(self.seed))
        return [*PENSTOCK, "train", "--preset", "none", "--config", str(self.settings), *own]


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of many runs: those that have ended, those that are active, and all.

    `left_s` are the seconds until all have ended, if they take as long as those before; None before the first end.
    """

    done: int
    active: int
    total: int
    left_s: float | None


def parallel_runs(config: Config) -> int:
    """Returns the number of runs with these settings for which this machine has enough cores, at least one."""
    actors = config.train.actors
    return 1 if actors == "auto" else max(1, usable_cores() // actors)


def train_all(runs: Sequence[PlannedRun], processes: int, observer: Callable[[Progress], bool]) -> None:
    """Trains the runs that have not ended, in their order, at most `processes` at the same time.

    An interrupt, an error and the observer end the active runs, which save checkpoints and can be resumed.

    Args:
        runs: The runs.
        processes: Most active runs.
        observer: Receives the progress several times a second; returns whether to go on.

    Raises:
        ConfigurationError: A run refused its settings, or is active under another command.
        PenstockError: A run failed.
    """
    seconds = [found.total_wall_s for run in runs if (found := run.summary())]
    waiting = deque(run for run in runs if run.summary() is None)
    with Crew() as crew:
        while True:
            for run, error in crew.ended():
                if error is not None:
                    raise error
                seconds += [found.total_wall_s for found in [run.summary()] if found]
            if not observer(_progress(len(runs), seconds, crew.active_s(), processes)):
                return
            while waiting and len(crew.members) < processes:
                crew.start(waiting.popleft())
            if not crew.members:
                return
            time.sleep(_POLL_S)


def _progress(total: int, seconds: Sequence[float], active_s: Sequence[float], processes: int) -> Progress:
    left_s = None
    if seconds:
        mean_s = sum(seconds) / len(seconds)
        waiting = total - len(seconds) - len(active_s)
        left_s = (waiting * mean_s + sum(max(0.0, mean_s - each) for each in active_s)) / processes
    return Progress(len(seconds), len(active_s), total, left_s)


@dataclass(slots=True)
class _Member:
    run: PlannedRun
    log: ChildLog
    group: ProcessGroup
    began: float


class Crew(AbstractContextManager["Crew"]):
    """The active runs, which all end with this context."""

    def __init__(self) -> None:
        self.members: list[_Member] = []
        # After this process has died, the services of a run end by themselves as soon as its command has ended.
        self._guard = Guard(0.0)

    def __exit__(self, *exception: object) -> None:
        pressed: list[float] = []
        began = time.monotonic()
        with signals_handled(lambda number, frame: pressed.append(time.monotonic())):
            self._terminate()
            again = False
            while any(each.group.exit_code is None for each in self.members):
                if not again and any(at - began > REPEAT_S for at in pressed):
                    # Each command kills its learner then.
                    self._terminate()
                    again = True
                if time.monotonic() - began > LONGEST_S + _GRACE_S:
                    break
                time.sleep(_POLL_S)
            for each in self.members:
                each.group.end(0.0)
                each.log.close()
            self._guard.close()

    def _terminate(self) -> None:
        for each in self.members:
            each.group.terminate()

    def active_s(self) -> list[float]:
        """Returns the seconds that each active run has taken so far."""
        return [time.monotonic() - each.began for each in self.members]

    def start(self, run: PlannedRun) -> None:
        """Starts or resumes a run. Waits for the services of an earlier command of it, which was killed."""
        deadline = time.monotonic() + _ORPHANS_S
        while is_active(RunFolder(run.folder)):
            if time.monotonic() > deadline:
                raise ConfigurationError(f"the run in {run.folder} is active under another command; stop it first")
            time.sleep(_POLL_S)
        log = ChildLog(run.log)
        with log.opened() as file, signals_held_back():
            process = CommandProcess(run.command(), stdout=file, environment=dict(os.environ))
            self.members.append(_Member(run, log, ProcessGroup(process, self._guard), time.monotonic()))

    def stop(self, run: PlannedRun) -> None:
        """Asks an active run to save a checkpoint and end."""
        for each in self.members:
            if each.run is run:
                each.group.terminate()

    def ended(self) -> list[tuple[PlannedRun, PenstockError | None]]:
        """Returns the runs that have ended since the last call, with the error of each that failed or was stopped."""
        found = list[tuple[PlannedRun, PenstockError | None]]()
        for each in [*self.members]:
            code = each.group.exit_code
            if code is None:
                continue
            self.members.remove(each)
            each.group.end(0.0)
            each.log.close()
            error = None
            if code or each.run.summary() is None:
                how = each.log.cause() if code else "it was stopped"
                kind = ConfigurationError if code == USAGE_ERROR else PenstockError
                error = kind(f"{each.run.name} ended with {describe_exit(code)}: {how} (see {each.log.path})")
            found.append((each.run, error))
        return found
