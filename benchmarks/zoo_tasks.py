"""`make bench-zoo-tasks`: ten tasks without a preset, compared with PPO and rl-zoo's settings.

Penstock gets the id, the number of steps, the seed, and the threshold and the interval of evaluations. Finished runs
are kept in the result file. A command that was interrupted, or that ended because of --minutes, continues with the
missing ones. Runs whose settings have changed since, such as Penstock's defaults, are measured again.

The exit code is 0 if the criterion of benchmarks/zoo_goals.py is met, 1 if it is missed, and 75 if runs are missing.
"""

import argparse
import functools
import hashlib
import importlib.util
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.peers.zoo_settings import SETTINGS
from benchmarks.side_by_side import ROOT, Course, Run, peer, penstock, prepare
from benchmarks.zoo_goals import GOALS, Actions, Goal
from benchmarks.zoo_report import (
    PENSTOCK,
    SYSTEMS,
    ZOO,
    Measured,
    comparisons,
    meets_criterion,
    read,
    table,
    write,
)
from penstock.presets import NO_PRESET, preset
from tests.support.results import provenance

OUTPUT = ROOT / "build" / "bench" / "zoo_tasks.json"
TRIAL = OUTPUT.with_stem("zoo_tasks_trial")
"""Result file of runs with --steps, whose settings are those of no task."""
LIMIT_S = 6 * 3600.0
"""Most seconds of a run of rl-zoo's PPO. Walker2d takes hours on a busy machine."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A run to measure: a task, a system and a seed. `steps` replaces the task's own steps, for a trial; 0: its own."""

    goal: Goal
    system: str
    seed: int
    steps: int = 0

    @property
    def course(self) -> Course:
        """The task as both systems get it."""
        own = self.goal.penstock_steps if self.system == PENSTOCK else self.goal.zoo_steps
        total = self.steps or own
        return Course(self.goal.env_id, NO_PRESET, self.goal.threshold, min(self.goal.interval_steps, total), total)

    def is_of(self, measured: Measured) -> bool:
        """Returns whether this run has been measured, with these settings."""
        mine = (self.goal.name, self.system, self.seed, configuration(self.system, self.course, self.goal.actions))
        return mine == (measured.env_id, measured.run.system, measured.run.seed, measured.configuration)

    def measure(self) -> Measured:
        """Trains. Raises as `benchmarks.side_by_side.peer` and `benchmarks.penstock_loop.train`."""
        started = time.monotonic()
        run = self._train()
        return Measured(
            self.goal.name,
            configuration(self.system, self.course, self.goal.actions),
            str(provenance.of_this_run()["commit"]),
            self.course.total_steps,
            time.monotonic() - started,
            run,
        )

    def _train(self) -> Run:
        if self.system == PENSTOCK:
            deterministic = str(self.goal.actions == "deterministic").lower()
            changes = {"env-id": self.goal.env_id, "evaluation.deterministic": deterministic}
            return penstock(self.course, self.seed, changes)
        further = [f"--actions={self.goal.actions}"]
        return peer(ZOO, "sb3", "zoo_loop", self.course, self.seed, further, limit_s=LIMIT_S)


@functools.cache
def configuration(system: str, course: Course, actions: Actions = "deterministic") -> str:
    """Returns a digest of all settings of a run. A change of code that changes no setting does not change it."""
    if system == PENSTOCK:
        settings = preset(course.preset, environment={"id": course.env_id}).to_toml()
    else:
        # Without what the file says about them, which is no setting.
        settings = repr(SETTINGS[course.env_id]).replace(f", tuned={SETTINGS[course.env_id].tuned}", "")
    judged = "" if actions == "deterministic" else f" {actions}"
    return hashlib.sha256(f"{course} {settings}{judged}".encode()).hexdigest()[:16]


def wanted_runs(goals: Sequence[Goal], systems: Sequence[str], rounds: int, steps: int = 0) -> list[Wanted]:
    """Returns all runs, in the order of their measurement: both systems in turn, and all tasks before the next seed."""
    return [Wanted(goal, system, seed, steps) for seed in range(rounds) for goal in goals for system in systems]


