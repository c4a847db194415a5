"""Runs, table and plot of the study of headroom, which is written to its page and results/."""

import bisect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib.pyplot as plt

from benchmarks.study.headroom import SIGNALS, measure_run
from benchmarks.study.report import COLOURS
from benchmarks.study.running import Crew, in_parallel
from helpers.provenance import of_this_run
from penstock.files import write_json

NAME, TITLE = "headroom", "Headroom"

Measured = Mapping[str, Sequence[Mapping[str, Any]]]
"""Measurements of `headroom.measure_run` by task, one per seed."""

_COLUMNS = 4


def measure_all(
    tasks: Sequence[str], seeds: int, crew: Crew, folder: Path, on_run: Callable[[str, int], None]
) -> Measured:
    """Returns the measurements of all runs, and calls `on_run` with the task and seed of each that is done.

    Raises as `running.in_parallel`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    runs = {(task, seed): (task, seed, folder) for seed in range(seeds) for task in tasks}
    measured = in_parallel(measure_run, runs, crew, lambda run, result: on_run(*run))
    return {task: [measured[task, seed] for seed in range(seeds)] for task in tasks}


def write(measured: Measured, path: Path) -> None:
    """Writes the measurements of all runs."""
    write_json(path, {"provenance": of_this_run(), "tasks": dict(measured)})


def table(measured: Measured) -> str:
    """Returns a Markdown table with one row per task, of medians over the points of all seeds."""
    seeds = len(next(iter(measured.values())))
    points = len(next(iter(measured.values()))[0]["points"])
    lines = [
        f"Prioritized replay as in the study of replay, {seeds} seeds, {points} points of each run. Second moment of"
        " the gradient estimate for draws by each signal and age, relative to draws by age alone, medians: 1 is no"
        " gain, 0.5 as if the batch were twice as large. The live column is the estimate of training at these points,"
        " beside `stored` at the same points, from its first measurement on.",
        "",
        "| task | " + " | ".join(SIGNALS) + " | live, stored | rank correlation with the gradient: stored, current |",
        "|---|" + "---|" * (len(SIGNALS) + 2),
    ]
    for task, runs in measured.items():
        ratios = [point["ratios"] for run in runs for point in run["points"]]
        cells = [task, *(f"{median(each[name] for each in ratios):.2f}" for name in SIGNALS)]
        live, stored = _beside_live(runs)
        cells.append(f"{median(live):.2f}, {median(stored):.2f}" if stored else "-")
        ranks = [point["correlations"] for run in runs for point in run["points"]]
        cells.append(", ".join(f"{median(each[name] for each in ranks):.2f}" for name in ("stored", "current")))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _beside_live(runs: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[float]]:
    """Returns the newest live ratio at each point that follows one, and the ratio of the pool at that point."""
    pairs = [
        (run["live"][known - 1][1], point["ratios"]["stored"])
        for run in runs
        for point in run["points"]
        if (known := bisect.bisect_right(run["live"], point["version"], key=lambda live: live[0]))
    ]
    return [live for live, _ in pairs], [stored for _, stored in pairs]


def draw(measured: Measured, path: Path) -> None:
    """Draws the ratios against the progress of the runs, one panel per task; lines are medians over the seeds."""
    rows = -(-len(measured) // _COLUMNS)
    columns = min(_COLUMNS, len(measured))
    figure, axes = plt.subplots(
        rows, columns, figsize=(3.6 * columns + 1.6, 2.8 * rows), squeeze=False, layout="constrained"
    )
    for axis in axes.flat[len(measured) :]:
        axis.set_axis_off()
    for axis, (task, runs) in zip(axes.flat, measured.items(), strict=False):
        for name, colour in zip(SIGNALS, COLOURS, strict=False):
            versions = [point["version"] for point in runs[0]["points"]]
            middle = [median(run["points"][index]["ratios"][name] for run in runs) for index in range(len(versions))]
            axis.plot(versions, middle, color=colour, label=name, marker=".")
        axis.axhline(1.0, color="#8c959f", linewidth=0.8, linestyle=":")
        axis.set_title(task, fontsize=10)
        axis.set_ylim(0.0, 1.5)
        axis.set_xlabel("version", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    axes.flat[columns - 1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
