"""Tables and plots of a study, written to a page between the marks of each experiment."""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from benchmarks.study.estimates import LEAST, Ratio, over_tasks, paired_ratio
from benchmarks.study.experiments import Experiment, Setting
from benchmarks.study.tasks import TASKS
from penstock.comparing.statistics import interquartile_mean
from penstock.machine.files import write_json
from tests.support.results.provenance import of_this_run
from tests.support.training.single_process import Outcome

Outcomes = Mapping[tuple[str, str], Sequence[Outcome]]
"""Outcomes by task and label of the setting, one per seed."""

_COLUMNS = 4
_EVERY_TASK = "all tasks"

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
    """Returns Markdown tables with one row per task and one column per setting, and those of compared settings."""
    if len(experiment.settings) == 1:
        return _table_of_tasks(experiment, tasks, outcomes)
    seeds = len(next(iter(outcomes.values())))
    lines = [
        f"{experiment.description} {seeds} seeds; environment steps until 20 deterministic episodes had the task's"
        " threshold, median; interquartile mean of the final score and, in brackets, the scores of the lowest and the"
        " highest seed."
    ]
    for group in _groups(experiment):
        settings = _settings_of(experiment, group)
        lines += ["", f"| {group} | " + " | ".join(setting.name for setting in settings) + " |"]
        lines.append("|---|" + "---|" * len(settings))
        for task in tasks:
            mine = [outcomes[task, setting.label] for setting in settings]
            cells = [f"{_steps(each)}; {_percent(scores(task, each))}" for each in mine]
            lines.append("| " + " | ".join([task, *cells]) + " |")
        every = [[score for task in tasks for score in scores(task, outcomes[task, each.label])] for each in settings]
        lines.append(f"| {_EVERY_TASK} | " + " | ".join(_middle(each) for each in every) + " |")
    return "\n".join([*lines, *_comparisons(experiment, tasks, outcomes)])


def _groups(experiment: Experiment) -> list[str]:
    """Returns the groups of the settings; an empty name if there is none."""
    return list(dict.fromkeys(setting.group for setting in experiment.settings if setting.group)) or [""]


def _settings_of(experiment: Experiment, group: str) -> list[Setting]:
    """Returns the settings of a group and those without one."""
    return [setting for setting in experiment.settings if setting.group in ("", group)]


def ratios(experiment: Experiment, tasks: Sequence[str], outcomes: Outcomes) -> dict[tuple[str, str], list[Ratio]]:
    """Returns the ratios of steps for each pair of compared settings: one per task, and last that of all tasks."""
    found: dict[tuple[str, str], list[Ratio]] = {}
    for labels in experiment.compared:
        of_tasks = [
            paired_ratio(
                [
                    (_counted(experiment, task, ours), _counted(experiment, task, theirs))
                    for ours, theirs in zip(outcomes[task, labels[0]], outcomes[task, labels[1]], strict=True)
                ]
            )
            for task in tasks
        ]
        found[labels] = [*of_tasks, over_tasks(of_tasks)]
    return found


def _comparisons(experiment: Experiment, tasks: Sequence[str], outcomes: Outcomes) -> Iterator[str]:
    """Yields the lines of the table of compared settings."""
    if not experiment.compared:
        return
    yield ""
    yield (
        "Steps to the threshold in comparison: geometric mean of the ratios of runs with equal seeds. A run that did"
        " not reach it counts with all its steps. In brackets: 95% t interval of the logarithms, over the seeds of a"
        f" task, and over the means of the tasks in the last row; fewer than {LEAST} have none."
    )
    yield ""
    yield "|  | " + " | ".join(f"{ours} / {theirs}" for ours, theirs in experiment.compared) + " |"
    yield "|---|" + "---|" * len(experiment.compared)
    found = ratios(experiment, tasks, outcomes)
    for index, task in enumerate((*tasks, _EVERY_TASK)):
        yield "| " + " | ".join([task, *(_ratio(found[labels][index]) for labels in experiment.compared)]) + " |"


def _counted(experiment: Experiment, task: str, outcome: Outcome) -> float:
    steps = outcome.env_steps_to_threshold
    return float(experiment.budget(TASKS[task]).total_steps if steps is None else steps)


def _ratio(found: Ratio) -> str:
    shown = "" if found.interval is None else " [{:.2f}, {:.2f}]".format(*found.interval)
    return f"{found.mean:.2f}{shown}"


