"""The table and the plot of docs/episode-ends.md, from the results of benchmarks/episode_ends.py."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

from examples.episode_ends import STATES, TOLERANCE, Treatment, exact_values, report

PAGE = Path(__file__).parents[1] / "docs" / "episode-ends.md"
PLOT = PAGE.parents[1] / "results" / "episode_ends.png"
_COLOURS = ("#2da44e", "#57606a", "#1f6feb", "#8250df", "#d1681a", "#bf3989")
_MARKERS = ("o", "s", "^", "v", "D", "P", "X", "*")


@dataclass(frozen=True, slots=True)
class Measured:
    """The learnt values of one system.

    Attributes:
        system: Name of the system.
        measured_on: Date of the measurement.
        versions: Versions of its packages.
        truncated, whole: Value of each state for each seed, with random truncations and without any.
    """

    system: str
    measured_on: str
    versions: dict[str, str]
    truncated: list[list[float]]
    whole: list[list[float]]

    @property
    def medians(self) -> list[float]:
        """The median over the seeds of the value of each state, with random truncations."""
        return [float(value) for value in np.median(self.truncated, axis=0)]

    @property
    def treatment(self) -> Treatment | None:
        """The treatment of ends that every seed shows; None if a seed shows none or another one."""
        found = {report(values).treatment for values in self.truncated}
        return found.pop() if len(found) == 1 else None

    def error(self, treatment: Treatment) -> float:
        """Returns the largest difference to the values of a treatment, over all seeds and states."""
        return max(report(values).errors[treatment] for values in self.truncated)

    @property
    def error_of_whole(self) -> float:
        """The largest difference to the correct values without truncations, over all seeds and states."""
        return float(np.abs(np.array(self.whole) - exact_values(Treatment.CORRECT)).max())


def read(path: Path) -> list[Measured]:
    """Returns the stored results; none if the file does not exist."""
    return [Measured(**each) for each in json.loads(path.read_text())] if path.exists() else []


def exact_table() -> str:
    """Returns a Markdown table of the exact values of each treatment."""
    lines = [f"| treatment | {' | '.join(f'state {state}' for state in range(STATES))} |", "|---" * (STATES + 1) + "|"]
    lines += [
        f"| {treatment.value} | {' | '.join(f'{value:.2f}' for value in exact_values(treatment))} |"
        for treatment in Treatment
    ]
    return "\n".join(lines)


def measured_table(measured: Sequence[Measured]) -> str:
    """Returns a Markdown table with one row per system."""
    lines = [
        "| system | learnt values | treatment | distance from it | from the correct one | without truncation | versions"
        " | date |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in measured:
        values = ", ".join(f"{value:.2f}" for value in each.medians)
        treatment = each.treatment
        lines.append(
            f"| {each.system} | {values} | {treatment.value if treatment else f'none within {TOLERANCE:.2f}'}"
            f" | {f'{each.error(treatment):.3f}' if treatment else ''} | {each.error(Treatment.CORRECT):.3f}"
            f" | {each.error_of_whole:.3f} | {', '.join(' '.join(pair) for pair in each.versions.items())}"
            f" | {each.measured_on} |"
        )
    return "\n".join(lines)


def with_table(text: str, measured: Sequence[Measured]) -> str:
    """Returns a page with the current tables between their marks."""
    for name, table in (("exact values", exact_table()), ("measured values", measured_table(measured))):
        begin, end = f"<!-- {name}: written by benchmarks.episode_ends -->", f"<!-- end of {name} -->"
        before, rest = text.split(begin, 1)
        text = f"{before}{begin}\n{table}\n{end}{rest.split(end, 1)[1]}"
    return text


def draw(measured: Sequence[Measured], path: Path) -> None:
    """Draws the values of each treatment as lines, and the learnt ones as marks on them."""
    figure, axis = plt.subplots(figsize=(9.0, 4.4), layout="constrained")
    states = np.arange(STATES)
    for treatment, colour in zip(Treatment, _COLOURS, strict=True):
        values = exact_values(treatment)
        axis.hlines(values, states - 0.35, states + 0.35, color=colour, linewidth=1.4, label=treatment.value)
    for number, (each, marker) in enumerate(zip(measured, _MARKERS, strict=False)):
        # Side by side, because most marks would cover each other.
        shift = 0.1 * (number - (len(measured) - 1) / 2.0)
        axis.plot(
            states + shift,
            each.medians,
            linestyle="",
            marker=marker,
            markersize=5,
            color=_COLOURS[list(Treatment).index(each.treatment)] if each.treatment else "black",
            markeredgecolor="black",
            markeredgewidth=0.6,
            label=each.system.replace("`", ""),
        )
    axis.set_xticks(states)
    axis.set_xlabel("state", fontsize=9)
    axis.set_ylabel("value", fontsize=9)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8, frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)
