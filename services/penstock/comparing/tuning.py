"""Trains the trials of a study on this machine: several at a time, pruned by their evaluations, continued after a kill.

Runs of the seeds of a trial follow one another, so that a bad trial ends with its first seed.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from penstock.comparing.many_runs import Crew, PlannedRun
from penstock.comparing.study import Study, Trial
from penstock.errors import PenstockError
from penstock.machine.files import mark_of
from penstock.runs.folder import RunFolder
from penstock.runs.store_place import StorePlace, place_elsewhere, remove_store

_POLL_S = 0.5
_IDLE_S = 5.0
"""Seconds between two looks for a trial that another process has left."""

_FAILURES = 3
"""Successive trials that may fail before the machine, and not their settings, counts as at fault."""


@dataclass(eq=False, slots=True)
class _Active:
    """A trial in training, with its present run and the runs that follow.

    Its present run ends soon if it is pruned, or lost to a process that has taken it over.
    """

    trial: Trial
    waiting: deque[PlannedRun]
    run: PlannedRun | None = None
    mark: tuple[int, int] | None = None
    pruned: bool = False
    lost: bool = False


class Tuning:
    """The trials of a study that this process trains. Used once, by one thread."""

    def __init__(self, study: Study, *, most: int, parallel: int) -> None:
        """Names the study, the number of its trials, and how many of them this process trains at the same time."""
        self._study, self._most, self._parallel = study, most, parallel
        self._active: list[_Active] = []
        self._failures, self._idle_until = 0, 0.0

    def train(self, observer: Callable[[], None]) -> None:
        """Trains until all trials of the study have ended, whichever processes train them.

        An interrupt and an error end the active runs, which save checkpoints and continue with the next command.
        `observer` is called twice a second.

        Raises:
            ConfigurationError: The study can't be kept or its first trial, with the settings of the base, was refused.
            PenstockError: The first trial failed, or several in a row did.
        """
        for trial in self._study.trials():
            if trial.state in ("pruned", "failed"):
                self._remove_stores(trial)
        try:
            with Crew() as crew:
                while self._step(crew):
                    observer()
                    time.sleep(_POLL_S)
        finally:
            # After the runs have ended, so that no other process resumes one that is still active.
            for each in self._active:
                self._study.leave(each.trial)

    def _step(self, crew: Crew) -> bool:
        """Does all that can be done now; returns whether trials are left."""
        lost = self._study.lost()
        for each in self._active:
            if each.trial.folder in lost and each.run is not None:
                each.lost = True
                crew.stop(each.run)
        for run, error in crew.ended():
            self._run_ended(crew, next(each for each in self._active if each.run is run), error)
        for each in [*self._active]:
            if each.run is not None and not (each.pruned or each.lost) and self._is_pruned(each):
                each.pruned = True
                crew.stop(each.run)
        while len(self._active) < self._parallel and time.monotonic() >= self._idle_until:
            if (trial := self._study.next_trial(self._most)) is None:
                self._idle_until = time.monotonic() + _IDLE_S
                return bool(self._active) or any(each.state == "active" for each in self._study.trials())
            self._active.append(_Active(trial, deque(self._study.runs_of(trial))))
            self._advance(crew, self._active[-1])
        return True

    def _is_pruned(self, active: _Active) -> bool:
        assert active.run is not None
        mark = mark_of(RunFolder(active.run.folder).metrics)
        if mark == active.mark:
            return False
        active.mark = mark
        return self._study.report(active.trial, active.run)

    def _advance(self, crew: Crew, active: _Active) -> None:
        """Starts or resumes the next run of a trial that has not ended, or completes the trial."""
        while active.waiting:
            run = active.waiting.popleft()
            # The command that trained it may have been killed before it reported all evaluations.
            if self._study.report(active.trial, run):
                self._end(active)
                return
            if run.summary() is None:
                active.run, active.mark = run, None
                crew.start(run)
                return
        self._study.complete(active.trial)
        self._failures = 0
        self._active.remove(active)

    def _run_ended(self, crew: Crew, active: _Active, error: PenstockError | None) -> None:
        run, active.run = active.run, None
        assert run is not None
        if active.lost:
            self._active.remove(active)
        elif active.pruned or self._study.report(active.trial, run):
            self._end(active)
        elif error is None:
            self._advance(crew, active)
        elif active.trial.number == 0:
            raise type(error)(f"the first trial, which has the settings to start from, must succeed: {error}") from None
        else:
            self._study.fail(active.trial, str(error))
            failures = self._failures + 1
            self._end(active)
            self._failures = failures
            if failures >= _FAILURES:
                raise PenstockError(
                    f"{failures} trials in a row failed, the last one: {error}; remove the cause, or narrow the search"
                    " space under another --name"
                )

    def _end(self, active: _Active) -> None:
        """Forgets a trial that was pruned or failed, and frees the space of its stores."""
        self._active.remove(active)
        self._failures = 0
        self._remove_stores(active.trial)

    def _remove_stores(self, trial: Trial) -> None:
        for run in trial.folder.glob("seed-*"):
            folder = RunFolder(run)
            remove_store(folder, StorePlace(place_elsewhere(folder) or folder.replay))
