"""Draws the first rows of the training dashboard with the data of a Prometheus, as a picture for the documentation.

`python -m tests.e2e.picture http://localhost:9090 docs/images/dashboard.png`. Places, titles, queries, legends, units
and thresholds are those in the dashboard's JSON; matplotlib draws them, in place of Grafana.
"""

import argparse
import json
import math
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

from tests.e2e.panels import DASHBOARDS, VARIABLES, Prometheus

mpl.use("Agg")
from matplotlib import pyplot

ROWS, POINTS = 4, 200
COLUMNS, COLUMN_INCHES, LINE_INCHES = 24, 0.55, 0.33
"""Grafana's grid, and the size of its cells in the picture."""
LEGEND_ENTRIES, SIGNS = 4, 48
"""Most entries of a legend, and most characters of an entry; two entries of half of them fit beside each other."""
GREY = "#57606a"


@dataclass(frozen=True, slots=True)
class Series:
    """One series of a panel: labels, legend, and points as minutes before now and values."""

    labels: dict[str, str]
    legend: str
    minutes: list[float]
    values: list[float]


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the first rows of the training dashboard.")
    parser.add_argument("url", help="address of the Prometheus, such as http://localhost:9090")
    parser.add_argument("output", type=Path, help="file of the picture")
    parser.add_argument("--minutes", type=float, default=15.0, help="range of the charts")
    arguments = parser.parse_args()
    prometheus, panels = Prometheus(arguments.url), json.loads((DASHBOARDS / "training.json").read_text())["panels"]
    lines = [panel["gridPos"]["y"] for panel in panels if panel["type"] == "row"][ROWS]
    figure = pyplot.figure(figsize=(COLUMNS * COLUMN_INCHES, lines * LINE_INCHES), dpi=100)
    for panel in panels:
        place, is_chart = panel["gridPos"], panel["type"] == "timeseries"
        if place["y"] >= lines:
            continue
        # Room for the title above, and for the axis and the legend below a chart.
        above, below, left = (1.2, 2.0, 1.0) if is_chart else (1.0, -0.1, 0.3)
        x, y = (place["x"] + left) / COLUMNS, 1 - (place["y"] + place["h"] - below) / lines
        width, height = (place["w"] - left - 0.3) / COLUMNS, (place["h"] - above - below) / lines
        axes = figure.add_axes((x, y, width, height))
        axes.set_title(panel["title"], loc="left", fontsize=8 if "targets" in panel else 11, fontweight="bold")
        found = [each for target in panel.get("targets", ()) for each in series(target, prometheus, arguments.minutes)]
        if is_chart:
            draw_chart(axes, panel, found)
            axes.set_xlim(-arguments.minutes, 0)
        else:
            axes.axis("off")
            {"row": lambda *_: None, "table": draw_table, "stat": draw_numbers}[panel["type"]](axes, panel, found)
    figure.savefig(arguments.output)


def series(target: dict[str, Any], prometheus: Prometheus, minutes: float) -> list[Series]:
    """Returns the series of a query."""
    query, now = target["expr"], time.time()
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    span = {"start": now - 60 * minutes, "end": now, "step": 60 * minutes / POINTS}
    found = []
    for each in prometheus.ask("query_range", {"query": query, **span})["result"]:
        legend = re.sub(r"\{\{(\w+)\}\}", lambda name: each["metric"].get(name[1], ""), target["legendFormat"])  # noqa: B023
        at, values = zip(*each["values"], strict=True)
        times = [(moment - now) / 60 for moment in at]
        found.append(Series(each["metric"], " ".join(legend.split()), times, [float(value) for value in values]))
    return found


def draw_table(axes: Any, panel: dict[str, Any], found: list[Series]) -> None:
    """Draws a line for each series that has not ended."""
    columns = panel["transformations"][0]["options"]["include"]["names"]
    lines = ["  ".join(each.labels.get(name, "") for name in columns) for each in found if each.minutes[-1] > -0.5]
    axes.text(0, 0.9, "\n".join(lines) or panel["fieldConfig"]["defaults"]["noValue"], va="top", fontsize=9)


def draw_numbers(axes: Any, panel: dict[str, Any], found: list[Series]) -> None:
    """Draws the latest values, in the colours of the thresholds."""
    defaults, mode = panel["fieldConfig"]["defaults"], panel["options"]["textMode"]
    for number, each in enumerate(found):
        value, steps = each.values[-1], defaults["thresholds"]["steps"]
        colour = [step["color"] for step in steps if step["value"] is None or value >= step["value"]][-1]
        text = in_unit(value, defaults["unit"])
        text = {"name": each.legend, "value_and_name": f"{each.legend}  {text}"}.get(mode, text)
        size = 14 if len(found) == 1 else 10
        axes.text(0, 1 - (number + 0.5) / len(found), text, va="center", fontsize=size, color=colour)


def draw_chart(axes: Any, panel: dict[str, Any], found: list[Series]) -> None:
    """Draws curves, with their latest values in the legend."""
    defaults = panel["fieldConfig"]["defaults"]
    for each in found:
        label = f"{each.legend}: {in_unit(each.values[-1], defaults['unit'])}"
        axes.plot(each.minutes, each.values, linewidth=1, label=label[-SIGNS:])
    for step in defaults["thresholds"]["steps"][1:]:
        axes.axhline(step["value"], color="red", linestyle="--", linewidth=1)
    axes.set_ylim(defaults.get("min"), defaults.get("max"))
    axes.xaxis.set_major_formatter(lambda minutes, _: f"{minutes:g} min" if minutes else "now")
    axes.yaxis.set_major_formatter(lambda value, _: in_unit(value, defaults["unit"]))
    axes.tick_params(labelsize=6, colors=GREY)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    entries, labels = axes.get_legend_handles_labels()
    columns = 1 if max(map(len, labels), default=0) > SIGNS / 2 else 2
    place = {"loc": "upper left", "bbox_to_anchor": (-0.02, -0.1)}
    axes.legend(handles=entries[:LEGEND_ENTRIES], ncols=columns, fontsize=6, frameon=False, **place)
    if not found:
        axes.text(0.5, 0.5, "No data", transform=axes.transAxes, ha="center", color=GREY)


def in_unit(value: float, unit: str) -> str:
    """Returns a number as Grafana shows it in one of its units."""
    if not math.isfinite(value):
        return "no data"
    if unit == "percentunit":
        return f"{100 * value:.3g}%"
    if unit == "s":
        length, name = next(
            (each for each in ((86400, "days"), (3600, "h"), (60, "min")) if value >= each[0]), (1, "s")
        )
        return f"{value / length:.3g} {name}"
    base, signs, end = (1024, ("", "Ki", "Mi", "Gi", "Ti"), "B") if unit == "bytes" else (1000, ("", "k", "M", "G"), "")
    power = min(len(signs) - 1, int(math.log(max(abs(value), 1), base)))
    return f"{value / base**power:.3g} {signs[power]}{end}".strip() + unit.partition("suffix:")[2]


if __name__ == "__main__":
    main()
