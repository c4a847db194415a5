"""`make bench-degrees`: seconds to the threshold by `sampling.off_policy_degree`, fixed and automatic.

Runs of `penstock train` take turns with the degrees, and derive all else. The figure is the time from the first
environment step to the evaluation that reached the threshold. LunarLander needs penstock[box2d]. The result is
build/bench/degrees.json.
"""

import argparse
import itertools
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from benchmarks import degrees_table, penstock_loop
from penstock.machine.files import write_json
from tests.support.environments import paced
from tests.support.results.provenance import of_this_run

OUTPUT = Path(__file__).parent.parent / "build" / "bench" / "degrees.json"
DEGREES = ("1", "2", "4", "8", degrees_table.AUTOMATIC)


@dataclass(frozen=True, slots=True)
class Task:
    """A task: its options, the mean return that counts as solved, and the number of seeds."""

    options: Mapping[str, object]
    threshold: float
    seeds: int


TASKS = {
    "CartPole-v1, 4 actors": Task({"preset": "cartpole", "actors": 4}, 475.0, 8),
    "Pendulum-v1, 2 actors": Task({"preset": "pendulum", "actors": 2}, -200.0, 8),
    "LunarLander-v3, 8 actors": Task({"preset": "lunar_lander", "actors": 8}, 200.0, 4),
    "CartPole-v1 with steps of 2 ms, 8 actors": Task(
        {
            "env-id": paced.PACED_CARTPOLE,
            "env-import": paced.__name__,
            # Evaluations do not sleep, so that they are soon known.
            "environment.training-kwargs": "pause_s=0.002",
            "actors": 8,
            "total-steps": 60_000,
        },
        475.0,
        8,
    ),
}


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one run.

    Attributes:
        task: Name of the task.
        degree: Setting of the run.
        seed: Seed of the run.
        seconds: Seconds to the threshold; None if it was not reached.
        env_steps: Environment steps to the threshold; None if it was not reached.
        env_steps_per_s: Environment steps per second, over the whole run.
        lag: Mean age of fresh segments, in versions.
    """

    task: str
    degree: str
    seed: int
    seconds: float | None
    env_steps: int | None
    env_steps_per_s: float
    lag: float | None

    @property
    def line(self) -> str:
        """The run in words."""
        reached = "not solved" if self.seconds is None else f"{self.seconds:.1f} s, {self.env_steps:,} steps"
        return f"{self.task}, degree {self.degree}, seed {self.seed}: {reached}, {self.env_steps_per_s:,.0f} steps/s"


def run(name: str, degree: str, seed: int) -> Run:
    """Trains until the threshold is reached. Raises `subprocess.CalledProcessError` if the run failed."""
    task = TASKS[name]
    summary = penstock_loop.train(
        {
            **task.options,
            "seed": seed,
            "stop-at-return": task.threshold,
            "evaluation.threshold": task.threshold,
            "sampling.off-policy-degree": degree,
            "evaluation.interval-steps": 2_048,
        }
    )
    lag = summary.statistics.lag if summary.statistics else None
    return Run(
        name,
        degree,
        seed,
        summary.learn_wall_s_to_threshold,
        summary.env_steps_to_threshold,
        summary.env_steps_per_s,
        lag.mean if lag else None,
    )


def main() -> None:
    """Runs every task with every degree, and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=[*TASKS])
    parser.add_argument("--seeds", type=int, help="number of seeds of each task (default: 4 or 8)")
    arguments = parser.parse_args()
    console, origin, runs = Console(), of_this_run(), list[Run]()
    for name in arguments.tasks:
        for seed, degree in itertools.product(range(arguments.seeds or TASKS[name].seeds), DEGREES):
            runs.append(run(name, degree, seed))
            console.print(runs[-1].line, highlight=False)
        # After each task, so that a failure loses no other one's runs.
        OUTPUT.parent.mkdir(parents=True, exist_ok=True)
        document = {"provenance": origin, "runs": [asdict(each) for each in runs]}
        write_json(OUTPUT, document)
    console.print(degrees_table.table(document), highlight=False, markup=False)
    console.print(f"written to {OUTPUT}")


if __name__ == "__main__":
    main()
