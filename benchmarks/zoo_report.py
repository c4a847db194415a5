"""Results of `benchmarks.zoo_tasks`: their file, the comparison of both systems, and its tables."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.zoo_settings import COMMIT, SETTINGS
from benchmarks.side_by_side import Run, median, ratio
from benchmarks.zoo_goals import GOALS, LEAST_SAVING, MOST_STEPS, SHARES, THRESHOLD_SCORE, TOLERANCE, Goal
from penstock.machine.files import write_json
from penstock.types.records import plain, record_of
from tests.support.results import provenance
from tests.support.training.curves import final_return

PENSTOCK, ZOO = "penstock", "rl-zoo"
SYSTEMS = (PENSTOCK, ZOO)
_HEAD = (
    "task",
    "settings marked as tuned",
    "steps of a run: Penstock, rl-zoo",
    "threshold",
    "steps to it: Penstock, rl-zoo",
    "ratio of steps, seconds, CPU seconds",
    "final return: Penstock",
    "rl-zoo",
)


@dataclass(frozen=True, slots=True)
class Measured:
    """A run with what it depends on.

    Attributes:
        env_id: Name of the task, as `benchmarks.zoo_goals.Goal.name`.
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
        """Whether Penstock's mean final return is at least equal, also where the peer has more steps."""
        ours, theirs = (statistics.mean(each.final_return for each in runs) for runs in (self.ours, self.theirs))
        return self.goal.score(ours) >= self.goal.score(theirs) - TOLERANCE

    @property
    def is_reproduced(self) -> bool:
        """Whether the peer's mean final return has the threshold's share of the return that rl-zoo reports."""
        return self.goal.score(statistics.mean(each.final_return for each in self.theirs)) >= THRESHOLD_SCORE

    @property
    def counts(self) -> bool:
        """Whether the row is counted: the peer is judged as in rl-zoo's table, and does what it does there."""
        return self.goal.judged_as_reported and self.is_reproduced

    def returns_at(self, share: float) -> tuple[float, float]:
        """Returns the mean returns of Penstock and of the peer after a share of the steps that both have.

        They are means over seeds and over the evaluations in the last fifth of these steps.
        """
        steps = int(share * min(self.ours[0].total_steps, self.theirs[0].total_steps))
        ours, theirs = (
            statistics.mean(_return_at(each.run.curve, steps) for each in runs) for runs in (self.ours, self.theirs)
        )
        return ours, theirs

    def advantage(self, share: float) -> float:
        """Returns the difference of the scores of `returns_at`."""
        ours, theirs = self.returns_at(share)
        return self.goal.score(ours) - self.goal.score(theirs)


def read(path: Path) -> list[Measured]:
    """Returns the stored runs; none if the file does not exist."""
    return runs_of(json.loads(path.read_text())) if path.exists() else []


def runs_of(document: Mapping[str, Any]) -> list[Measured]:
    """Returns the runs of a result file."""
    return [record_of(Measured, each) for each in document["runs"]]


def write(path: Path, measured: Sequence[Measured]) -> None:
    """Writes all runs as JSON, with the thresholds and the machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tasks = {
        goal.name: {"threshold": goal.threshold, "reported_return": goal.reported_return}
        for goal in GOALS
        if any(each.env_id == goal.name for each in measured)
    }
    runs = [plain(each) for each in measured]
    write_json(path, {**provenance.of_this_run(), "rl_zoo_commit": COMMIT, "tasks": tasks, "runs": runs})


def comparisons(measured: Sequence[Measured]) -> list[Comparison]:
    """Returns the tasks on which both systems have been measured with the same seeds; other seeds don't count."""
    found = []
    for goal in GOALS:
        ours, theirs = (
            {each.run.seed: each for each in measured if (each.env_id, each.run.system) == (goal.name, system)}
            for system in SYSTEMS
        )
        seeds = sorted(ours.keys() & theirs.keys())
        if seeds:
            found.append(Comparison(goal, tuple(ours[seed] for seed in seeds), tuple(theirs[seed] for seed in seeds)))
    return found


def meets_criterion(compared: Sequence[Comparison]) -> bool:
    """Returns whether the rows that count keep every final return and save enough steps."""
    counted = [each for each in compared if each.counts]
    return all(each.keeps_return for each in counted) and sum(each.saves_steps for each in counted) >= LEAST_SAVING


