"""The tables of `make bench-tuning`, -intrinsic-rewards, -centralised-critic and -watching."""

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.intrinsic_rewards import successes

Document = Mapping[str, Any]


def tuning(document: Document) -> str:
    """Returns the trials of a search from the defaults, and what its best settings reach with other seeds."""
    values, finals, comparison = document["values"], document["final_returns"], document["comparison"]
    best = max(range(len(values)), key=lambda number: -float("inf") if values[number] is None else values[number])
    of_defaults = [each["final_return"] for each in comparison["runs"]["a"]] if comparison else []
    rows = [
        ("trial 0, the defaults", f"{values[0]:.1f}", _mean(of_defaults)),
        (f"trial {best}, the best", f"{values[best]:.1f}", _mean(finals)),
    ]
    if not comparison:
        rows = [("trial 0, the defaults and the best", f"{values[0]:.1f}", _mean(finals))]
    pruned, minutes = document["states"].count("pruned"), sum(filter(None, document["seconds"])) / 60.0
    about = (
        f"{document['env_id']}: {document['trials']} trials of {document['steps']:,} steps, which took {minutes:.0f}"
        f" minutes together; pruned: {pruned}. In brackets: smallest and largest of the seeds."
    )
    verdict = [f"`penstock compare`: {comparison['verdict']}."] if comparison else []
    return "\n".join(
        [
            f"| settings | return with the seed of the search | with {len(finals)} other seeds |",
            "|---|---|---|",
            *(f"| {' | '.join(row)} |" for row in rows),
            "",
            " ".join([about, *verdict]),
        ]
    )


def intrinsic_rewards(document: Document) -> str:
    """Returns the successes of runs with and without intrinsic rewards."""
    rows = []
    for env_id, row in dict.fromkeys((run["env_id"], run["row"]) for run in document["runs"]):
        runs = [run for run in document["runs"] if (run["env_id"], run["row"]) == (env_id, row)]
        shares = [
            ", ".join(f"{successes(run[key]):.0%}" for run in runs) for key in ("final_returns", "sampled_returns")
        ]
        steps = f"{document['tasks'][env_id]:,}"
        rows.append(f"| {' | '.join((env_id, steps, row, *shares))} |")
    return "\n".join(
        [
            "| task | steps | intrinsic rewards | successful episodes of each seed | with sampled actions |",
            "|---|---|---|---|---|",
            *rows,
            "",
            "All other settings are the defaults. Episodes are new ones with the best policy of each run.",
        ]
    )


def centralised_critic(document: Document) -> str:
    """Returns the returns of agents whose critic sees their own view, or the whole game."""
    rows = []
    for row in dict.fromkeys(run["row"] for run in document["runs"]):
        runs = [run for run in document["runs"] if run["row"] == row]
        finals = ", ".join(f"{run['final_return']:.1f}" for run in runs)
        explained = ", ".join(f"{run['explained']:.3f}" for run in runs)
        rows.append(f"| {row} | {finals} | {explained} |")
    return "\n".join(
        [
            "| the critic sees | return of an agent, by seed | explained variance, by seed |",
            "|---|---|---|",
            *rows,
            "",
            f"simple_spread of three agents, {document['steps']:,} steps, the defaults. Returns are of new episodes"
            " with the best policy; explained variance is the mean over the last fifth of a run.",
        ]
    )


def watching(document: Document) -> str:
    """Returns the pace of watched runs beside plain ones, and the CPU time of the processes that watch."""
    ratio = document["ratio"]
    watched, plain = ([run for run in document["runs"] if run["form"] == form] for form in ("watched", "plain"))
    rows = [
        _cost("training, not watched", plain, "training"),
        *(_cost("training, watched" if kind == "training" else kind, watched, kind) for kind in watched[0]["cpu_s"]),
    ]
    pages = statistics.median(run["pages"] for run in watched)
    return "\n".join(
        [
            "| processes | number | CPU seconds per run | share of a core |",
            "|---|---|---|---|",
            *rows,
            "",
            f"A watched run has {ratio['mean']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}] of the pace of another"
            f" (geometric mean of {document['rounds']} pairs of runs of {document['steps']:,} steps, 95% interval)."
            f" Of {document['film_every']} evaluations, one was filmed, and the page was read {pages:.0f} times."
            " Numbers in the table are medians.",
        ]
    )


def _mean(returns: list[float]) -> str:
    return f"{statistics.fmean(returns):.1f} [{min(returns):.1f}, {max(returns):.1f}]" if returns else ""


def _cost(name: str, runs: list[Document], kind: str) -> str:
    number, cpu_s = (statistics.median(run[key][kind] for run in runs) for key in ("processes", "cpu_s"))
    share = statistics.median(run["cpu_s"][kind] / run["seconds"] for run in runs)
    return f"| {name} | {number:.0f} | {cpu_s:.1f} | {share:.1%} |"