def _table_of_tasks(experiment: Experiment, tasks: Sequence[str], outcomes: Outcomes) -> str:
    (setting,) = experiment.settings
    lines = [
        f"{experiment.description} Environment steps until 20 deterministic episodes had the task's threshold,"
        " median over seeds; mean return over the evaluations in the last 20% of each seed's run; and the return of"
        " rl-zoo's PPO.",
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
    shown = f"{median / 1000:.{0 if median >= 20_000 else 1}f}k" if np.isfinite(median) else "never"
    return shown if reached == len(outcomes) else f"{shown} ({reached} of {len(outcomes)})"


def _percent(values: Sequence[float]) -> str:
    return f"{_middle(values)} [{100 * min(values):.0f}, {100 * max(values):.0f}]"


def _middle(values: Sequence[float]) -> str:
    return f"{100 * float(interquartile_mean(np.array(values))):.0f}"


def draw(experiment: Experiment, tasks: Sequence[str], outcomes: Outcomes, path: Path) -> None:
    """Draws learning curves: one row of panels per group, one panel per task.

    Bands contain the middle half of the seeds.
    """
    groups = _groups(experiment)
    panels = [(group, task) for group in groups for task in tasks]
    columns = min(len(tasks), _COLUMNS) if len(groups) == 1 else len(tasks)
    rows = -(-len(panels) // columns)
    size = (4.2 * columns + 2.6, 3.0 * rows)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for number, (axis, (group, task)) in enumerate(zip(axes.flat, panels, strict=False)):
        settings = _settings_of(experiment, group)
        for setting, colour in zip(settings, COLOURS[: len(settings)], strict=True):
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


def draw_ratios(experiment: Experiment, tasks: Sequence[str], outcomes: Outcomes, path: Path) -> None:
    """Draws the ratios of steps of compared settings with their intervals, one row per task."""
    found, names = ratios(experiment, tasks, outcomes), (*tasks, _EVERY_TASK)
    figure, axis = plt.subplots(figsize=(8.0, 1.2 + 0.42 * len(names)), layout="constrained")
    rows = np.arange(len(names), dtype=np.float64)[::-1]
    axis.axhspan(-0.5, 0.5, color="#f6f8fa", zorder=0)
    axis.axvline(1.0, color="#57606a", linewidth=1.0, zorder=1)
    offsets = np.linspace(0.24, -0.24, len(experiment.compared))
    subjects = list(dict.fromkeys(ours for ours, _ in experiment.compared))
    of_one = len(subjects) == 1
    for (labels, estimates), offset, colour in zip(found.items(), offsets, COLOURS[: len(found)], strict=True):
        low, high = np.array([each.interval or (each.mean, each.mean) for each in estimates]).T
        middle = [each.mean for each in estimates]
        axis.hlines(rows + offset, low, high, color=colour, linewidth=1.5, alpha=0.6)
        label = f"relative to {labels[1]}" if of_one else " / ".join(labels)
        axis.plot(middle, rows + offset, "o", color=colour, markersize=5, label=label)
    axis.set_xscale("log")
    highest = max(each.mean for estimates in found.values() for each in estimates)
    axis.set_xlim(0.1, max(4.0, 1.2 * highest))
    above = [2**power for power in range(1, 8) if 2**power < max(4.0, 1.2 * highest)]
    axis.set_xticks([0.125, 0.25, 0.5, 1.0, *above], ["1/8", "1/4", "1/2", "1", *map(str, above)])
    axis.minorticks_off()
    axis.set_yticks(rows, names)
    axis.tick_params(labelsize=9)
    subject = f", {subjects[0]}" if of_one else ""
    axis.set_xlabel(f"ratio of environment steps to the threshold{subject}", fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=2, fontsize=8, frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_curves(axis: Axes, total_steps: int, outcomes: Sequence[Outcome], colour: str, name: str) -> None:
    grid = np.linspace(0.0, total_steps, 100)
    curves = np.array([np.interp(grid, *np.array(outcome.curve).T) for outcome in outcomes])
    low, middle, high = np.quantile(curves, [0.25, 0.5, 0.75], axis=0)
    axis.plot(grid, middle, color=colour, label=name)
    axis.fill_between(grid, low, high, color=colour, alpha=0.15, linewidth=0)


def write_outcomes(outcomes: Outcomes, path: Path) -> None:
    """Writes the curves and the results of all runs as JSON, without their durations, after their provenance."""
    runs = [
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
    ]
    write_json(path, {"provenance": of_this_run(), "runs": runs})


def read_outcomes(path: Path) -> dict[tuple[str, str], list[Outcome]]:
    """Returns the outcomes of a file of `write_outcomes`, by task and label, in the order of the seeds.

    Files of 25 November 2026 and before are a list of the runs.
    """
    document = json.loads(path.read_text())
    found: dict[tuple[str, str], list[Outcome]] = {}
    for run in document["runs"] if isinstance(document, dict) else document:
        curve = tuple(zip(run["env_steps"], run["returns"], strict=True))
        outcome = Outcome(curve, run["env_steps_to_threshold"], run["final_return"], run["updates"], 0.0)
        found.setdefault((run["task"], run["setting"]), []).append(outcome)
    return found
