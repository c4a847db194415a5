"""Tables and plots of a study, written to docs/RESULTS.md between the marks of each experiment."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from benchmarks.study.estimates import Estimate, estimate
from benchmarks.study.experiments import Experiment
from benchmarks.study.tasks import TASKS
from helpers.single_process import Outcome
from penstock.files import write_json

Outcomes = Mapping[tuple[str, str], Sequence[Outcome]]
"""Outcomes by task and label of the setting, one per seed."""

_COLUMNS = 3

COLOURS = ("#57606a", "#2da44e", "#d1681a", "#1f6feb", "#8250df", "#bf3989", "#9a6700", "#0a7ea4")


def scores(task: str, outcomes: Sequence[Outcome]) -> list[float]:
    """Returns the scores at the end of the runs."""
    return [TASKS[task].score(outcome.final_return) for outcome in outcomes]


def steps_to_threshold(outcomes: Sequence[Outcome]) -> float:
    """Returns the median steps to the threshold; infinite if less than half of the runs reached it."""
    return statistics.median(
        float("inf") if outcome.env_steps_to_threshold is None else outcome.env_steps_to_threshold
        for outcome in outcomes
    )


def table(experiment: Experiment, tasks: Sequence[str], outcomes: Outcomes) -> str:
    """Returns a Markdown table.

    It has one row per setting, two columns per task, and the mean over tasks. For a single setting, it has one row per
    task.
    """
    if len(experiment.settings) == 1:
        return _table_of_tasks(experiment, tasks, outcomes)
    seeds = len(next(iter(outcomes.values())))
    head = ["", *(f"{task}: steps | score" for task in tasks), "all: score"]
    lines = [
        f"{experiment.description} {seeds} seeds; environment steps until 20 deterministic episodes had the task's"
        " threshold, median, and interquartile mean of the final score with its 95% bootstrap interval.",
        "",
        "| " + " | ".join(head) + " |",
        "|---|" + "---|" * (2 * len(tasks) + 1),
    ]
    for setting in experiment.settings:
        cells = [setting.label]
        for task in tasks:
            mine = outcomes[task, setting.label]
            cells += [_steps(mine), _percent(estimate([scores(task, mine)]))]
        cells.append(_percent(estimate([scores(task, outcomes[task, setting.label]) for task in tasks])))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _table_of_tasks(experiment: Experiment, tasks: Sequence[str], outcomes: Outcomes) -> str:
    (setting,) = experiment.settings
    lines = [
        f"{experiment.description} Environment steps until 20 deterministic episodes had the task's threshold,"
        " median over seeds, and the mean return over the evaluations in the last fifth of each seed's run,"
        " beside rl-zoo's PPO.",
        "",
        "| task | environment steps | to the threshold | return, by seed | mean | rl-zoo |",
        "|---|---|---|---|---|---|",
    ]
    for task in tasks:
        mine = outcomes[task, setting.label]
        returns = [outcome.final_return for outcome in mine]
        cells = [
            task,
            f"{experiment.budget(TASKS[task]).total_steps / 1000:,.0f}k",
            f"{_steps(mine)} to {TASKS[task].threshold:g}",
            ", ".join(f"{each:,.0f}" for each in returns),
            f"{statistics.mean(returns):,.0f}",
            f"{TASKS[task].reference_return:,.0f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _steps(outcomes: Sequence[Outcome]) -> str:
    median = steps_to_threshold(outcomes)
    reached = sum(outcome.env_steps_to_threshold is not None for outcome in outcomes)
    shown = f"{median / 1000:.0f}k" if np.isfinite(median) else "never"
    return shown if reached == len(outcomes) else f"{shown} ({reached} of {len(outcomes)})"


def _percent(mean: Estimate) -> str:
    return f"{100 * mean.mean:.0f} [{100 * mean.low:.0f}, {100 * mean.high:.0f}]"


def draw(experiment: Experiment, tasks: Sequence[str], outcomes: Outcomes, path: Path) -> None:
    """Draws learning curves: one row of panels per group, one panel per task.

    Bands contain the middle half of the seeds.
    """
    groups = list(dict.fromkeys(setting.group for setting in experiment.settings if setting.group)) or [""]
    panels = [(group, task) for group in groups for task in tasks]
    columns = min(len(tasks), _COLUMNS) if len(groups) == 1 else len(tasks)
    rows = -(-len(panels) // columns)
    size = (4.2 * columns + 2.6, 3.0 * rows)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for number, (axis, (group, task)) in enumerate(zip(axes.flat, panels, strict=False)):
        settings = [setting for setting in experiment.settings if setting.group in ("", group)]
        for setting, colour in zip(settings, COLOURS, strict=False):
            budget = experiment.budget(TASKS[task])
            _draw_curves(axis, budget.total_steps, outcomes[task, setting.label], colour, setting.name)
        axis.axhline(TASKS[task].threshold, color="#8c959f", linewidth=0.8, linestyle=":")
        axis.set_title(f"{task}, {group}" if group else task, fontsize=10)
        axis.set_xlabel("environment steps", fontsize=8)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:.0f}k")
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
        if number % columns == 0:
            axis.set_ylabel("return, deterministic episodes", fontsize=8)
        if number % columns == columns - 1 and len(settings) > 1:
            axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_curves(axis: Axes, total_steps: int, outcomes: Sequence[Outcome], colour: str, name: str) -> None:
    grid = np.linspace(0.0, total_steps, 100)
    curves = np.array([np.interp(grid, *np.array(outcome.curve).T) for outcome in outcomes])
    low, middle, high = np.quantile(curves, [0.25, 0.5, 0.75], axis=0)
    axis.plot(grid, middle, color=colour, label=name)
    axis.fill_between(grid, low, high, color=colour, alpha=0.15, linewidth=0)


def write_outcomes(outcomes: Outcomes, path: Path) -> None:
    """Writes the curves and the results of all runs as JSON, without their durations."""
    write_json(
        path,
        [
            {
                "task": task,
                "setting": setting,
                "seed": seed,
                "env_steps_to_threshold": outcome.env_steps_to_threshold,
                "final_return": outcome.final_return,
                "updates": outcome.updates,
                "env_steps": [steps for steps, _ in outcome.curve],
                "returns": [round(value, 2) for _, value in outcome.curve],
            }
            for (task, setting), each in outcomes.items()
            for seed, outcome in enumerate(each)
        ],
    )
