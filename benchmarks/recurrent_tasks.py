"""`make bench-recurrent-tasks`: CartPole without velocities to a return of 475, beside RecurrentPPO."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from benchmarks.side_by_side import ROOT, Course, Run, in_turn, peer, prepare, ratios_of, show
from examples.hidden_velocity import ENV_ID
from tests.support.results.provenance import of_this_run

OUTPUT = ROOT / "build" / "bench" / "recurrent_tasks.json"
COURSE = Course(ENV_ID, "hidden_velocity", threshold=475.0, interval_steps=2_048, total_steps=100_000)
SETTINGS = ("tuned", "zoo")
"""Settings of RecurrentPPO, of `benchmarks.peers.recurrent_loop`."""
MOST_TIME = 0.7
"""Largest ratio of Penstock's wall time to that of RecurrentPPO."""


def main() -> int:
    """Measures, prints and writes everything; returns 1 if a bound was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS), help="of RecurrentPPO")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    console = Console()
    prepare("sb3_contrib")
    runs: list[Run] = []

    def keep(run: Run) -> None:
        # Written after every run, because a later one may fail.
        runs.append(run)
        _write(arguments.output, runs)

    def of_peer(name: str) -> Callable[[int], Run]:
        system, further = f"recurrent_{name}", [f"--settings={name}"]
        return lambda seed: peer(system, "sb3_contrib", "recurrent_loop", COURSE, seed, further)

    in_turn(COURSE, arguments.rounds, {name: of_peer(name) for name in arguments.settings}, keep, console)
    show(runs, console)
    console.print(f"written to {arguments.output}")
    walls = [value for name, value in ratios_of(runs).items() if name.startswith("wall")]
    return 0 if all(value is not None and value <= MOST_TIME for value in walls) else 1


def _write(path: Path, runs: Sequence[Run]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    results = {
        "provenance": of_this_run(),
        "threshold": COURSE.threshold,
        "runs": [asdict(run) for run in runs],
        "ratios": ratios_of(runs),
    }
    path.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
