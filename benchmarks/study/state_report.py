"""Runs, table and plot of the study of stored states, which is written to docs/memory.md and results/."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean

import matplotlib.pyplot as plt
import torch

from benchmarks.study.experiments import REPLAY, Setting
from benchmarks.study.report import COLOURS
from benchmarks.study.running import Crew, in_parallel
from benchmarks.study.stored_states import METHODS, measure, record
from benchmarks.study.tasks import RECURRENT_TASK, TASKS
from helpers.provenance import of_this_run
from penstock.config import Config
from penstock.files import write_json

NAME, TITLE = "stored_states", "Stored states"
LAGS = (1, 8, 32)
"""Versions between the acting policy and the one that trains."""

ROWS = (0, 1, 2, 4, 8, 16, 31)
"""Rows of the segments of 32 steps."""

_SHOWN = {"first": 0, "middle": 16, "last": 31}
_LEAST_SHOWN = 0.01
_EVERY = 2
_MEASURES = {
    "state": "difference of the output, share of its norm",
    "kl": "KL divergence of the action, nats",
    "value": "difference of the value, scaled rewards",
}

Measured = Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]
"""Means by lag (as text), measure and method, at each of `ROWS`; beside the measures, the number of segments."""


def configuration(seed: int) -> Config:
    """Returns the configuration of the runs: those with prioritized replay of the study of replay."""
    return REPLAY.configuration(TASKS[RECURRENT_TASK], Setting("prioritized"), seed)


def measure_seed(seed: int, path: Path) -> Measured:
    """Returns the measurements of one run, from this file if it exists."""
    if not path.exists():
        torch.set_num_threads(1)
        recording = record(configuration(seed))
        write_json(path, {str(lag): asdict(measure(recording, lag, ROWS, every=_EVERY)) for lag in LAGS})
    measured: Measured = json.loads(path.read_text())
    return measured


def measure_all(seeds: int, crew: Crew, folder: Path, on_seed: Callable[[int], None]) -> list[Measured]:
    """Returns the measurements of all seeds, and calls `on_seed` with each seed that is done.

    Raises as `running.in_parallel`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    runs = {seed: (seed, folder / f"{NAME}-{seed}.json") for seed in range(seeds)}
    return list(in_parallel(measure_seed, runs, crew, lambda seed, measured: on_seed(seed)).values())


def write(measured: Sequence[Measured], path: Path) -> None:
    """Writes the measurements of all seeds, in order, and the rows at which they were taken."""
    write_json(path, {"provenance": of_this_run(), "rows": ROWS, "seeds": measured})


def table(measured: Sequence[Measured]) -> str:
    """Returns a Markdown table with one row per lag and method, and the first, middle and last row of a segment."""
    segments = sum(int(each[str(lag)]["segments"]) for each in measured for lag in LAGS)  # type: ignore[call-overload]
    places = " | ".join(_SHOWN)
    lines = [
        f"{RECURRENT_TASK} with prioritized replay, {len(measured)} seeds, {segments:,} comparisons of segments within"
        " one episode, at their first, middle and last row. All columns compare with the exact state."
        " `policy` is the acting version with its own state.",
        "",
        f"| lag | state | output, % of its norm: {places} | KL, 0.001 nats: {places} | value, 0.01: {places} |",
        "|---|---|" + "---|" * 9,
    ]
    for lag in LAGS:
        for method in METHODS:
            cells = [str(lag), method]
            for name, scale in (("state", 100.0), ("kl", 1000.0), ("value", 100.0)):
                for row in _SHOWN.values():
                    figure = mean(each[str(lag)][name][method][ROWS.index(row)] for each in measured)
                    cells.append(_shown(scale * figure))
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _shown(figure: float) -> str:
    if figure < _LEAST_SHOWN:
        return f"<{_LEAST_SHOWN}"
    return f"{figure:.2g}" if figure < 10.0 else f"{figure:.0f}"


def draw(measured: Sequence[Measured], path: Path) -> None:
    """Draws the measures against the row of the segment: one row of panels per lag. Bands span the seeds."""
    figure, axes = plt.subplots(len(LAGS), 3, figsize=(15.2, 3.0 * len(LAGS)), squeeze=False, layout="constrained")
    for lag, panels in zip(LAGS, axes, strict=True):
        for (name, title), axis in zip(_MEASURES.items(), panels, strict=True):
            for method, colour in zip(METHODS, COLOURS, strict=False):
                curves = [each[str(lag)][name][method] for each in measured]
                middle = [mean(values) for values in zip(*curves, strict=True)]
                low, high = ([bound(values) for values in zip(*curves, strict=True)] for bound in (min, max))
                axis.plot(ROWS, middle, color=colour, label=method, marker=".")
                axis.fill_between(ROWS, low, high, color=colour, alpha=0.15, linewidth=0)
            axis.set_title(f"{title}, lag {lag}", fontsize=10)
            axis.set_yscale("log")
            # Smaller differences are rounding.
            axis.set_ylim(bottom=1e-6)
            axis.set_xlabel("row of the segment", fontsize=8)
            axis.tick_params(labelsize=8)
            axis.spines[["top", "right"]].set_visible(False)
        panels[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
