"""Returns of a preset by the learner's precision, over several seeds of `penstock train`.

The result is build/bench/gpu/returns.json.
"""

import argparse
import json
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

# Allows this file to run as a script.
sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import penstock_loop
from benchmarks.gpu.learner_throughput import precisions_of
from penstock.learning.step.devices import torch_device
from tests.support.results.provenance import of_this_run

OUTPUT = Path(__file__).parents[2] / "build" / "bench" / "gpu" / "returns.json"


@dataclass(frozen=True, slots=True)
class Case:
    """The result of one run; steps and seconds are None if the threshold was not reached."""

    precision: str
    seed: int
    final_return: float
    env_steps_to_threshold: int | None
    learn_wall_s_to_threshold: float | None


def measure(name: str, precision: str, seed: int, device: str) -> Case:
    """Trains to the end of a run; the return is that of the best checkpoint in further episodes."""
    summary = penstock_loop.train(
        {"preset": name, "seed": seed, "learner.device": device, "learner.precision": precision}
    )
    assert summary.evaluation is not None
    return Case(
        precision,
        seed,
        summary.evaluation.return_mean,
        summary.env_steps_to_threshold,
        summary.learn_wall_s_to_threshold,
    )


def show(cases: list[Case], console: Console) -> None:
    """Prints one row per precision."""
    table = Table("precision", "returns", "median", "steps to the threshold", "seconds to the threshold")
    for precision in dict.fromkeys(case.precision for case in cases):
        of_this = [case for case in cases if case.precision == precision]
        returns = [case.final_return for case in of_this]
        steps = [case.env_steps_to_threshold for case in of_this]
        seconds = [case.learn_wall_s_to_threshold for case in of_this]
        table.add_row(
            precision,
            ", ".join(f"{value:.0f}" for value in returns),
            f"{statistics.median(returns):.0f}",
            ", ".join("never" if value is None else f"{value:,}" for value in steps),
            ", ".join("never" if value is None else f"{value:.1f}" for value in seconds),
        )
    console.print(table)


def main() -> None:
    """Measures, prints and writes every case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="cartpole")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="auto", help="setting learner.device")
    arguments = parser.parse_args()
    console, cases = Console(), list[Case]()
    for seed in range(arguments.seeds):
        for precision in precisions_of(torch_device(arguments.device)):
            case = measure(arguments.preset, precision, seed, arguments.device)
            console.print(f"seed {seed}, {precision}: {case.final_return:.1f}", highlight=False)
            cases.append(case)
            found = {
                "provenance": of_this_run(),
                "preset": arguments.preset,
                "torch": torch.__version__,
                "cases": [asdict(each) for each in cases],
            }
            OUTPUT.parent.mkdir(parents=True, exist_ok=True)
            OUTPUT.write_text(json.dumps(found, indent=2) + "\n")
    show(cases, console)
    console.print(f"written to {OUTPUT}")


if __name__ == "__main__":
    main()
