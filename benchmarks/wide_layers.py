"""`make bench-wide-layers`: whole training loops, like for like, with hidden layers of 64 to 512 units.

The work is that of the table "like for like" of `make bench-loop`, with minibatches of 512 steps of CartPole. Penstock,
Stable-Baselines3 and PufferLib run in turn, round by round, on the same two cores; CleanRL's program has layers of 64.
The result is build/bench/wide_layers.json. Only ratios within one file are meaningful. Exit code 1 if a ratio is below
`LEAST_PACE`, if Penstock takes more CPU time per step than the best peer, or if a run failed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import like_for_like
from benchmarks.like_for_like import Pace
from benchmarks.loop import CORES
from benchmarks.observed import ROOT, RunFailed
from tests.support.results.provenance import of_this_run

OUTPUT = ROOT / "build" / "bench" / "wide_layers.json"
SYSTEMS = ("penstock", "sb3", "pufferlib")
ENV_ID = "CartPole-v1"
MINIBATCH = 512
LEAST_PACE = {64: 5.0, 128: 3.5, 256: 2.2, 512: 1.5}
"""Goal for the ratio of Penstock's steps/s to the fastest peer's, by units of a hidden layer."""


def case_of(units: int, system: str, paces: list[Pace]) -> dict[str, Any]:
    """Returns the medians over the rounds of one system; they are None if all rounds failed."""
    names = ("env_steps_per_s", "cpu_s_per_million_steps")
    medians = {name: statistics.median(getattr(pace, name) for pace in paces) if paces else None for name in names}
    return {"units": units, "system": system, **medians, "rounds": [asdict(pace) for pace in paces]}


def ratios_of(cases: list[dict[str, Any]], units: int) -> tuple[float, float]:
    """Returns two ratios: Penstock's steps/s to the fastest peer's, and its CPU time per step to the least of a peer.

    They are 0 and infinity if a system has no result.
    """
    ours, *peers = (case for case in cases if case["units"] == units)
    if any(case["env_steps_per_s"] is None for case in (ours, *peers)):
        return 0.0, float("inf")
    pace = ours["env_steps_per_s"] / max(case["env_steps_per_s"] for case in peers)
    return pace, ours["cpu_s_per_million_steps"] / min(case["cpu_s_per_million_steps"] for case in peers)


def main() -> int:
    """Measures, prints and writes all cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--units", nargs="+", type=int, choices=LEAST_PACE, default=list(LEAST_PACE))
    parser.add_argument("--seconds", type=float, default=like_for_like.SECONDS, help="of each run")
    arguments = parser.parse_args()
    # Child processes inherit it.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    paces: dict[tuple[int, str], list[Pace]] = {(units, name): [] for units in arguments.units for name in SYSTEMS}
    failed = False
    for seed in range(arguments.rounds):
        for units, system in paces:
            try:
                pace = like_for_like.run(system, ENV_ID, MINIBATCH, seed, arguments.seconds, units)
            except (RunFailed, subprocess.SubprocessError, OSError) as error:
                failed = True
                print(f"round {seed + 1}, {units} units, {system}: FAILED: {error}")
            else:
                paces[units, system].append(pace)
                print(f"round {seed + 1}, {units} units, {system}: {pace.env_steps_per_s:,.0f} steps/s", flush=True)
    cases = [case_of(units, system, found) for (units, system), found in paces.items()]
    table = Table("units", "steps/s over the fastest peer", "at least", "CPU time over the least", "met")
    for units in arguments.units:
        pace_ratio, cpu_ratio = ratios_of(cases, units)
        met = pace_ratio >= LEAST_PACE[units] and cpu_ratio < 1.0
        failed |= not met
        table.add_row(str(units), f"{pace_ratio:.2f}", f"{LEAST_PACE[units]}", f"{cpu_ratio:.2f}", str(met))
    Console().print(table)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps({"provenance": of_this_run(), "cases": cases}, indent=1) + "\n")
    print(f"written to {OUTPUT}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
