"""`make bench-loop`: whole training loops, like for like and as people run them, compared with five libraries.

Systems run in turn, round by round, on the same two cores. The result is build/bench/loop.json, which is written after
every run. A run that fails is reported, and the others go on. Only ratios within one file are meaningful; see
docs/BENCHMARKS.md.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from benchmarks import as_people_run, data_path, like_for_like, pipeline_bound
from benchmarks.as_people_run import Reached, patience
from benchmarks.like_for_like import Pace
from benchmarks.loop_results import Results, Run, Table
from benchmarks.observed import ROOT, RunFailed
from benchmarks.peers.equal_work import VECTOR_ENVIRONMENTS
from benchmarks.peers.peer_programs import PEERS
from benchmarks.pipeline_bound import Bound
from tests.support.results.provenance import commit

OUTPUT = ROOT / "build" / "bench" / "loop.json"
CORES = 2
MINIBATCHES = (256, 1_024)
TABLES: tuple[Table, ...] = ("like_for_like", "as_people_run", "data_path")
_FAILURE_CHARACTERS = 2_000


Result = Pace | Bound | Reached | dict[str, Any]
"""The result of a run."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A run that is to be made, and the function that makes it."""

    table: Table
    system: str
    env_id: str
    minibatch: int
    round: int
    measure: Callable[[], Result]


def planned(arguments: argparse.Namespace, results: Results) -> Iterator[Planned]:
    """Yields all runs, systems by turns within each round."""
    for number in range(arguments.rounds):
        if "like_for_like" in arguments.tables:
            yield from _like_for_like(arguments, number)
        if "data_path" in arguments.tables and number < arguments.seeds:
            yield from _data_path(arguments, number)
        if "as_people_run" in arguments.tables and number < arguments.seeds:
            yield from _as_people_run(arguments, number, results)


def _like_for_like(arguments: argparse.Namespace, number: int) -> Iterator[Planned]:
    for env_id in (env_id for env_id in VECTOR_ENVIRONMENTS if env_id in arguments.tasks):
        for minibatch in arguments.minibatches:
            for system in arguments.systems:
                pace = partial(like_for_like.run, system, env_id, minibatch, number, arguments.seconds)
                yield Planned("like_for_like", system, env_id, minibatch, number, pace)
            bound = partial(pipeline_bound.bound, env_id, minibatch)
            yield Planned("pipeline_bound", "bound", env_id, minibatch, number, bound)


def _data_path(arguments: argparse.Namespace, number: int) -> Iterator[Planned]:
    for env_id in (env_id for env_id in data_path.TASKS if env_id in arguments.tasks):
        for system in data_path.SYSTEMS:
            yield Planned("data_path", system, env_id, 0, number, partial(data_path.run, system, env_id, number))


def _as_people_run(arguments: argparse.Namespace, number: int, results: Results) -> Iterator[Planned]:
    for env_id in (env_id for env_id in as_people_run.TASKS if env_id in arguments.tasks):
        for system in arguments.systems:
            measure = partial(_reach, system, env_id, number, results)
            yield Planned("as_people_run", system, env_id, 0, number, measure)


def _reach(system: str, env_id: str, number: int, results: Results) -> Reached:
    limit_s = None if system == "penstock" else patience(_ours(results, env_id, number))
    return as_people_run.run(system, env_id, number, limit_s)


def _ours(results: Results, env_id: str, number: int) -> Reached | None:
    """Returns Penstock's run on a task with this seed."""
    for run in results.runs:
        if run.place == ("as_people_run", "penstock", env_id, 0, number) and run.result is not None:
            return Reached(**run.result)
    return None


