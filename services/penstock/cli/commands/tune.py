"""`penstock tune`: searches for settings by trials, prunes bad ones, and keeps the best settings as a file."""

import argparse
import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from penstock.cli.commands.train import raise_interrupts
from penstock.cli.named import add_node_options, add_sbatch_option, settings_named
from penstock.cli.one_line_parser import OneLineParser
from penstock.cli.report.study_page import value_text, write_study
from penstock.cli.screen.lines import show, show_command
from penstock.cli.shown_runs import chosen_folder, chosen_processes, chosen_seeds
from penstock.comparing.search_space import DEFAULT_SPACE, Space, default_space, read_space
from penstock.comparing.study import Study, Trial
from penstock.comparing.tuning import Tuning
from penstock.config import Config, load_toml
from penstock.errors import ConfigurationError, PenstockError
from penstock.launch import slurm
from penstock.launch.slurm_scripts import JobOptions, tuning_script
from penstock.local.template import PENSTOCK
from penstock.local.variables import without_settings
from penstock.machine.files import write_atomically
from penstock.machine.installation import command_of, program
from penstock.machine.system_errors import in_words
from penstock.runs.metrics import return_text

_ROOT = "tune"
_LOOK_S = 2.0


def command(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    named = parser().parse_args(list(arguments))
    if named.print_space:
        print(DEFAULT_SPACE, end="")
        return 0
    if named.base is None:
        raise ConfigurationError(
            "BASE is missing; name a preset or a TOML file with the settings to start from, as in"
            f" `{program()} tune cartpole`"
        )
    if named.trials < 1:
        raise ConfigurationError(f"--trials must be a number from 1; got {named.trials}")
    if named.seed < 0:
        raise ConfigurationError(f"--seed must be a number from 0; got {named.seed}")
    seeds = chosen_seeds(named.first_seed, named.seeds, 1)
    base = _base(named.base, named.steps)
    space = _space(named.space, base)
    # The cores of this machine say nothing about the nodes of a cluster.
    given = 1 if named.parallel is None and named.on == "slurm" else named.parallel
    parallel = chosen_processes(given, [base], "--parallel")
    folder = chosen_folder(_ROOT, named.name, Path(named.base).stem)
    study = Study(folder, base, space, seeds=seeds, seed=named.seed, prunes=not named.no_pruning)
    console = Console(highlight=False)
    if named.on == "slurm":
        _submit(console, study, named, parallel)
        return 0
    screen = _Screen(console, study, named.trials)
    screen.begin(parallel)
    raise_interrupts()
    try:
        Tuning(study, most=named.trials, parallel=parallel).train(screen.look)
    except KeyboardInterrupt:
        show(console, "stopped; the trials that were active are at their checkpoints. Continue with:")
        show_command(console, "  ", command_of("tune", *arguments))
        raise
    screen.end(seeds.stop)
    return 0


def parser() -> OneLineParser:
    """Returns the parser of the command's arguments."""
    parser = OneLineParser(
        prog="penstock tune", description="Search for settings by trials, and write the best settings to a file."
    )
    parser.add_argument(
        "base",
        nargs="?",
        metavar="BASE",
        help="settings of trial 0, from which the search starts: a TOML file or a preset",
    )
    parser.add_argument("--trials", type=int, default=20, metavar="N", help="trials of the study in all [20]")
    parser.add_argument(
        "--space", type=Path, metavar="FILE", help="search space in TOML (default: as --print-space prints it)"
    )
    parser.add_argument("--print-space", action="store_true", help="print the default search space and end")
    parser.add_argument("--steps", type=int, metavar="N", help="environment steps of each run (default: from BASE)")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="runs of each trial; their median counts [1]")
    parser.add_argument(
        "--first-seed", type=int, default=0, metavar="SEED", help="seed of the first run; each further one adds 1 [0]"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="SEED", help="seed of the search [0]")
    parser.add_argument("--no-pruning", action="store_true", help="train every trial to its end")
    parser.add_argument(
        "--parallel",
        type=int,
        metavar="N",
        help="trials at the same time in this process (default: cores / train.actors; 1 in each job)",
    )
    parser.add_argument("--name", metavar="NAME", help="name of the study's folder (default: from BASE; below tune/)")
    group = parser.add_argument_group("Slurm")
    group.add_argument(
        "--on", choices=["here", "slurm"], default="here", help="train the trials here, or in jobs of a cluster [here]"
    )
    group.add_argument(
        "--jobs", type=int, default=4, metavar="N", help="jobs, each with --parallel trials at a time [4]"
    )
    add_sbatch_option(group, "sbatch", "the jobs", "--time=4:00:00")
    add_node_options(group)
    group.add_argument("--print", action="store_true", help="print the script of the jobs and start nothing")
    return parser


def _base(name: str, steps: int | None) -> Config:
    base = settings_named(name).repeatable()
    if steps is not None:
        base = base.changed({"run": {"total_steps": steps}})
    if base.run.total_steps is None:
        raise ConfigurationError(
            f"{name} has no run.total_steps, and trials are compared at equal environment steps; give --steps"
        )
    return base


