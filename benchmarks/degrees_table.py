"""The table of off-policy degrees in docs/policy-lag.md, from results/degrees.json."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

AUTOMATIC = "auto"


def table(document: Mapping[str, Any]) -> str:
    """Returns the medians of each task by degree, and how the automatic degree compares with the best fixed one."""
    runs: Sequence[Mapping[str, Any]] = document["runs"]
    settings = list(dict.fromkeys(each["degree"] for each in runs))
    lines = [
        "| task | " + " | ".join(settings) + " | auto over the best fixed degree |",
        "|---|" + "---|" * (len(settings) + 1),
    ]
    for task in dict.fromkeys(each["task"] for each in runs):
        own = {name: [each for each in runs if (each["task"], each["degree"]) == (task, name)] for name in settings}
        seconds = {name: _median(each, "seconds") for name, each in own.items()}
        best = min(value for name, value in seconds.items() if name != AUTOMATIC)
        cells = [_cell(seconds[name], _median(each, "env_steps")) for name, each in own.items()]
        seeds = len(own[AUTOMATIC])
        lines.append(f"| {task}, {seeds} seeds | " + " | ".join(cells) + f" | {seconds[AUTOMATIC] / best:.2f} |")
    return "\n".join(lines)


def _median(runs: Sequence[Mapping[str, Any]], key: str) -> float:
    return statistics.median(math.inf if each[key] is None else each[key] for each in runs)


def _cell(seconds: float, steps: float) -> str:
    return f"{seconds:.1f} s, {steps / 1e3:,.0f}k" if math.isfinite(seconds) else "not solved"
