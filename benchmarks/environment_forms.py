"""`make bench-environment-forms`: environments in their single form, vectorised, and in EnvPool.

Environments of `acting.environments.vectors` take steps with random actions. The time of a step is processor time of
the process, including EnvPool's threads. The whole run is `penstock train --preset pendulum` with single and with
vectorised environments. Its pace is steps per second since the first one, and its processor time includes the start of
all processes. All forms take turns. Forms whose packages are missing are left out. The result is
build/bench/environment_forms.json.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.acting.environments.vectors import Environments
from penstock.machine import extras
from penstock.machine.files import write_json
from penstock.types.spaces import DiscreteSpace
from tests.support.environments.made import make_environments
from tests.support.results.provenance import of_this_run

OUTPUT = Path(__file__).parents[1] / "build" / "bench" / "environment_forms.json"
COUNTS = (8, 64)
TASKS: dict[str, dict[str, str]] = {
    "CartPole-v1": {"single": "CartPole-v1", "vectorised": "CartPole-v1", "EnvPool": "envpool:CartPole-v1"},
    "Pendulum-v1": {"single": "Pendulum-v1", "vectorised": "Pendulum-v1", "EnvPool": "envpool:Pendulum-v1"},
    "Acrobot-v1": {"single": "Acrobot-v1", "vectorised": "Acrobot-v1", "EnvPool": "envpool:Acrobot-v1"},
    "MiniGrid-DoorKey-8x8-v0": {"single": "MiniGrid-DoorKey-8x8-v0", "EnvPool": "envpool:MiniGrid-DoorKey-8x8-v0"},
    "Game2048-v1": {"EnvPool": "envpool:Game2048-v1"},
}
"""Ids of each task in each form."""

VECTORIZATION = {"single": "sync", "vectorised": "native", "EnvPool": "native"}
PACKAGES = {"EnvPool": "envpool", "MiniGrid-DoorKey-8x8-v0": "minigrid"}
"""Modules that forms and tasks need."""

RUN_FORMS = ("sync", "auto")
RUN_STEPS = 100_000
_ACTIONS = 50


@dataclass(frozen=True, slots=True)
class Step:
    """Median microseconds of processor time of an environment step."""

    task: str
    form: str
    environments: int
    cpu_us: float


@dataclass(frozen=True, slots=True)
class Run:
    """Medians of whole runs, and the pace of each."""

    vectorization: str
    steps_per_s: float
    cpu_s: float
    each_steps_per_s: list[float]


def cpu_us(environments: Environments, seconds: float) -> float:
    """Returns the processor time of an environment step, over at least this time."""
    environments.reset(range(environments.count))
    actions = _actions(environments)
    steps, began = 0, time.process_time()
    while (used := time.process_time() - began) < seconds:
        for action in actions:
            environments.step((action,))
        steps += _ACTIONS * environments.count
    return 1e6 * used / steps


def steps(rounds: int, seconds: float) -> list[Step]:
    """Measures a step of every task in every form."""
    found = defaultdict[tuple[str, str, int], list[float]](list)
    for _ in range(rounds):
        for task, forms in TASKS.items():
            for form, env_id in forms.items():
                module = PACKAGES.get(form) or PACKAGES.get(task)
                if module is not None and extras.missing(module):
                    continue
                for count in COUNTS:
                    made = make_environments(
                        env_id, count, kwargs={}, vectorization=VECTORIZATION[form], use_masks=False
                    )
                    with closing(made) as environments:
                        found[task, form, count].append(cpu_us(environments, seconds))
    return [Step(*place, statistics.median(readings)) for place, readings in found.items()]


def runs(rounds: int) -> list[Run]:
    """Trains by turns with single and with vectorised environments."""
    found = defaultdict[str, list[tuple[float, float]]](list)
    for number in range(rounds):
        for form in RUN_FORMS:
            found[form].append(_trained(form, seed=number))
            print(f"round {number + 1}, {form}: {found[form][-1][0]:,.0f} steps/s", flush=True)
    medians = {form: [statistics.median(column) for column in zip(*each, strict=True)] for form, each in found.items()}
    return [Run(form, pace, cpu_s, [each for each, _ in found[form]]) for form, (pace, cpu_s) in medians.items()]


def _trained(form: str, seed: int) -> tuple[float, float]:
    """Returns steps per second and processor seconds of a run."""
    with tempfile.TemporaryDirectory() as folder:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        options = [f"--environment.vectorization={form}", f"--total-steps={RUN_STEPS}", f"--seed={seed}"]
        command = [sys.executable, "-m", "penstock", "train", "--preset=pendulum", f"--dir={folder}/run", *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        summary = json.loads((Path(folder) / "run" / "summary.json").read_text())
    return summary["env_steps_per_s"], after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _actions(environments: Environments) -> list[NDArray[Any]]:
    (space,), generator = environments.spec.action.spaces, np.random.default_rng(0)
    shape = (_ACTIONS, environments.count, *space.action_array[1])
    drawn = (
        generator.integers(0, space.n, shape)
        if isinstance(space, DiscreteSpace)
        else generator.uniform(-2.0, 2.0, shape).astype(np.float32)
    )
    return list(drawn)


def main() -> int:
    """Measures, prints and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5)
    arguments = parser.parse_args()
    origin, settings = of_this_run(), {"rounds": arguments.rounds, "seconds": arguments.seconds, "steps": RUN_STEPS}
    measured = steps(arguments.rounds, arguments.seconds)
    for each in measured:
        print(f"{each.task}, {each.form}, {each.environments} environments: {each.cpu_us:.1f} us of CPU", flush=True)
    trained = runs(arguments.rounds)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    readings = {"readings": [asdict(each) for each in measured], "runs": [asdict(each) for each in trained]}
    write_json(OUTPUT, {"provenance": origin, **settings, **readings})
    print(f"written to {OUTPUT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
