"""`python -m benchmarks.study`: trains environments x settings x seeds, and writes the results to docs/RESULTS.md.

Each finished run is stored in build/study. If the command was interrupted, it continues with the missing runs.
"""

import argparse
import itertools
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.study.experiments import EXPERIMENTS, TASKS
from benchmarks.study.report import draw, table, write_into
from benchmarks.study.running import Run, play_all
from helpers.single_process import Outcome

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Runs one experiment."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.study", description=__doc__)
    parser.add_argument("experiment", choices=sorted(EXPERIMENTS))
    parser.add_argument("--tasks", nargs="+", choices=sorted(TASKS), default=list(TASKS), metavar="TASK")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2, help="number of parallel runs, one core each")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "study", help="folder for the results of runs")
    parser.add_argument("--document", type=Path, default=ROOT / "docs" / "RESULTS.md")
    chosen = parser.parse_args()
    experiment, console = EXPERIMENTS[chosen.experiment], Console()
    runs = [
        Run(experiment, task, setting, seed)
        for seed, task, setting in itertools.product(range(chosen.seeds), chosen.tasks, experiment.settings)
    ]
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console
    ) as progress:
        bar = progress.add_task(experiment.title, total=len(runs))

        def show_outcome(run: Run, outcome: Outcome) -> None:
            progress.advance(bar)
            console.print(f"{run.task}, {run.setting.label}, seed {run.seed}: {_summary(outcome)}", highlight=False)

        played = play_all(runs, chosen.folder, chosen.jobs, show_outcome)
    outcomes = {
        (task, setting.label): [played[Run(experiment, task, setting, seed)] for seed in range(chosen.seeds)]
        for task, setting in itertools.product(chosen.tasks, experiment.settings)
    }
    picture = chosen.document.parent / "results" / f"{chosen.experiment}.png"
    draw(experiment, chosen.tasks, outcomes, picture)
    section = f"{table(experiment, chosen.tasks, outcomes)}\n\n![{experiment.title}](results/{picture.name})"
    write_into(chosen.document, chosen.experiment, section)
    console.print(section, highlight=False, markup=False)


def _summary(outcome: Outcome) -> str:
    steps = outcome.env_steps_to_threshold
    solved = f"solved after {steps:,} steps" if steps is not None else "not solved"
    return f"{solved}, final return {outcome.final_return:.1f} ({outcome.seconds:.0f} s)"


if __name__ == "__main__":
    main()
