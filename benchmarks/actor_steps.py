"""`make bench-actor-steps`: processor time of an actor per environment step, in NumPy and in torch.

One process collects windows without services, with the settings of a preset and 8, 64 and 256 environments. Processor
time hardly depends on other work on the machine. The result is build/bench/actor_steps.json.
"""

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from penstock.acting.collector import Collector
from penstock.acting.environments.vectors import Environments
from penstock.acting.policies.runners import runner_of
from penstock.acting.values.spaces import segment_schema
from penstock.algo.network import Network
from penstock.algo.policies import Policy
from penstock.apps.environments import make_configured
from penstock.config import Config
from penstock.machine import library_variables
from penstock.presets import preset
from penstock.types.run import Assignment, Weights
from penstock.types.spaces import Inference
from tests.support.results.provenance import of_this_run
from tests.support.training.policies import weights_of

OUTPUT = Path(__file__).parents[1] / "build" / "bench" / "actor_steps.json"
LIBRARIES: dict[str, Inference] = {"numpy": "auto", "torch": "torch"}

_WINDOWS = 4
"""Windows of one reading."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Microseconds of processor time per environment step: the median of all readings, and the least and the most."""

    preset: str
    environments: int
    library: str
    median: float
    least: float
    most: float


def read(
    config: Config, environments: Environments, weights: Weights, inference: Inference, seconds: float
) -> list[float]:
    """Returns readings of microseconds per step, over this many seconds after some first windows."""
    count, schema = environments.count, segment_schema(environments.spec, **config.recorded)
    assignment = Assignment(0, 1, tuple(range(count)), token=b"", seed=config.run.seed)
    collector = Collector(environments, assignment, schema=schema, discount=config.ppo.discount)
    runner, readings = runner_of(weights, inference=inference, module=config.policy.module), list[float]()
    for _ in range(_WINDOWS):
        collector.collect(runner)
    ended = time.perf_counter() + seconds
    while time.perf_counter() < ended:
        started = time.process_time()
        for _ in range(_WINDOWS):
            collector.collect(runner)
        readings.append(1e6 * (time.process_time() - started) / (_WINDOWS * count * schema.unroll_length))
    return readings


def main() -> int:
    """Measures and prints every number of environments, and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--presets", nargs="+", default=["cartpole", "pendulum"])
    parser.add_argument("--environments", nargs="+", type=int, default=[8, 64, 256])
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    table, results = Table("preset", "environments", "library", "us per step (least to most)"), list[Reading]()
    for name in arguments.presets:
        config = preset(name)
        for count in arguments.environments:
            environments = make_configured(config.environment, count)
            weights = weights_of(Policy(environments.spec, Network(**dict(config.policy))), 0)
            for library, inference in LIBRARIES.items():
                found = read(config, environments, weights, inference, arguments.seconds)
                reading = Reading(name, count, library, statistics.median(found), min(found), max(found))
                results.append(reading)
                spread = f"{reading.median:.2f} ({reading.least:.2f} to {reading.most:.2f})"
                table.add_row(name, str(count), library, spread)
            environments.close()
    console = Console()
    console.print(table)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    result = {"provenance": of_this_run(), "readings": [asdict(each) for each in results]}
    OUTPUT.write_text(json.dumps(result, indent=2) + "\n")
    console.print(f"written to {OUTPUT}")
    return 0


if __name__ == "__main__":
    # NumPy is imported already, and a service's NumPy has one thread.
    if not os.environ.get("OPENBLAS_NUM_THREADS"):
        library_variables.prepare(os.environ)
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks.actor_steps", *sys.argv[1:]])
    sys.exit(main())
