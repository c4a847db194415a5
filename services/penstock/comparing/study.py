"""A study in its folder: the trials in a journal, their settings and runs, and the rule by which trials are pruned.

tune.json              the design: search space, steps, seeds; base.toml: the settings that trials change
study.journal          the trials, by Optuna
trials/N/              settings.toml; seed-S/: a run for each seed; claim.json: the process that trains it
logs/                  output of the commands of the runs
best.toml              settings of the best trial
study.html             one page about the study

Several processes on any hosts that share the folder may use it. What they decide together, such as the next trial, they
decide under one lock. Everything that a decision depends on is in the journal, so that a process that was killed, or
its successor, makes the same ones.
"""

import contextlib
import copy
import json
import os
import statistics
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from penstock.comparing.claims import Claims
from penstock.comparing.folders import begin
from penstock.comparing.grid import Cell, with_cell
from penstock.comparing.many_runs import PlannedRun
from penstock.comparing.outcomes import read_outcome
from penstock.comparing.search_space import Choice, Range, Space, values_in
from penstock.comparing.statistics import mean_return
from penstock.config import Config
from penstock.errors import ConfigurationError, PenstockError
from penstock.machine import extras
from penstock.machine.files import open_own, write_atomically
from penstock.machine.system_errors import in_words
from penstock.runs.folder import RunFolder
from penstock.runs.metrics import load_metrics, return_text

if TYPE_CHECKING:
    import optuna

_FIRST_UNPRUNED = 5
"""Trials that must be complete before any is pruned."""

_WARM_UP = 0.2
"""Share of a run's steps in which it is not pruned, because the returns of all trials are near those of chance."""

_DRAWS = 100
"""Successive draws that the settings may refuse before the search space counts as wrong."""

_FEW_RECORDS = 2

State = Literal["active", "complete", "pruned", "failed", "refused"]


@dataclass(frozen=True, slots=True)
class Trial:
    """A trial of a study.

    Attributes:
        number: Its number, from 0. Trial 0 has the settings of the base.
        folder: Its folder.
        state: Its state. A refused one was never trained, because its settings exclude one another.
        cell: The settings that it changes.
        value: Median of the final returns over its seeds; None if it is not complete.
        mean_return: Mean of its evaluations over all steps, which tells equal values apart; None as `value`.
        reports: Returns of its evaluations by step. The steps of a further seed follow the steps of the one before.
        reason: Why it was pruned, failed or was refused; else empty.
    """

    number: int
    folder: Path
    state: State
    cell: Cell
    value: float | None
    mean_return: float | None
    reports: dict[int, float]
    reason: str

    @property
    def ended(self) -> bool:
        """Whether it was trained, and will not be trained any further."""
        return self.state in ("complete", "pruned", "failed")

    @property
    def rank(self) -> tuple[float, float]:
        """A number that is larger for a better trial, which must be complete."""
        assert self.value is not None and self.mean_return is not None
        return self.value, self.mean_return


