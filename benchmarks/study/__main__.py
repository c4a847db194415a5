"""`python -m benchmarks.study`: trains environments x settings x seeds, and writes the results to its page.

That is the page with the marks of the study. Each finished run is stored in a folder of its commit. If the command was
interrupted, or ended because of --minutes, it continues with the missing runs of the same commit. The exit code is 75
if runs are missing; nothing is written then. With --published, the tables and pictures are made again from the
published runs, without training.
"""

import argparse
import itertools
import math
import os
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.documents import page_of, write_into
from benchmarks.study.experiments import EXPERIMENTS, Experiment
from benchmarks.study.report import Outcomes, draw, draw_ratios, read_outcomes, table, write_outcomes
from benchmarks.study.running import Crew, Run, Unfinished, play_all
from benchmarks.study.tasks import TASKS
from tests.support.results.provenance import commit
from tests.support.results.result_files import RESULTS
from tests.support.training.single_process import Outcome

ROOT = Path(__file__).parents[2]
WRITER = "benchmarks.study"


def main() -> int:
    """Runs one experiment, and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.study", description=__doc__)
    parser.add_argument("experiment", choices=sorted(EXPERIMENTS))
    parser.add_argument("--tasks", nargs="+", choices=sorted(TASKS), help="tasks of an experiment", metavar="TASK")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2, help="number of parallel runs, one core each")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no run after this many minutes")
    stored = ROOT / "build" / "study" / commit()
    parser.add_argument(
        "--folder", type=Path, default=stored, help=f"folder for the results of runs; default: {stored}"
    )
    parser.add_argument("--published", action="store_true", help="make tables and pictures from the published runs")
    parser.add_argument("--document", type=Path, help="page for the results")
    chosen = parser.parse_args()
    crew = Crew(chosen.jobs, time.monotonic() + 60.0 * chosen.minutes)
    try:
        _compare(chosen, crew)
    except Unfinished as unfinished:
        print(f"{unfinished}; repeat the command", file=sys.stderr)
        return os.EX_TEMPFAIL
    return 0


def _compare(chosen: argparse.Namespace, crew: Crew) -> None:
    experiment, console = EXPERIMENTS[chosen.experiment], Console()
    document = chosen.document or page_of(chosen.experiment)
    picture = RESULTS / f"{chosen.experiment}.png"
    outcomes: Outcomes
    if chosen.published:
        outcomes = read_outcomes(picture.with_suffix(".json"))
        experiment = experiment.part({label for _, label in outcomes})
    else:
        outcomes = _played(experiment, chosen, crew, console)
        write_outcomes(outcomes, picture.with_suffix(".json"))
    tasks = list(dict.fromkeys(task for task, _ in outcomes))
    draw(experiment, tasks, outcomes, picture)
    section = f"{table(experiment, tasks, outcomes)}\n\n![{experiment.title}](../results/{picture.name})"
    if experiment.compared:
        ratios = picture.with_stem(f"{chosen.experiment}-ratios")
        draw_ratios(experiment, tasks, outcomes, ratios)
        section += f"\n\n![{experiment.title}: ratios of steps](../results/{ratios.name})"
    write_into(document, chosen.experiment, section, writer=WRITER)
    console.print(section, highlight=False, markup=False)


def _played(experiment: Experiment, chosen: argparse.Namespace, crew: Crew, console: Console) -> Outcomes:
    """Trains the missing runs, and returns the outcomes of all. Raises as `play_all`."""
    tasks = chosen.tasks or experiment.tasks
    runs = [
        Run(experiment, task, setting, seed)
        for seed, task, setting in itertools.product(range(chosen.seeds), tasks, experiment.settings)
    ]
    with _progress(console) as progress:
        bar = progress.add_task(experiment.title, total=len(runs))

        def show_outcome(run: Run, outcome: Outcome) -> None:
            progress.advance(bar)
            console.print(f"{run.task}, {run.setting.label}, seed {run.seed}: {_summary(outcome)}", highlight=False)

        played = play_all(runs, chosen.folder, crew, show_outcome)
    return {
        (task, setting.label): [played[Run(experiment, task, setting, seed)] for seed in range(chosen.seeds)]
        for task, setting in itertools.product(tasks, experiment.settings)
    }


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console
    )


def _summary(outcome: Outcome) -> str:
    steps = outcome.env_steps_to_threshold
    solved = f"solved after {steps:,} steps" if steps is not None else "not solved"
    return f"{solved}, final return {outcome.final_return:.1f} ({outcome.seconds:.0f} s)"


if __name__ == "__main__":
    sys.exit(main())
