"""Results of `benchmarks.zoo_tasks`: their file, the comparison of both systems, and the table of docs/RESULTS.md."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.documents import write_into
from benchmarks.peers.zoo_settings import COMMIT
from benchmarks.side_by_side import Run, median, ratio
from benchmarks.zoo_goals import GOALS, LEAST_SAVING, MOST_STEPS, THRESHOLD_SCORE, TOLERANCE, Goal
from helpers import provenance
from helpers.curves import final_return
from penstock.files import write_json
from penstock.types.records import plain, record_of

PENSTOCK, ZOO = "penstock", "rl-zoo"
SYSTEMS = (PENSTOCK, ZOO)
_HEAD = (
    "task",
    "steps of a run: Penstock, rl-zoo",
    "threshold",
    "steps to it: Penstock",
    "rl-zoo",
    "ratio of steps",
    "of seconds",
    "of CPU seconds",
    "final return: Penstock",
    "rl-zoo",
)


@dataclass(frozen=True, slots=True)
class Measured:
    """A run with what it depends on.

    Attributes:
        env_id: Gymnasium id of the task.
        configuration: Digest of all settings of the run.
        commit: Commit of this repository at which it was measured.
        total_steps: Environment steps of the run.
        command_s: Seconds of the whole command, with its start and all evaluations.
        run: The run.
    """

    env_id: str
    configuration: str
    commit: str
    total_steps: int
    command_s: float
    run: Run

    @property
    def final_return(self) -> float:
        """Mean of the evaluations in the last fifth of the run."""
        return final_return(self.run.curve, self.total_steps)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The runs of both systems on one task, at least one of each."""

    goal: Goal
    ours: tuple[Measured, ...]
    theirs: tuple[Measured, ...]

    def ratio(self, name: str) -> float | None:
        """Returns the ratio of medians of an attribute of runs; see `benchmarks.side_by_side.ratio`."""
        return ratio(_runs(self.ours), _runs(self.theirs), name)

    @property
    def saves_steps(self) -> bool:
        """Whether Penstock needs few enough environment steps to the threshold."""
        steps = self.ratio("env_steps_to_threshold")
        return steps is not None and steps <= MOST_STEPS

    @property
    def keeps_return(self) -> bool:
        """Whether Penstock's mean final return is at least equal."""
        ours, theirs = (statistics.mean(each.final_return for each in runs) for runs in (self.ours, self.theirs))
        return self.goal.score(ours) >= self.goal.score(theirs) - TOLERANCE


def read(path: Path) -> list[Measured]:
    """Returns the stored runs; none if the file does not exist."""
    return [record_of(Measured, each) for each in json.loads(path.read_text())["runs"]] if path.exists() else []


def write(path: Path, measured: Sequence[Measured]) -> None:
    """Writes all runs as JSON, with the thresholds and the machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tasks = {
        goal.env_id: {"threshold": goal.threshold, "reported_return": goal.reported_return}
        for goal in GOALS
        if any(each.env_id == goal.env_id for each in measured)
    }
    runs = [plain(each) for each in measured]
    write_json(path, {**provenance.of_this_run(), "rl_zoo_commit": COMMIT, "tasks": tasks, "runs": runs})


def comparisons(measured: Sequence[Measured]) -> list[Comparison]:
    """Returns the tasks on which both systems have been measured with the same seeds; other seeds don't count."""
    found = []
    for goal in GOALS:
        ours, theirs = (
            {each.run.seed: each for each in measured if (each.env_id, each.run.system) == (goal.env_id, system)}
            for system in SYSTEMS
        )
        seeds = sorted(ours.keys() & theirs.keys())
        if seeds:
            found.append(Comparison(goal, tuple(ours[seed] for seed in seeds), tuple(theirs[seed] for seed in seeds)))
    return found


def meets_criterion(compared: Sequence[Comparison]) -> bool:
    """Returns whether these comparisons, of all tasks, keep every final return and save enough steps."""
    return all(each.keeps_return for each in compared) and sum(each.saves_steps for each in compared) >= LEAST_SAVING


def table(compared: Sequence[Comparison]) -> str:
    """Returns the results in Markdown."""
    lines = [
        f"Steps to the threshold are medians over {_numbers(compared)} seeds, of the first evaluation over 20"
        " deterministic episodes that reaches it. Final returns are means over seeds and, in brackets, the lowest and"
        f" the highest seed. Thresholds have a score of {THRESHOLD_SCORE:g}, between a random policy (0) and the return"
        " that rl-zoo reports (1). Ratios are Penstock's over rl-zoo's, of times without evaluations; 0 if only rl-zoo"
        " missed the threshold.",
        "",
        "| " + " | ".join(_HEAD) + " |",
        "|---" * len(_HEAD) + "|",
        *(f"| {' | '.join(_row(each))} |" for each in compared),
        "",
        f"The final return is at least equal on {sum(each.keeps_return for each in compared)} of {len(compared)} tasks"
        f" (goal: all; a difference in score below {TOLERANCE:g} counts as equal). The ratio of steps is at most"
        f" {MOST_STEPS:g} on {sum(each.saves_steps for each in compared)} of them (goal: {LEAST_SAVING} of"
        f" {len(GOALS)}).",
    ]
    return "\n".join(lines)


def publish(path: Path, document: Path) -> None:
    """Writes the table of a result file into a page, and a copy of the file beside the page."""
    write_into(document, "zoo-tasks", table(comparisons(read(path))), writer="benchmarks.zoo_tasks")
    copy = document.parent / "results" / "zoo_tasks.json"
    copy.parent.mkdir(exist_ok=True)
    copy.write_bytes(path.read_bytes())


def _row(each: Comparison) -> list[str]:
    digits = 3 if abs(each.goal.reported_return) < 1.0 else 1
    shares = ("env_steps_to_threshold", "learn_wall_s_to_threshold", "cpu_s_to_threshold")
    return [
        each.goal.env_id,
        f"{each.ours[0].total_steps / 1000:,.0f}k, {each.theirs[0].total_steps / 1000:,.0f}k",
        f"{each.goal.threshold:,.{digits}f}",
        _steps(each.ours),
        _steps(each.theirs),
        *("not reached" if share is None else f"{share:.2f}" for share in map(each.ratio, shares)),
        _returns(each.ours, digits),
        _returns(each.theirs, digits),
    ]


def _steps(measured: Sequence[Measured]) -> str:
    middle = median(_runs(measured), "env_steps_to_threshold")
    reached = sum(each.run.env_steps_to_threshold is not None for each in measured)
    shown = "not reached" if middle is None else f"{middle / 1000:,.1f}k"
    return shown if reached == len(measured) else f"{shown} ({reached} of {len(measured)})"


def _returns(measured: Sequence[Measured], digits: int) -> str:
    values = [each.final_return for each in measured]
    return f"{statistics.mean(values):,.{digits}f} [{min(values):,.{digits}f}, {max(values):,.{digits}f}]"


def _numbers(compared: Sequence[Comparison]) -> str:
    counts = sorted({len(each.ours) for each in compared})
    return " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1]))) if counts else "0"


def _runs(measured: Sequence[Measured]) -> list[Run]:
    return [each.run for each in measured]
