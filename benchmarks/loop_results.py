"""The result file of `make bench-loop`: every run, the cases over their rounds, and the goals.

It is written after each run, so that a run that fails or an interruption loses nothing. A later command with other
systems or tasks adds its runs to the file.
"""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from benchmarks.as_people_run import MOST_TIME, TASKS, Reached
from benchmarks.data_path import LEAST_OF_FIFO, MOST_SHARE
from benchmarks.deviations import DEVIATIONS, SETTINGS
from benchmarks.like_for_like import LEAST_OF_BOUND, LEAST_PACE, MOST_CPU, Pace
from benchmarks.pipeline_bound import Bound
from tests.support.results.provenance import of_this_run

Table = Literal["like_for_like", "pipeline_bound", "as_people_run", "data_path"]

NAMES: dict[Table, tuple[str, ...]] = {
    "like_for_like": tuple(field.name for field in fields(Pace)),
    "pipeline_bound": tuple(field.name for field in fields(Bound)),
    "as_people_run": tuple(field.name for field in fields(Reached)),
    "data_path": ("env_steps_per_s",),
}
"""Names of the numbers that every case of a table has."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one system, which has a result or a failure.

    Attributes:
        table: Table to which it belongs.
        system: Name of the system.
        env_id: Gymnasium id of the environment.
        minibatch: Steps of a minibatch; 0 where the system chooses.
        round: Number of the round, which is also the seed.
        result: Numbers by name; None if it failed.
        failure: Last output of a run that failed.
        commit: Commit of Penstock.
        date: Time of the end, UTC.
        load: Load average of the machine before the run, over one minute; None if unknown. On a quiet machine, it is
            that of the run before.
    """

    table: Table
    system: str
    env_id: str
    minibatch: int
    round: int
    result: dict[str, Any] | None
    failure: str
    commit: str
    date: str
    load: float | None = None

    @property
    def place(self) -> tuple[str, str, str, int, int]:
        """What a repetition of this run has in common with it."""
        return self.table, self.system, self.env_id, self.minibatch, self.round


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal, and whether it is met; both are None if it was not measured."""

    name: str
    env_id: str
    minibatch: int
    measured: float | None
    bound: float
    at_least: bool
    met: bool | None


class Results:
    """The runs in a result file."""

    def __init__(self, path: Path) -> None:
        """Reads the runs of the file, if it exists."""
        self._path = path
        known = json.loads(path.read_text())["runs"] if path.exists() else []
        self._runs = {run.place: run for run in (Run(**each) for each in known)}

    @property
    def runs(self) -> list[Run]:
        """All runs."""
        return list(self._runs.values())

    def finished(self, run: Run) -> Run | None:
        """Returns the run of the file with the same place, if it has a result."""
        known = self._runs.get(run.place)
        return known if known is not None and known.result is not None else None

    def add(self, run: Run) -> None:
        """Adds a run in place of its predecessor, and writes the file."""
        self._runs[run.place] = run
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self.document(), indent=1) + "\n")

    def document(self) -> dict[str, Any]:
        """Returns the content of the file."""
        runs = self.runs
        tables = {table: cases_of(runs, table) for table in Table.__args__}  # type: ignore[attr-defined]
        return {
            "provenance": of_this_run(),
            "settings": SETTINGS,
            "deviations": DEVIATIONS,
            **tables,
            "goals": [asdict(goal) for goal in goals(tables)],
            "runs": [asdict(run) for run in runs],
        }


Case = dict[str, Any]
"""Medians over the rounds of one system on one task, by name."""


def cases_of(runs: Iterable[Run], table: str) -> list[Case]:
    """Returns one case for each system, task and size of minibatches in a table."""
    groups: dict[tuple[str, str, int], list[Run]] = {}
    for run in runs:
        if run.table == table:
            groups.setdefault((run.system, run.env_id, run.minibatch), []).append(run)
    return [case(of_system) for of_system in groups.values()]


def case(runs: Sequence[Run]) -> Case:
    """Returns the medians over the runs of one system; None if most runs lack a number, or all failed."""
    first, results = runs[0], [run.result for run in runs if run.result is not None]
    names = dict.fromkeys([*NAMES[first.table], *(name for result in results for name in result)])
    return {
        "system": first.system,
        "env_id": first.env_id,
        **({"minibatch": first.minibatch} if first.minibatch else {}),
        **{name: median([result.get(name) for result in results]) for name in names},
        "rounds": len(results),
        "failed": len(runs) - len(results),
    }


def median(values: Sequence[float | None]) -> float | None:
    """Returns the median of numbers, of which None is the largest: None if most of them are None."""
    known = [float("inf") if value is None else float(value) for value in values]
    if not known:
        return None
    middle = statistics.median(known) if float("inf") not in known else statistics.median_high(known)
    return None if middle == float("inf") else middle


def goals(tables: dict[str, list[Case]]) -> list[Goal]:
    """Returns the goals of all tables for which there are results."""
    return [*_like_for_like(tables), *_as_people_run(tables["as_people_run"]), *_data_path(tables["data_path"])]


def _like_for_like(tables: dict[str, list[Case]]) -> list[Goal]:
    found = []
    for ours, peers in _beside_penstock(tables["like_for_like"], "env_steps_per_s"):
        env_id, minibatch = ours["env_id"], ours["minibatch"]
        for peer in peers:
            least = LEAST_PACE[peer["system"]]
            ratio = ours["env_steps_per_s"] / peer["env_steps_per_s"]
            found.append(_at_least(f"steps/s over {peer['system']}", env_id, minibatch, ratio, least))
        if peers:
            cheapest = min(peer["cpu_s_per_million_steps"] for peer in peers)
            ratio = ours["cpu_s_per_million_steps"] / cheapest
            found.append(_at_most("CPU time over the best peer", env_id, minibatch, ratio, MOST_CPU))
        for bound in tables["pipeline_bound"]:
            if (bound["env_id"], bound["minibatch"]) == (env_id, minibatch) and bound.get("env_steps_per_s"):
                ratio = ours["env_steps_per_s"] / bound["env_steps_per_s"]
                found.append(_at_least("steps/s over the pipeline's bound", env_id, minibatch, ratio, LEAST_OF_BOUND))
    return found


def _as_people_run(cases: list[Case]) -> list[Goal]:
    found = []
    for env_id in TASKS:
        of_task = {each["system"]: each for each in cases if each["env_id"] == env_id and each["rounds"]}
        ours, peers = of_task.pop("penstock", None), list(of_task.values())
        if ours is None or not peers:
            continue
        goal = Goal("seconds to the threshold over the fastest peer", env_id, 0, None, MOST_TIME, False, None)
        # If no peer reached it, the ratio is that of Penstock's seconds to those for which peers were observed.
        if any(each.get("wall_s") for each in peers):
            # A peer that did not reach the threshold took longer than it was observed.
            fastest = min(each.get("wall_s") or each["observed_s"] for each in peers)
            # Infinite if Penstock did not reach the threshold.
            ratio = (ours.get("wall_s") or float("inf")) / fastest
            goal = _at_most(goal.name, env_id, 0, ratio, MOST_TIME)
        found.append(goal)
    return found


def _data_path(cases: list[Case]) -> list[Goal]:
    found = []
    for ours, others in _beside_penstock(cases, "env_steps_per_s"):
        env_id = ours["env_id"]
        for fifo in others:
            ratio = ours["env_steps_per_s"] / fifo["env_steps_per_s"]
            found.append(_at_least("steps/s over shared memory alone", env_id, 0, ratio, LEAST_OF_FIFO))
        found.append(_at_most("share of the data path in CPU time", env_id, 0, ours["path_share"], MOST_SHARE))
    return found


def _beside_penstock(cases: Iterable[Case], needed: str) -> Iterable[tuple[Case, list[Case]]]:
    """Yields each case of Penstock, with those of other systems of the same task and size of minibatches."""
    measured = [each for each in cases if each.get(needed)]
    for ours in measured:
        if ours["system"] == "penstock":
            same = [each for each in measured if _task_of(each) == _task_of(ours) and each is not ours]
            yield ours, same


def _task_of(case: Case) -> tuple[str, int]:
    return case["env_id"], case.get("minibatch", 0)


def _at_least(name: str, env_id: str, minibatch: int, measured: float, bound: float) -> Goal:
    return Goal(name, env_id, minibatch, round(measured, 3), bound, at_least=True, met=measured >= bound)


def _at_most(name: str, env_id: str, minibatch: int, measured: float, bound: float) -> Goal:
    return replace(_at_least(name, env_id, minibatch, measured, bound), at_least=False, met=measured <= bound)