class Study:
    """A study, as one process uses it. Used by one thread.

    All methods raise `ConfigurationError` if the folder can't be used any more.
    """

    def __init__(
        self, folder: Path, base: Config, space: Space, *, seeds: Sequence[int], seed: int, prunes: bool
    ) -> None:
        """Begins or continues a study.

        Args:
            folder: Its folder.
            base: Settings that the trials change, with run.total_steps.
            space: The settings to search.
            seeds: Seeds of the runs of each trial, at least one.
            seed: Seed of the search, not negative.
            prunes: Whether trials are pruned.

        Raises:
            ConfigurationError: Optuna is missing, or the folder has another study or can't be used.
        """
        extras.require("optuna", "penstock tune")
        steps = base.run.total_steps
        assert steps is not None
        self.folder, self.base, self.space, self.seeds = folder, base, space, seeds
        self._steps, self._seed, self._prunes = steps, seed, prunes
        self._interval = base.evaluation.interval_steps or max(1, steps // 20)
        self._claims = Claims()
        described = {f"space {name}": str(each) for name, each in space.items()}
        begin(folder, "tune", {"seeds": list(seeds), "seed": seed, "pruning": prunes, **described}, {"base": base})
        with self._in_words():
            self._study = self._opened()

    @property
    def best_settings(self) -> Path:
        """File with the settings of the best trial."""
        return self.folder / "best.toml"

    @property
    def page(self) -> Path:
        """File of the page about the study."""
        return self.folder / "study.html"

    def trials(self) -> list[Trial]:
        """Returns all trials so far, by number."""
        with self._in_words():
            return [self._trial(each) for each in self._study.get_trials(deepcopy=False)]

    def next_trial(self, most: int) -> Trial | None:
        """Claims an active trial that no process trains, or a new one; None if there are `most` already.

        Raises `ConfigurationError` if the settings refuse one draw after another.
        """
        with self._in_words(), self._lock():
            trials = self._study.get_trials(deepcopy=False)
            for each in map(self._trial, trials):
                # A process that was killed may have drawn only a part of its settings.
                if each.state == "active" and self._claims.take(each.folder) and (drawn := self._drawn(each.number)):
                    return drawn
            if sum(self._trial(each).state != "refused" for each in trials) >= most:
                return None
            for number in range(len(trials), len(trials) + _DRAWS):
                if (drawn := self._drawn(number)) is not None:
                    self._claims.take(drawn.folder)
                    return drawn
        refused = self.trials()[-1]
        raise ConfigurationError(
            f"the settings have refused {_DRAWS} draws in a row, the last one because {refused.reason}; narrow the"
            " search space"
        )

    def settings_of(self, trial: Trial) -> Config:
        """Returns the settings of a trial."""
        return with_cell(self.base, trial.cell)

    def runs_of(self, trial: Trial) -> list[PlannedRun]:
        """Writes the settings of a trial, and returns its runs, one for each seed."""
        config = self.settings_of(trial)
        with self._in_words():
            write_atomically(trial.folder / "settings.toml", config.to_toml().encode())
        return [
            PlannedRun(
                name=f"trial {trial.number}, seed {seed}",
                folder=trial.folder / f"seed-{seed}",
                log=self.folder / "logs" / f"trial-{trial.number}-seed-{seed}.log",
                settings=trial.folder / "settings.toml",
                seed=seed,
                trusted=config.names_code,
            )
            for seed in self.seeds
        ]

    def report(self, trial: Trial, run: PlannedRun) -> bool:
        """Reports the evaluations of a run that are new, each once; returns whether the trial is pruned.

        That it is pruned is recorded before the evaluation. If the process is killed in between, its successor prunes
        the trial at the same evaluation.
        """
        with self._in_words():
            own, frozen = self._optuna_trial(trial.number), self._frozen(trial.number)
            if "pruned" not in frozen.user_attrs:
                for step, value in self._evaluations(run):
                    if step in frozen.intermediate_values:
                        continue
                    if reason := self._reason_to_prune(frozen, step, value):
                        own.set_user_attr("pruned", [step, value, reason])
                        break
                    own.report(value, step)
            if "pruned" in own.user_attrs:
                step, value, _ = own.user_attrs["pruned"]
                if step not in frozen.intermediate_values:
                    own.report(value, step)
                self._ended(trial, "PRUNED")
                return True
        return False

    def complete(self, trial: Trial) -> None:
        """Records the value of a trial whose runs have all ended, and keeps its settings if they are the best."""
        outcomes = [read_outcome(trial.folder / f"seed-{seed}") for seed in self.seeds]
        ended = [each for each in outcomes if each is not None]
        assert len(ended) == len(outcomes)
        curves = [mean_return(each.steps, each.returns, 0.0, float(self._steps)) for each in ended]
        with self._in_words(), self._lock():
            own = self._optuna_trial(trial.number)
            own.set_user_attr("mean_return", statistics.fmean(curves))
            self._study.tell(own, statistics.median(each.final_return for each in ended), skip_if_finished=True)
            self._claims.release(trial.folder)
        self.keep_best()

    def fail(self, trial: Trial, reason: str) -> None:
        """Records that a trial has failed."""
        with self._in_words():
            self._ended(trial, "FAIL", failed=reason)

    def leave(self, trial: Trial) -> None:
        """Gives up an active trial, which any process may continue at once."""
        with self._in_words():
            self._claims.release(trial.folder)

    def lost(self) -> list[Path]:
        """Renews the claims of this process, and returns the folders of trials that another one has taken over."""
        with self._in_words():
            return self._claims.renew()

    def best(self) -> Trial | None:
        """Returns the best trial; None if none is complete."""
        return max((each for each in self.trials() if each.state == "complete"), key=lambda one: one.rank, default=None)

    def keep_best(self) -> Trial | None:
        """Writes the settings of the best trial, with its first seed, and returns it; None if none is complete."""
        with self._in_words(), self._lock():
            if (best := self.best()) is not None:
                config = self.settings_of(best).changed({"run": {"seed": self.seeds[0]}})
                write_atomically(self.best_settings, config.to_toml().encode())
        return best

    def _opened(self) -> "optuna.Study":
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        journal = self.folder / "study.journal"
        os.close(open_own(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT))
        # The lock by a symbolic link spins for ever if another host mounts the folder elsewhere.
        lock = JournalFileOpenLock(str(journal))
        with _held(lock):
            _repair(journal)
        pruner = optuna.pruners.MedianPruner(
            n_startup_trials=_FIRST_UNPRUNED, n_warmup_steps=round(_WARM_UP * self._steps)
        )
        # Other samplers write to the journal as soon as a trial is read.
        sampler = optuna.samplers.TPESampler(multivariate=False)
        try:
            return optuna.create_study(
                storage=JournalStorage(JournalFileBackend(str(journal), lock_obj=lock)),
                study_name="study",
                direction="maximize",
                sampler=sampler,
                pruner=pruner,
                load_if_exists=True,
            )
        except (ValueError, KeyError) as error:
            raise ConfigurationError(
                f"{journal} is damaged ({error}); restore a copy, or choose another --name"
            ) from None

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        from optuna.storages.journal import JournalFileOpenLock

        with _held(JournalFileOpenLock(str(self.folder / "study"))):
            yield

    @contextlib.contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = in_words(error, self.folder, "choose another --name")
            raise ConfigurationError(f"can't keep the study in {self.folder}: {reason}") from None

    def _drawn(self, number: int) -> Trial | None:
        """Draws the settings of a trial, as far as they are missing; None if they exclude one another.

        The draw depends on the number and on the trials before alone, so that a study that was killed repeats it.
        """
        import optuna

        seed = int(np.random.SeedSequence([self._seed, number]).generate_state(1)[0])
        with warnings.catch_warnings():
            # Before Optuna 5, a line about `constant_liar` for the user, who did not choose it.
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler: optuna.samplers.BaseSampler = optuna.samplers.TPESampler(
                seed=seed, multivariate=False, constant_liar=True
            )
        own = values_in(self.base, self.space) if number == 0 else self.space
        if number == 0:
            fixed = {name: _encoded(self.space[name], value) for name, value in own.items()}
            with warnings.catch_warnings(action="ignore"):
                # It has been experimental since 2021.
                sampler = optuna.samplers.PartialFixedSampler(fixed, sampler)
        self._study.sampler = sampler
        drawn_before = number < len(self._study.get_trials(deepcopy=False))
        trial = self._optuna_trial(number) if drawn_before else self._study.ask()
        for name in own:
            # A value that was drawn before is kept.
            _suggest(trial, name, self.space[name])
        drawn = self._trial(self._frozen(number))
        try:
            self.settings_of(drawn)
        except ConfigurationError as error:
            self._ended(drawn, "FAIL", refused=str(error))
            return None
        return drawn

    def _frozen(self, number: int) -> "optuna.trial.FrozenTrial":
        return self._study.get_trials(deepcopy=False)[number]

    def _optuna_trial(self, number: int) -> "optuna.Trial":
        import optuna

        return optuna.Trial(self._study, self._frozen(number)._trial_id)

    def _trial(self, frozen: "optuna.trial.FrozenTrial") -> Trial:
        attributes: dict[str, Any] = frozen.user_attrs
        states: dict[str, State] = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}
        state = "refused" if "refused" in attributes else states.get(frozen.state.name, "active")
        reasons = (attributes.get("pruned", [""])[-1], attributes.get("failed", ""), attributes.get("refused", ""))
        # The base may have values that its space lacks.
        cell = {name: _decoded(self.space[name], value) for name, value in frozen.params.items() if frozen.number}
        return Trial(
            number=frozen.number,
            folder=self.folder / "trials" / str(frozen.number),
            state=state,
            cell=cell,
            value=frozen.value if state == "complete" else None,
            mean_return=attributes.get("mean_return"),
            reports=dict(frozen.intermediate_values),
            reason="".join(reasons),
        )

    def _evaluations(self, run: PlannedRun) -> Iterator[tuple[int, float]]:
        """Yields the evaluations of a run: the multiple of the interval at which each was due, and its return."""
        begin = self.seeds.index(run.seed) * self._steps
        if not RunFolder(run.folder).metrics.exists():
            return
        found, last = load_metrics(run.folder, _FEW_RECORDS).evaluation, 0
        if not found:
            return
        for env_steps, value in zip(found["env_steps"], found["return_mean"], strict=True):
            step = min(int(env_steps) // self._interval * self._interval, self._steps)
            # A session that was killed and resumed evaluates again.
            if step > last:
                last = step
                yield begin + step, float(value)

    def _reason_to_prune(self, trial: "optuna.trial.FrozenTrial", step: int, value: float) -> str:
        """Returns why a trial with this further evaluation is pruned; empty if it is not."""
        if not self._prunes:
            return ""
        reported = copy.deepcopy(trial)
        reported.intermediate_values[step] = value
        if not self._study.pruner.prune(self._study, reported):
            return ""
        others = [each for each in self.trials() if each.state == "complete" and step in each.reports]
        median = return_text(statistics.median(each.reports[step] for each in others))
        best = return_text(max(reported.intermediate_values.values()))
        return f"best return {best} by {step:,} steps, below the median {median}"

    def _ended(self, trial: Trial, state: Literal["PRUNED", "FAIL"], **attributes: str) -> None:
        import optuna

        own = self._optuna_trial(trial.number)
        for name, text in attributes.items():
            own.set_user_attr(name, text)
        self._study.tell(own, state=optuna.trial.TrialState[state], skip_if_finished=True)
        self._claims.release(trial.folder)


def _suggest(trial: "optuna.Trial", name: str, dimension: Range | Choice) -> None:
    if not isinstance(dimension, Range):
        trial.suggest_categorical(name, dimension.texts)
    elif dimension.whole:
        trial.suggest_int(name, int(dimension.low), int(dimension.high), step=dimension.step or 1, log=dimension.log)
    else:
        trial.suggest_float(name, dimension.low, dimension.high, log=dimension.log)


def _encoded(dimension: object, value: object) -> object:
    return value if isinstance(dimension, Range) else json.dumps(value)


def _decoded(dimension: object, value: object) -> object:
    return value if isinstance(dimension, Range) else json.loads(str(value))


@contextlib.contextmanager
def _held(lock: Any) -> Iterator[None]:
    """Holds a lock of Optuna, which takes it from a process that has held it for 30 seconds."""
    lock.acquire()
    try:
        yield
    finally:
        try:
            lock.release()
        except RuntimeError:
            raise PenstockError(
                "another process has taken over the lock of the study, because the file system stalled for 30 s; repeat"
                " the command to continue the study"
            ) from None


def _repair(journal: Path) -> None:
    """Removes an incomplete last line, which a host that lost power leaves. Optuna would append to it."""
    data = journal.read_bytes()
    end = data.rfind(b"\n") + 1
    if end < len(data):
        os.truncate(journal, end)
