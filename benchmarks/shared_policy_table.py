"""The table of `make bench-shared-policy`."""

import statistics
from collections.abc import Mapping
from typing import Any

Document = Mapping[str, Any]

HEAD = "| task | policies | steps and training until the threshold | memory together | mean return | worst variant |"


def table(document: Document) -> str:
    """Returns the table of all tasks and policies, and what its columns mean."""
    seeds = range(1, document["seeds"] + 1)
    lines = []
    for name, task in document["tasks"].items():
        runs = [run for run in document["runs"] if run["task"] == name]
        for row in dict.fromkeys(run["row"] for run in runs):
            of_seeds = [[run for run in runs if (run["row"], run["seed"]) == (row, seed)] for seed in seeds]
            lines.append(f"| {len(task['variants'])} {name} | {row} | {_cells(of_seeds, task['threshold'])} |")
    thresholds = " and ".join(f"{task['threshold']:g} ({name})" for name, task in document["tasks"].items())
    about = (
        f"Medians over {document['seeds']} seeds. The threshold is a mean return of {thresholds}, in all variants"
        " together or in each. Steps, seconds and memory (PSS) of separate policies are added up. Returns are of the"
        " best policies after all steps."
    )
    return "\n".join([HEAD, "|---|---|---|---|---|---|", *lines, "", about])


def _cells(of_seeds: list[list[Document]], threshold: float) -> str:
    """Returns the cells of the runs of each seed."""
    complete = []
    for runs in of_seeds:
        reached = [_reached(run, threshold) for run in runs]
        if None not in reached:
            complete.append([sum(part) for part in zip(*(each for each in reached if each), strict=True)])
    shown = "never"
    if complete:
        steps, seconds = (statistics.median(found[part] for found in complete) for part in (0, 1))
        shown = f"{steps / 1e3:.0f}k, {seconds:.0f} s"
    missing = f" ({len(complete)} of {len(of_seeds)})" if len(complete) < len(of_seeds) else ""
    memory = statistics.median(sum(run["memory_bytes"] for run in runs) for runs in of_seeds)
    returns = [[each for run in runs for each in run["final_returns"]] for runs in of_seeds]
    mean = statistics.median(statistics.fmean(each) for each in returns)
    worst = statistics.median(min(each) for each in returns)
    return f"{shown}{missing} | {memory / 1e9:.1f} GB | {mean:.1f} | {worst:.1f}"


def _reached(run: Document, threshold: float) -> tuple[int, float] | None:
    """Returns the steps and the seconds at the first evaluation with this return; None if there was none."""
    points = zip(run["env_steps"], run["seconds"], run["returns"], strict=True)
    return next(((steps, seconds) for steps, seconds, mean in points if mean >= threshold), None)
