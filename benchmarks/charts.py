"""Draws the charts of README.md from result files, for `benchmarks.tables`.

A chart has the commit and the date of its file, because it stays when the code changes. Its background is transparent,
and its colours have the same contrast on white and on a dark page.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from benchmarks import zoo_report
from tests.support.results.result_files import Index, Result, commits_of

Document = Mapping[str, Any]

WIDTH, HEIGHT, MARGIN, ROW = 272, 180, 6, 15
"""Pixels: three charts fit beside each other in a README on a wide screen, and one on a phone."""
OURS, OTHERS, INK = "#3f83e8", "#8c949e", "#737b84"
NAMES = {
    "penstock": "Penstock",
    "sb3": "Stable-Baselines3",
    "cleanrl": "CleanRL",
    "pufferlib": "PufferLib",
    "rllib": "RLlib",
    "sample_factory": "Sample Factory",
}


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: the lines of its title, its drawing below them, its notes, and its text for readers without pictures."""

    title: tuple[str, ...]
    drawing: str
    notes: tuple[str, ...]
    text: str


def steps(document: Document) -> Chart:
    """Returns the steps to the threshold as shares of the peer's, on the tasks that count."""
    compared = zoo_report.comparisons(zoo_report.runs_of(document))
    counted = [each for each in compared if each.counts]
    rows = [(each.goal.name, each.ratio("env_steps_to_threshold")) for each in counted]
    reached = sorted(((name, share) for name, share in rows if share is not None), key=lambda row: row[1])
    seeds = {len(each.ours) for each in counted}
    scale = (WIDTH - 2 * MARGIN - 36) / max(1.0, *(share for _, share in reached))
    parts = []
    for number, (name, share) in enumerate(reached):
        y = number * 2 * ROW
        parts += [_label(y, name), _bar(y, share * scale, OURS, f"{share:.0%}", at=MARGIN + scale + 6)]
    bottom = len(reached) * 2 * ROW
    parts.append(_line(MARGIN + scale, 4, MARGIN + scale, bottom))
    return Chart(
        ("Environment steps to the threshold,", "relative to Stable-Baselines3's PPO"),
        "".join(parts),
        (
            "Line: rl-zoo's settings. Bars: our defaults.",
            f"Medians of {_numbers(seeds)} seeds; {len(counted)} of {len(compared)} tasks count.",
        ),
        "Environment steps to the threshold, relative to Stable-Baselines3's PPO with rl-zoo's settings: "
        + ", ".join(f"{name} {share:.0%}" for name, share in reached),
    )


def pace(document: Document) -> Chart:
    """Returns steps per second and CPU time per step of all systems, on the work on which peers come nearest."""
    cases = [case for case in document["like_for_like"] if case["rounds"]]
    work = {(case["env_id"], case["minibatch"]) for case in cases}
    same = min(([case for case in cases if _work(case) == each] for each in sorted(work)), key=_lead)
    same = sorted(same, key=lambda case: -case["env_steps_per_s"])
    columns = (("env_steps_per_s", 1e-3, "1,000 steps/s"), ("cpu_s_per_million_steps", 1.0, "CPU s per million"))
    half = (WIDTH - 2 * MARGIN) // 2
    parts = [_text(MARGIN + column * half, -8, name) for column, (*_, name) in enumerate(columns)]
    texts = []
    for number, case in enumerate(same):
        y = number * 2 * ROW
        parts.append(_label(y, NAMES[case["system"]]))
        for column, (name, unit, _) in enumerate(columns):
            largest = max(each[name] for each in same)
            length = case[name] / largest * (half - 38)
            colour = OURS if case["system"] == "penstock" else OTHERS
            parts.append(_bar(y, length, colour, f"{case[name] * unit:.0f}", x=MARGIN + column * half))
        texts.append(
            f"{NAMES[case['system']]} {case['env_steps_per_s'] / 1e3:.0f}k steps/s and"
            f" {case['cpu_s_per_million_steps']:.0f} CPU seconds per million steps"
        )
    env_id, minibatch = _work(same[0])
    return Chart(
        ("The same work on two cores:", " "),
        "".join(parts),
        (
            f"{env_id}, minibatches of {minibatch:,}: of {len(work)} works,",
            "the one with Penstock's smallest lead.",
        ),
        f"The same work on the same two cores, {env_id} with minibatches of {minibatch:,}: {'; '.join(texts)}",
    )


