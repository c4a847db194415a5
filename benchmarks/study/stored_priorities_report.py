"""Runs, table and plot of the study of stored priorities, which is written to its page and results/."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import matplotlib.pyplot as plt

from benchmarks.study.hypotheses import REANALYSIS
from benchmarks.study.report import COLOURS
from benchmarks.study.running import Crew, Run, in_parallel
from benchmarks.study.stored_priorities import AGES, POINTS, measure_run, name_of
from helpers.provenance import of_this_run
from penstock.files import write_json

NAME, TITLE = "stored-priorities", "Stored priorities"

Measured = Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]
"""Measurements of `stored_priorities.measure_run` by task and setting, one per seed."""

_COLUMNS = 4


def measure_all(tasks: Sequence[str], seeds: int, crew: Crew, folder: Path, on_run: Callable[[Run], None]) -> Measured:
    """Returns the measurements of all runs of the study of reanalysis, and calls `on_run` with each that is done.

    Raises as `running.in_parallel`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    runs = [
        Run(REANALYSIS, task, setting, seed)
        for seed in range(seeds)
        for task in tasks
        for setting in REANALYSIS.settings
    ]
    found = in_parallel(measure_run, {run: (run, folder) for run in runs}, crew, lambda run, result: on_run(run))
    return {
        task: {
            setting.label: [found[Run(REANALYSIS, task, setting, seed)] for seed in range(seeds)]
            for setting in REANALYSIS.settings
        }
        for task in tasks
    }


def write(measured: Measured, path: Path) -> None:
    """Writes the measurements of all runs."""
    write_json(path, {"provenance": of_this_run(), "tasks": dict(measured)})


def table(measured: Measured) -> str:
    """Returns a Markdown table with one row per task and setting, of medians over the points of all seeds."""
    seeds = len(next(iter(next(iter(measured.values())).values())))
    lines = [
        f"Replay as in the study of reanalysis, {seeds} seeds, {POINTS} points of each run. Rank correlation of the"
        " stored priority with the one under the current parameters, among segments of similar age in versions,"
        " medians; and the share of reanalysis in the CPU time of the learner, mean.",
        "",
        "| task | setting | " + " | ".join(f"age {name_of(ages)}" for ages in AGES) + " | CPU time |",
        "|---|---|" + "---|" * (len(AGES) + 1),
    ]
    for task, settings in measured.items():
        for label, runs in settings.items():
            found = [_median(runs, name_of(ages)) for ages in AGES]
            share = mean(run["reanalysis_share"] for run in runs)
            cells = [task, label, *("-" if each is None else f"{each:.2f}" for each in found), f"{100 * share:.1f}%"]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _median(runs: Sequence[Mapping[str, Any]], ages: str) -> float | None:
    known = [value for run in runs for point in run["points"] if (value := point["correlations"][ages]) is not None]
    return median(known) if known else None


def draw(measured: Measured, path: Path) -> None:
    """Draws the medians by age, one panel per task."""
    rows, columns = -(-len(measured) // _COLUMNS), min(_COLUMNS, len(measured))
    figure, axes = plt.subplots(
        rows, columns, figsize=(3.2 * columns + 2.2, 2.8 * rows), squeeze=False, layout="constrained"
    )
    names = [name_of(ages) for ages in AGES]
    for axis in axes.flat[len(measured) :]:
        axis.set_axis_off()
    for axis, (task, settings) in zip(axes.flat, measured.items(), strict=False):
        for (label, runs), colour in zip(settings.items(), COLOURS, strict=False):
            shown = [(name, value) for name in names if (value := _median(runs, name)) is not None]
            axis.plot([name for name, _ in shown], [value for _, value in shown], "o-", color=colour, label=label)
        axis.set_title(task, fontsize=10)
        axis.set_ylim(0.0, 1.02)
        axis.set_xlabel("age in versions", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    axes.flat[columns - 1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
