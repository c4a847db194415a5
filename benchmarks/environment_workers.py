"""`make bench-environment-workers`: a step of environments in one process and in worker processes.

Eight environments take steps with fixed actions: CartPole-v1, and an environment whose step sleeps for 1 or 10
milliseconds. A step that sleeps takes no processor time, as if each worker had a core of its own. The time is elapsed
time, and the processor time includes the workers; all forms take turns. The result is
build/bench/environment_workers.json.
"""

import argparse
import statistics
import sys
import time
from collections import defaultdict
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil

from penstock.acting.environments.vectors import Environments
from penstock.machine.files import write_json
from tests.support.environments.made import make_environments
from tests.support.results.provenance import of_this_run

OUTPUT = Path(__file__).parents[1] / "build" / "bench" / "environment_workers.json"
COUNT = 8
WORKERS = (0, 1, 2, 4, 8)
"""Numbers of worker processes; 0: the environments are in the measuring process."""


class Sleeping(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole-v1 whose step sleeps for some milliseconds, as one does that waits for a simulator."""

    def __init__(self, sleep_ms: float) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self._sleep_s = 1e-3 * sleep_ms

    def step(self, action: Any) -> Any:
        """Sleeps, and takes the step."""
        time.sleep(self._sleep_s)
        return self.env.step(action)


TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "CartPole-v1": ("CartPole-v1", {}),
    **{f"a step that sleeps {each} ms": (f"{__file__}:Sleeping", {"sleep_ms": each}) for each in (1, 10)},
}
"""Ids of the environments and their arguments."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Microseconds per environment step: medians of all rounds."""

    task: str
    workers: int
    elapsed_us: float
    cpu_us: float


def _cpu_s() -> float:
    own = psutil.Process()
    times = [each.cpu_times() for each in (own, *own.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


def read(environments: Environments, seconds: float) -> tuple[float, float]:
    """Returns elapsed and processor time of an environment step in microseconds, over this many seconds."""
    action, steps = (np.zeros(COUNT, np.int64),), 0
    cpu_s, started = _cpu_s(), time.perf_counter()
    while (elapsed_s := time.perf_counter() - started) < seconds:
        environments.step(action)
        steps += COUNT
    return 1e6 * elapsed_s / steps, 1e6 * (_cpu_s() - cpu_s) / steps


def main() -> int:
    """Measures and prints every number of workers, and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    arguments = parser.parse_args()
    results = list[Reading]()
    for task, (env_id, kwargs) in TASKS.items():
        found = defaultdict[int, list[tuple[float, float]]](list)
        for _ in range(arguments.rounds):
            for workers in WORKERS:
                form = "process" if workers else "sync"
                made = make_environments(env_id, COUNT, kwargs=kwargs, vectorization=form, workers=workers)
                with closing(made) as environments:
                    environments.reset(range(COUNT))
                    found[workers].append(read(environments, arguments.seconds))
        for workers, readings in found.items():
            elapsed, cpu = (statistics.median(column) for column in zip(*readings, strict=True))
            results.append(Reading(task, workers, elapsed, cpu))
            print(f"{task}, {workers} workers: {elapsed:,.0f} us elapsed, {cpu:,.0f} us of CPU", flush=True)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    rounds = {"rounds": arguments.rounds, "seconds": arguments.seconds, "environments": COUNT}
    write_json(OUTPUT, {"provenance": of_this_run(), **rounds, "readings": [asdict(each) for each in results]})
    print(f"written to {OUTPUT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