def table(compared: Sequence[Comparison]) -> str:
    """Returns the results in Markdown: the returns at equal steps, then the steps to the threshold."""
    counted = [each for each in compared if each.counts]
    lines = [
        "Mean return over the evaluations in the last fifth of each share of the steps that both systems have, over"
        f" {_numbers(compared)} seeds. A row counts if rl-zoo's PPO, judged by the actions by which rl-zoo judges it,"
        f" has a final score of at least {THRESHOLD_SCORE:g}; the return that rl-zoo reports is 1.",
        "",
        "| task | " + " | ".join(f"{_share(share)}: Penstock, rl-zoo" for share in SHARES) + " | counts |",
        "|---" * (len(SHARES) + 2) + "|",
        *(f"| {' | '.join(_equal_row(each))} |" for each in compared),
        "",
        f"Of the {len(counted)} rows that count, Penstock's return is higher on"
        f" {', '.join(f'{_better(counted, share)} after {_share(share)}' for share in SHARES)} of the steps, and lower"
        f" on {', '.join(str(_worse(counted, share)) for share in SHARES)}. A difference in score up to"
        f" {TOLERANCE:g} is neither.",
        "",
        f"Steps to the threshold are medians over {_numbers(compared)} seeds, of the first evaluation over 20"
        " episodes that reaches it. Final returns are means over seeds and, in brackets, the lowest and the highest"
        f" seed. Thresholds have a score of {THRESHOLD_SCORE:g}, between a random policy (0) and the return"
        " that rl-zoo reports (1). Ratios are Penstock's over rl-zoo's, of times without evaluations; a row that does"
        " not count has none.",
        "",
        "| " + " | ".join(_HEAD) + " |",
        "|---" * len(_HEAD) + "|",
        *(f"| {' | '.join(_row(each))} |" for each in compared),
        "",
        f"Of the {len(counted)} rows that count, the final return is at least equal on"
        f" {sum(each.keeps_return for each in counted)} (goal: all; a difference in score up to {TOLERANCE:g} counts"
        f" as equal), and the ratio of steps is at most {MOST_STEPS:g} on"
        f" {sum(each.saves_steps for each in counted)} (goal: {LEAST_SAVING}).",
    ]
    return "\n".join(lines)


def claim(compared: Sequence[Comparison]) -> str:
    """Returns the sentence of docs/RESULTS.md about returns at equal steps."""
    counted = [each for each in compared if each.counts]
    higher = ", ".join(f"{_better(counted, share)} after {_share(share)}" for share in SHARES)
    lower = ", ".join(str(_worse(counted, share)) for share in SHARES)
    return (
        f"- **Defaults that need no tuning.** On {len(counted)} tasks without a preset, the return is higher than"
        f" with Stable-Baselines3's PPO and rl-zoo's settings on {higher} of the same environment steps, and lower"
        f" on {lower} ([tasks and conditions](results-rl-zoo.md), [runs](../results/zoo_tasks.json))."
    )


def _share(share: float) -> str:
    return f"{share:.0%}"


def _better(compared: Sequence[Comparison], share: float) -> int:
    return sum(each.advantage(share) > TOLERANCE for each in compared)


def _worse(compared: Sequence[Comparison], share: float) -> int:
    return sum(each.advantage(share) < -TOLERANCE for each in compared)


def _return_at(curve: Sequence[tuple[int, float]], steps: int) -> float:
    return final_return([point for point in curve if point[0] <= steps] or curve[:1], steps)


def _row(each: Comparison) -> list[str]:
    shares = ("env_steps_to_threshold", "learn_wall_s_to_threshold", "cpu_s_to_threshold")
    ratios = ["not reached" if share is None else f"{share:.2f}" for share in map(each.ratio, shares)]
    return [
        each.goal.name,
        "yes" if SETTINGS[each.goal.env_id].tuned else "no",
        f"{each.ours[0].total_steps / 1000:,.0f}k, {each.theirs[0].total_steps / 1000:,.0f}k",
        f"{each.goal.threshold:,.{_digits(each)}f}",
        f"{_steps(each.ours)}, {_steps(each.theirs)}",
        ", ".join(ratios) if each.counts else "",
        _returns(each.ours, _digits(each)),
        _returns(each.theirs, _digits(each)),
    ]


def _equal_row(each: Comparison) -> list[str]:
    shown = [", ".join(f"{value:,.{_digits(each)}f}" for value in each.returns_at(share)) for share in SHARES]
    return [each.goal.name, *shown, _counted(each)]


def _counted(each: Comparison) -> str:
    if each.counts:
        return "yes"
    return "peer not reproduced" if each.goal.judged_as_reported else "rl-zoo judges by sampled actions"


def _digits(each: Comparison) -> int:
    return 3 if abs(each.goal.reported_return) < 1.0 else 1


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