def kills(document: Document) -> Chart:
    """Returns the version of the policy at each kill of a learner."""
    versions = [each["used"] for each in document["kills"]]
    lost = max(each["first"] - each["used"] for each in document["kills"])
    restart_s = statistics.median(each["restart_s"] for each in document["kills"])
    left, bottom = 40, HEIGHT - 18
    width = WIDTH - left - MARGIN - 4
    points = [
        (left + width * (number + 1) / len(versions), bottom - (bottom - 8) * version / versions[-1])
        for number, version in enumerate(versions)
    ]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in [(left, bottom), *points])
    ticks = "".join(_line(x, y - 4, x, y + 4, colour=OURS) for x, y in points)
    parts = [
        _line(left, 8, left, bottom),
        _line(left, bottom, left + width, bottom),
        f'<polyline points="{path}" fill="none" stroke="{OURS}" stroke-width="1.5"/>{ticks}',
        _text(left - 4, 16, f"{versions[-1]:,}", anchor="end"),
        _text(left - 4, bottom, "0", anchor="end"),
        _text(left + 8, 20, "version of the policy"),
        _text(left + width, bottom + 15, f"{len(versions)} kills", anchor="end"),
    ]
    segments = document["segments_numbered"] - document["segments_stored"]
    facts = (
        f"A kill loses at most {lost} version; {segments} segments lost.",
        f"Training again after {restart_s:.1f} s (median).",
    )
    return Chart(
        (f"A learner that is killed {len(versions)} times", "trains on: a mark is a SIGKILL"),
        "".join(parts),
        facts,
        f"The version of the policy rises to {versions[-1]:,} while its learner is killed {len(versions)} times."
        f" {' '.join(facts)}",
    )


CHARTS: Mapping[str, tuple[str, str, Callable[[Document], Chart]]] = {
    "steps.svg": ("zoo_tasks.json", "results-rl-zoo.md", steps),
    "pace.svg": ("loop.json", "BENCHMARKS.md#the-whole-loop", pace),
    "kills.svg": ("learner_kills.json", "benchmarks-failures.md#promises", kills),
}
"""Result file, the place in docs that explains it, and drawing of each chart, by its name below docs/images."""


def pictures(index: Index) -> dict[str, str]:
    """Returns the charts as SVG, by their names."""
    return {
        name: _svg(draw(_document(index, result)), index.results[result]) for name, (result, _, draw) in CHARTS.items()
    }


def lines(index: Index) -> str:
    """Returns the charts in Markdown for README.md, each with a link to its explanation."""
    return "\n".join(
        f"[![{draw(_document(index, result)).text}](docs/images/{name})](docs/{place})"
        for name, (result, place, draw) in CHARTS.items()
    )


def _document(index: Index, result: str) -> Document:
    found: Document = index.results[result].document()
    return found


def _svg(chart: Chart, result: Result) -> str:
    notes = [*chart.notes, _origin(result)]
    top, below = 2 * ROW + 14, 20
    height = top + HEIGHT + below + len(notes) * 14
    titles = "".join(
        f'<text x="{MARGIN}" y="{ROW * (number + 1)}" font-weight="600">{escape(line)}</text>'
        for number, line in enumerate(chart.title)
    )
    texts = "".join(
        f'<text x="{MARGIN}" y="{top + HEIGHT + below + 14 * number}" font-size="10.5">{escape(note)}</text>'
        for number, note in enumerate(notes)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
        " font-family=\"system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif\""
        f' font-size="12" fill="{INK}">\n{titles}\n<g transform="translate(0 {top})">{chart.drawing}</g>'
        f"\n{texts}\n</svg>\n"
    )


def _origin(result: Result) -> str:
    document = result.document()
    commit = result.published or commits_of(document)[0]
    return f"Measured {result.measured(document)[:10]}, commit {commit[:12]}."


def _work(case: Mapping[str, Any]) -> tuple[str, int]:
    return case["env_id"], case["minibatch"]


def _lead(same: Sequence[Mapping[str, Any]]) -> float:
    paces = {case["system"]: case["env_steps_per_s"] for case in same}
    ours = paces.pop("penstock")
    return float(ours / max(paces.values()))


def _numbers(counts: set[int]) -> str:
    return " to ".join(str(count) for count in dict.fromkeys((min(counts), max(counts))))


def _label(y: float, text: str) -> str:
    return _text(MARGIN, y + 11, text)


def _bar(y: float, length: float, colour: str, value: str, x: float = MARGIN, at: float | None = None) -> str:
    return (
        f'<rect x="{x:g}" y="{y + ROW}" width="{max(length, 1):.1f}" height="9" rx="2" fill="{colour}"/>'
        f"{_text(x + length + 5 if at is None else at, y + ROW + 9, value)}"
    )


def _line(x1: float, y1: float, x2: float, y2: float, *, colour: str = INK) -> str:
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
