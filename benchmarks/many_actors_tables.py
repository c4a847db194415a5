"""The texts about many actors over hosts in docs/benchmarks-scale.md, from results/many_actors.json."""

import math
import statistics
from collections.abc import Mapping
from typing import Any

Document = Mapping[str, Any]
Case = Mapping[str, Any]

TARGETS = (1_000, 10_000)
BUSY = 0.7
"""Share of a core to which a process is planned, so that it can catch up after a pause."""
_SERVICES = ("replay", "learner")


def scale(document: Document) -> str:
    """Returns what the same number of actors cost on one and more hosts."""
    lines = [
        "| hosts of actors | steps/s | segments of an actor, over the mean | Jain's index"
        " | an actor: MB, its own MB, core | replay service: MB, core | learner: MB, core |",
        "|---|---|---|---|---|---|---|",
    ]
    for case in _cases(document, "scale"):
        rates, actor = case["rates"], case["actor"]
        services = " | ".join(f"{case[name]['megabytes']:.0f}, {case[name]['cpu_share']:.0%}" for name in _SERVICES)
        lines.append(
            f"| {case['hosts']} | {rates['steps_per_s']:,.0f}"
            f" | {rates['least_share']:.2f} to {rates['largest_share']:.2f} | {rates['jain']:.4f}"
            f" | {actor['megabytes']:.1f}, {actor['unique_megabytes']:.1f}, {actor['cpu_share']:.2%} | {services} |"
        )
    return "\n".join(lines)


def spread(document: Document) -> str:
    """Returns how much the same actors collect on several hosts, over what they collect on one."""
    paces: dict[int, list[float]] = {}
    for case in _cases(document, "spread"):
        paces.setdefault(case["hosts"], []).append(case["rates"]["steps_per_s"])
    one, several = paces[min(paces)], paces[max(paces)]
    medians = statistics.median(one), statistics.median(several)
    case = _cases(document, "spread")[0]
    return (
        f"{case['actors']} actors of {case['environments']} environments each collect {medians[0]:,.0f} steps/s on one"
        f" host and {medians[1]:,.0f} on {max(paces)}, {medians[1] / medians[0]:.2f} times as many (medians of"
        f" {len(one)} rounds in turn)."
    )


def larger(document: Document) -> str:
    """Returns what more actors of the same pace need, in proportion to what was measured on the most hosts."""
    case = _cases(document, "scale")[-1]
    lines = [
        "| actors | steps/s | cores of replay services, so shards | cores of a learner | to the services | from them"
        " | memory of the actors |",
        "|---|---|---|---|---|---|---|",
    ]
    for actors in (case["actors"], *TARGETS):
        times = actors / case["actors"]
        replay, learner = (times * case[name]["cpu_share"] for name in _SERVICES)
        received, sent = (times * case[name] * 8 / 1e6 for name in ("received_per_s", "sent_per_s"))
        lines.append(
            f"| {actors:,} | {times * case['rates']['steps_per_s']:,.0f} | {replay:.1f}, {math.ceil(replay / BUSY)}"
            f" | {learner:.1f} | {received:,.0f} Mbit/s | {sent:,.0f} Mbit/s"
            f" | {actors * case['actor']['unique_megabytes'] / 1e3:,.0f} GB |"
        )
    most = {name: case["actors"] * BUSY / case[name]["cpu_share"] for name in _SERVICES}
    lines += [
        "",
        f"At {BUSY:.0%} of a core, a replay service serves {most['replay']:,.0f} such actors, and a learner"
        f" {most['learner']:,.0f}.",
    ]
    return "\n".join(lines)


def _cases(document: Document, kind: str) -> list[Case]:
    return [case for case in document["cases"] if case["kind"] == kind]