def _space(file: Path | None, base: Config) -> Space:
    if file is None:
        return default_space(base)
    return read_space(load_toml(file), base, str(file))


def _of_a_job(named: argparse.Namespace, parallel: int) -> list[str]:
    """Returns the arguments of the command in each job: those of the study, and the trials at the same time."""
    values = ("trials", "space", "steps", "seeds", "first_seed", "seed", "name")
    given = [f"--{each.replace('_', '-')}={value}" for each in values if (value := getattr(named, each)) is not None]
    return [named.base, *given, *(["--no-pruning"] if named.no_pruning else []), f"--parallel={parallel}"]


def _submit(console: Console, study: Study, named: argparse.Namespace, parallel: int) -> None:
    """Submits an array of jobs that train the trials of the study, or prints its script."""
    if named.jobs < 1:
        raise ConfigurationError(f"--jobs must be a number from 1; got {named.jobs}")
    actors = study.base.train.actors
    text = tuning_script(
        study.folder.absolute(),
        _of_a_job(named, parallel),
        jobs=named.jobs,
        cores=parallel * (actors if isinstance(actors, int) else 1),
        options=JobOptions(more=tuple(named.sbatch)),
        setup=named.setup,
        penstock=shlex.split(named.penstock) if named.penstock else PENSTOCK,
    )
    if named.print:
        print(text, end="")
        return
    script = study.folder / "slurm.sh"
    try:
        write_atomically(script, text.encode())
    except OSError as error:
        raise ConfigurationError(f"can't write {script}: {in_words(error, script, 'choose another --name')}") from None
    job = slurm.submit(script.absolute(), without_settings(os.environ))
    show(console, f"job {job}: an array of {named.jobs} tasks, which train the trials; its script is {script}")
    show(console, f"the page about the study is {study.page}; end the jobs with scancel {job}")


class _Screen:
    """Prints the lines about a study: one for each trial that ends, whichever process trained it."""

    def __init__(self, console: Console, study: Study, most: int) -> None:
        self._console, self._study, self._most = console, study, most
        self._shown = {each.number for each in study.trials() if each.ended}
        self._looked_at = 0.0

    def begin(self, parallel: int) -> None:
        """Prints the lines before the first trial."""
        study, best = self._study, self._study.best()
        seeds = f" with {len(study.seeds)} seeds" if len(study.seeds) > 1 else ""
        lines = [
            f"{self._most} trials of {study.base.run.total_steps:,} steps{seeds}, {parallel} at the same time, in"
            f" {study.folder}",
            f"search space: {', '.join(study.space)}",
        ]
        if self._shown:
            so_far = "" if best is None else f"; best so far: trial {best.number} with {return_text(best.rank[0])}"
            lines.append(f"the study continues after {len(self._shown)} trials{so_far}")
        show(self._console, *lines)

    def look(self) -> None:
        """Prints the trials that have ended since the last look, and writes the page."""
        if time.monotonic() - self._looked_at < _LOOK_S:
            return
        self._looked_at = time.monotonic()
        trials = self._study.trials()
        new = [each for each in trials if each.ended and each.number not in self._shown]
        best = self._study.best()
        for each in new:
            self._shown.add(each.number)
            so_far = "" if best is None or best.number == each.number else f"; best so far: trial {best.number}"
            show(self._console, f"trial {each.number}: {_outcome(each)}{so_far}")
        if new:
            write_study(self._study)

    def end(self, first_free_seed: int) -> None:
        """Prints the result. Raises `PenstockError` if no trial is complete."""
        self._looked_at = 0.0
        self.look()
        study, best = self._study, self._study.keep_best()
        trials = study.trials()
        refused = [each for each in trials if each.state == "refused"]
        if refused:
            show(self._console, f"{len(refused)} draws were refused, the last one because {refused[-1].reason}")
        if best is None:
            failed = [each for each in trials if each.state == "failed"]
            raise PenstockError(f"no trial is complete, and {len(failed)} failed, the last one: {failed[-1].reason}")
        write_study(study)
        base = next((each for each in trials if each.number == 0 and each.value is not None), None)
        compared = "" if base is None or best.number == 0 else f" (settings to start from: {return_text(base.rank[0])})"
        lines = [
            f"best: trial {best.number} with a return of {return_text(best.rank[0])}{compared}",
            *(f"  {name} {value_text(value)}" for name, value in best.cell.items()),
            f"settings {study.best_settings}",
            f"page     {study.page}",
        ]
        show(self._console, "", *lines)
        file = str(study.best_settings)
        show_command(self._console, "train    ", command_of("train", "--preset", "none", "--config", file))
        if best.number:
            # The best of many values is too good, which other seeds show.
            words = ["compare", str(study.folder / "base.toml"), file, "--name", study.folder.name]
            show_command(self._console, "confirm  ", command_of(*words, "--first-seed", str(first_free_seed)))


def _outcome(trial: Trial) -> str:
    if trial.value is not None:
        return f"return {return_text(trial.value)}"
    return f"{trial.state}: {trial.reason}"