def up_to_date(stored: Sequence[Measured], steps: int = 0) -> list[Measured]:
    """Returns the stored runs whose settings are still those of their task."""
    goals = {goal.name: goal for goal in GOALS}
    return [
        each
        for each in stored
        if each.env_id in goals and Wanted(goals[each.env_id], each.run.system, each.run.seed, steps).is_of(each)
    ]


def missing_runs(wanted: Sequence[Wanted], measured: Sequence[Measured]) -> list[Wanted]:
    """Returns the wanted runs that have not been measured."""
    return [run for run in wanted if not any(run.is_of(each) for each in measured)]


def measured_until(missing: Sequence[Wanted], end_s: float, console: Console) -> Iterator[Measured]:
    """Measures runs, and begins none after this time of `time.monotonic`."""
    for run in missing:
        if time.monotonic() >= end_s:
            return
        what = f"{run.goal.name}, seed {run.seed}: {run.system}"
        with console.status(what):
            measured = run.measure()
        reached = measured.run.env_steps_to_threshold
        console.print(
            f"{what}: {'threshold not reached' if reached is None else f'threshold after {reached:,} steps'},"
            f" final return {measured.final_return:,.2f}, {measured.command_s:,.0f} s",
            highlight=False,
            soft_wrap=True,
        )
        yield measured


def main() -> int:
    """Measures what is missing, prints and writes everything; returns the exit code."""
    arguments, console = _arguments(), Console()
    output: Path = arguments.output or (TRIAL if arguments.steps else OUTPUT)
    end_s = time.monotonic() + 60.0 * arguments.minutes
    goals = [goal for goal in GOALS if goal.env_id in arguments.tasks]
    _check_modules(goals)
    stored = read(output)
    measured = [
        each
        for each in up_to_date(stored, arguments.steps)
        if not (each.run.system in arguments.discard and each.env_id in {goal.name for goal in goals})
    ]
    if len(measured) < len(stored):
        console.print(f"{len(stored) - len(measured)} stored runs are discarded or have other settings")
    missing = missing_runs(wanted_runs(goals, arguments.systems, arguments.rounds, arguments.steps), measured)
    if missing:
        prepare("sb3")
    for each in measured_until(missing, end_s, console):
        # Written after every run, because a later one may fail.
        measured.append(each)
        write(output, measured)
    compared = comparisons(measured)
    console.print(table(compared), highlight=False, markup=False, soft_wrap=True)
    unmeasured = len(missing_runs(wanted_runs(GOALS, SYSTEMS, arguments.rounds, arguments.steps), measured))
    console.print(f"{len(measured)} runs are in {output}; {unmeasured} are missing", highlight=False, soft_wrap=True)
    if unmeasured:
        return os.EX_TEMPFAIL
    return 0 if meets_criterion(compared) else 1


def _arguments() -> argparse.Namespace:
    ids = list(dict.fromkeys(goal.env_id for goal in GOALS))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", choices=ids, default=ids, metavar="ID")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--rounds", type=int, default=5, help="seeds of each task")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run after this many minutes")
    parser.add_argument("--steps", type=int, default=0, help="environment steps of every run, for a trial")
    parser.add_argument("--discard", nargs="+", choices=SYSTEMS, default=[], help="forget stored runs of --tasks first")
    parser.add_argument("--output", type=Path, help=f"result file; default: {OUTPUT}")
    return parser.parse_args()


def _check_modules(goals: Sequence[Goal]) -> None:
    """Ends the program if environments of these tasks can't be created, because a run would only report its failure."""
    lacking = sorted({goal.module for goal in goals if goal.module and importlib.util.find_spec(goal.module) is None})
    if lacking:
        sys.exit(f"{sys.executable} lacks {', '.join(lacking)}; install them with pip install -e '.[studies]'")


if __name__ == "__main__":
    sys.exit(main())
