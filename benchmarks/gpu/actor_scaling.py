"""Environment steps per second of `penstock train` with 1, 2, 4, 8 and 14 actor processes.

The batch grows with the actors, so that each of them always has windows in flight. Each batch is used once, so that the
actors and their data path are the bottleneck. If the learner is the bottleneck instead, the table shows that it hardly
waits. Counts for which the machine has too few cores are left out. The result is build/bench/gpu_actors.json. `--steps
20000 --counts 1 2` is a check that takes a minute.
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

# Runs as a file too.
sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import penstock_loop
from penstock.presets import preset

OUTPUT = Path(__file__).parents[2] / "build" / "bench" / "gpu_actors.json"
COUNTS = (1, 2, 4, 8, 14)
LEAST_AT_8 = 7.5
"""Times the pace of one actor."""
WINDOWS = 2
"""Of each actor in a batch."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run.

    Attributes:
        actors: Processes.
        env_steps_per_s: Its pace.
        over_one: The same over that of one actor.
        learner_cpu_share: Processor seconds of the learner a second; near 1 it is what the actors wait for.
        replay_cpu_share: The same of the replay service.
    """

    actors: int
    env_steps_per_s: float
    over_one: float | None
    learner_cpu_share: float
    replay_cpu_share: float


def measure(name: str, actors: int, steps: int, device: str, one: float | None) -> Case:
    """The pace of a preset with so many actors, over so many steps of each."""
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
    """Measures, prints, writes, and says whether eight actors bring what they should, if eight were measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="pendulum")
    parser.add_argument("--counts", nargs="+", type=int, default=list(COUNTS))
    parser.add_argument("--steps", type=int, default=500_000, help="of each actor")
    parser.add_argument("--device", default="auto", help="as learner.device")
    arguments = parser.parse_args()
    console, cores = Console(), len(os.sched_getaffinity(0))
    cases: list[Case] = []
    for actors in arguments.counts:
        if actors > cores:
            console.print(f"{actors} actors: left out on {cores} cores")
            continue
        one = next((case.env_steps_per_s for case in cases if case.actors == 1), None)
        cases.append(measure(arguments.preset, actors, arguments.steps, arguments.device, one))
        console.print(f"{actors} actors: {cases[-1].env_steps_per_s:,.0f} steps/s", highlight=False)
        OUTPUT.parent.mkdir(parents=True, exist_ok=True)
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
        machine = {"cores": cores, "processor": platform.processor() or platform.machine(), "gpu": gpu}
        found = {**machine, "torch": torch.__version__, "preset": arguments.preset}
        OUTPUT.write_text(json.dumps({**found, "cases": [asdict(case) for case in cases]}, indent=2) + "\n")
    table = Table("actors", "steps/s", "over one", "learner", "replay service", title="cores used on the right")
    for case in cases:
        over = f"{case.over_one:.2f}" if case.over_one else ""
        shares = (f"{case.learner_cpu_share:.2f}", f"{case.replay_cpu_share:.2f}")
        table.add_row(str(case.actors), f"{case.env_steps_per_s:,.0f}", over, *shares)
    console.print(table)
    console.print(f"written to {OUTPUT}")
    return 0 if all(case.over_one is None or case.over_one >= LEAST_AT_8 for case in cases if case.actors == 8) else 1


if __name__ == "__main__":
    sys.exit(main())
