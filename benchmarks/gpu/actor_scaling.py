"""Environment steps per second of `penstock train` with 1, 2, 4, 8 and 14 actor processes.

The batch grows with the number of actors, so that each of them always has windows in flight. Each batch is used once,
so that the actors and their data path are the bottleneck. If the learner is the bottleneck instead, its share of a core
in the table is near 1. Counts for which the machine has too few cores are skipped. The result is
build/bench/gpu/actors_DEVICE.json. `--steps 20000 --counts 1 2` is a check that takes a minute.
"""

import argparse
import json
import os
import platform
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

# Allows this file to run as a script.
sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import penstock_loop
from penstock.presets import preset
from tests.support.results.provenance import of_this_run

RESULTS = Path(__file__).parents[2] / "build" / "bench" / "gpu"
COUNTS = (1, 2, 4, 8, 14)
LEAST_AT_8 = 7.5
"""Smallest pace of eight actors, as a multiple of the pace of one."""
WINDOWS = 2
"""Windows of each actor in a batch."""


@dataclass(frozen=True, slots=True)
class Case:
    """The result of one run.

    Attributes:
        actors: Number of actor processes.
        env_steps_per_s: Environment steps per second.
        over_one: Ratio of this pace to the pace of one actor.
        learner_cpu_share: CPU seconds of the learner per second; near 1, the learner is the bottleneck.
        replay_cpu_share: CPU seconds of the replay service per second.
    """

    actors: int
    env_steps_per_s: float
    over_one: float | None
    learner_cpu_share: float
    replay_cpu_share: float


def measure(name: str, actors: int, steps: int, device: str, one: float | None) -> Case:
    """Measures the pace of a preset with this number of actors and this number of steps per actor."""
    changes = {
        "actors": actors,
        "learner.device": device,
        "sampling.batch-segments": WINDOWS * preset(name).actor.environments * actors,
        "sampling.fresh-fraction": 1.0,
        "ppo.epochs": 1,
    }
    pace = penstock_loop.throughput(name, steps * actors, 0, changes)
    speed = pace.env_steps_per_s

    def share(service: str) -> float:
        return pace.cpu_s_per_million[service] * speed / 1e6

    return Case(actors, speed, speed / one if one else None, share("learner"), share("replay"))


def main() -> int:
    """Measures, prints and writes every case; returns 1 if eight actors scale worse than the bound."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="pendulum")
    parser.add_argument("--counts", nargs="+", type=int, default=list(COUNTS))
    parser.add_argument("--steps", type=int, default=500_000, help="environment steps of each actor")
    parser.add_argument("--device", default="auto", help="setting learner.device")
    arguments = parser.parse_args()
    output = RESULTS / f"actors_{arguments.device}.json"
    console, cores = Console(), len(os.sched_getaffinity(0))
    cases: list[Case] = []
    for actors in arguments.counts:
        if actors > cores:
            console.print(f"{actors} actors: skipped, because this machine has {cores} cores")
            continue
        one = next((case.env_steps_per_s for case in cases if case.actors == 1), None)
        cases.append(measure(arguments.preset, actors, arguments.steps, arguments.device, one))
        console.print(f"{actors} actors: {cases[-1].env_steps_per_s:,.0f} steps/s", highlight=False)
        output.parent.mkdir(parents=True, exist_ok=True)
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
        machine = {"cores": cores, "processor": platform.processor() or platform.machine(), "gpu": gpu}
        found = {**machine, "torch": torch.__version__, "preset": arguments.preset}
        cases_found = {"cases": [asdict(case) for case in cases]}
        output.write_text(json.dumps({"provenance": of_this_run(), **found, **cases_found}, indent=2) + "\n")
    table = Table("actors", "steps/s", "over one", "learner", "replay service", title="right columns: cores in use")
    for case in cases:
        over = f"{case.over_one:.2f}" if case.over_one else ""
        shares = (f"{case.learner_cpu_share:.2f}", f"{case.replay_cpu_share:.2f}")
        table.add_row(str(case.actors), f"{case.env_steps_per_s:,.0f}", over, *shares)
    console.print(table)
    console.print(f"written to {output}")
    return 0 if all(case.over_one is None or case.over_one >= LEAST_AT_8 for case in cases if case.actors == 8) else 1


if __name__ == "__main__":
    sys.exit(main())
