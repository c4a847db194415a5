"""The table of insertion by writer processes, from results/insertion.json."""

from collections.abc import Mapping
from typing import Any

Document = Mapping[str, Any]

GOALS = {
    ("vector", 8): 1.5,
    ("vector", 16): 2.5,
    ("vector", 64): 5.0,
    ("vector", 128): 8.0,
    ("frames_once", 16): 2.0,
    ("pixel", 8): 1.5,
}
"""Smallest ratios to the peer's rate of four distant writers, by segment and window."""

TLS_SHARE = 0.7
"""Share of a goal that is to be reached by TLS."""

SLOWEST_MS = 10.0
"""Goal for the 99th percentile of an acknowledged insertion."""


def insertion(document: Document) -> str:
    """Returns rates, costs and latencies by segment, writers, window and way."""
    return "\n".join(
        [
            "| segment | writers | window | way | rate over the peer's | goal"
            " | CPU us per segment, ours and the peer's | ms until acknowledged, 99th percentile: ours, the peer's |",
            "|---|---|---|---|---|---|---|---|",
            *(_row(row) for row in document["rows"]),
        ]
    )


def _row(row: Mapping[str, Any]) -> str:
    ours, theirs = row["penstock"], row["reverb"]
    sums = [each["service_us"] + each["writers_us"] for each in (ours, theirs)]
    costs = [f"{cost:,.3g}" if cost < 1_000 else f"{cost:,.0f}" for cost in sums]
    waits = [f"{each['median_ms']:.1f}, {each['slow_ms']:.1f}" for each in (ours, theirs)]
    cells = (
        f"`{row['segment']}`",
        str(row["writers"]),
        str(row["window"]),
        row["way"],
        f"{row['ratio']:.2f}",
        _goal(row),
        ", ".join(costs),
        "; ".join(waits),
    )
    return f"| {' | '.join(cells)} |"


def _goal(row: Mapping[str, Any]) -> str:
    goal = GOALS.get((row["segment"], row["window"])) if row["writers"] == 4 else None
    if goal is None or row["way"] not in ("tcp", "tls"):
        return ""
    goal *= TLS_SHARE if row["way"] == "tls" else 1.0
    return f"{goal:.3g}, {'met' if row['ratio'] >= goal else '**missed**'}"