def measured(plan: Planned, of_commit: str) -> Run:
    """Makes a run; a failure is its result."""
    result, failure, load = None, "", os.getloadavg()[0]
    try:
        found = plan.measure()
        result = found if isinstance(found, dict) else asdict(found)
    except (RunFailed, subprocess.SubprocessError, OSError, ValueError, LookupError) as error:
        failure = (str(error) or type(error).__name__)[-_FAILURE_CHARACTERS:]
    date = datetime.now(UTC).isoformat(timespec="seconds")
    place = (plan.table, plan.system, plan.env_id, plan.minibatch, plan.round)
    return Run(*place, result, failure, of_commit, date, round(load, 2))


def line_of(run: Run) -> str:
    """Returns a line about a run."""
    task = f"{run.env_id}, minibatches of {run.minibatch:,}" if run.minibatch else run.env_id
    head = f"{run.table}, round {run.round + 1}, {task}: {run.system}:"
    if run.result is None:
        return f"{head} FAILED: {run.failure.strip().splitlines()[-1] if run.failure.strip() else ''}"
    if run.table == "as_people_run":
        found = Reached(**run.result)
        if found.wall_s is None:
            return f"{head} not within {found.observed_s:.0f} s; best return {found.best_return}"
        return f"{head} {found.wall_s:.1f} s, {found.cpu_s:.1f} CPU s, {found.env_steps:,} steps"
    return f"{head} {run.result['env_steps_per_s']:,.0f} steps/s"


def show(results: Results, console: Console) -> None:
    """Prints the tables and the goals."""
    document = results.document()
    for name in ("like_for_like", "pipeline_bound", "as_people_run", "data_path"):
        cases = document[name]
        if not cases:
            continue
        columns = list(dict.fromkeys(column for case in cases for column in case))
        table = RichTable(*columns, title=name)
        for case in cases:
            table.add_row(*(_shown(case.get(column)) for column in columns))
        console.print(table)
    table = RichTable("goal", "task", "minibatch", "measured", "bound", "met")
    for goal in document["goals"]:
        bound = f"{'at least' if goal['at_least'] else 'at most'} {goal['bound']:g}"
        measured = "not measured" if goal["measured"] is None else f"{goal['measured']:.2f}"
        values = (measured, bound, {True: "met", False: "missed", None: ""}[goal["met"]])
        table.add_row(goal["name"], goal["env_id"], _shown(goal["minibatch"] or None), *values)
    console.print(table)


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 1_000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def main() -> int:
    """Measures, prints and writes everything; returns 1 if a goal was missed or not measured, or a run failed."""
    systems, tasks = ["penstock", *PEERS], list(as_people_run.TASKS)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3, help="rounds of as_people_run and data_path, at most --rounds")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES)
    parser.add_argument("--tasks", nargs="+", choices=tasks, default=tasks)
    parser.add_argument("--systems", nargs="+", choices=systems, default=systems)
    parser.add_argument("--minibatches", nargs="+", type=int, default=MINIBATCHES)
    parser.add_argument("--seconds", type=float, default=like_for_like.SECONDS, help="of each run like for like")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--resume", action="store_true", help="keep the runs of the file that have a result")
    arguments = parser.parse_args()
    console = Console(highlight=False)
    for name in arguments.systems:
        # A peer that can't be installed is reported when it would run.
        if name in PEERS:
            try:
                PEERS[name].python(), PEERS[name].arguments()
            except (subprocess.SubprocessError, OSError) as error:
                console.print(f"can't install {PEERS[name].title}: {error}", markup=False)
    # Child processes inherit it.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    results, of_commit = Results(arguments.output), commit()
    made: list[Run] = []
    for plan in planned(arguments, results):
        place = Run(plan.table, plan.system, plan.env_id, plan.minibatch, plan.round, None, "", "", "")
        if arguments.resume and results.finished(place) is not None:
            continue
        made.append(measured(plan, of_commit))
        results.add(made[-1])
        console.print(line_of(made[-1]), markup=False)
    show(results, console)
    console.print(f"written to {arguments.output}")
    met = all(goal["met"] for goal in results.document()["goals"])
    return 0 if met and all(run.result is not None for run in made) else 1


if __name__ == "__main__":
    sys.exit(main())
