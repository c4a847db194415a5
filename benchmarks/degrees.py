"""`make bench-degrees`: wall time to the threshold by `sampling.off_policy_degree`.

Runs of `penstock train` with a preset alternate between the degrees. The figure is the time from the first environment
step to the evaluation that reached the threshold. The result is build/bench/degrees.json.
"""

import argparse
import json
import statistics
from dataclasses import dataclass, fields
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import penstock_loop
from penstock.presets import preset
from tests.support.results.provenance import of_this_run

OUTPUT = Path(__file__).parent.parent / "build" / "bench" / "degrees.json"
DEGREES = (0, 1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Reached:
    """The result of one run.

    Attributes:
        seconds: Seconds to the threshold; infinite if it was not reached.
        env_steps: Environment steps to the threshold; infinite if it was not reached.
        env_steps_per_s: Environment steps per second, over the whole run.
        lag: Mean age of fresh segments, in versions.
    """

    seconds: float
    env_steps: float
    env_steps_per_s: float
    lag: float


def reach(name: str, degree: int, seed: int) -> Reached:
    """Trains until the threshold is reached.

    Raises:
        subprocess.CalledProcessError: The run failed.
    """
    summary = penstock_loop.train(
        {
            "preset": name,
            "seed": seed,
            "stop-at-return": preset(name).evaluation.threshold,
            "sampling.off-policy-degree": degree,
            "evaluation.interval-steps": 2_048,
        }
    )
    seconds, env_steps = summary.learn_wall_s_to_threshold, summary.env_steps_to_threshold
    lag = summary.statistics.lag if summary.statistics else None
    return Reached(
        float("inf") if seconds is None else seconds,
        float("inf") if env_steps is None else env_steps,
        summary.env_steps_per_s,
        lag.mean if lag else 0.0,
    )


def main() -> None:
    """Measures and prints every preset, and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--presets", nargs="+", default=["cartpole_no_replay", "pendulum"])
    parser.add_argument("--degrees", nargs="+", type=int, default=DEGREES)
    parser.add_argument("--seeds", type=int, default=10)
    arguments = parser.parse_args()
    console, results = Console(), {}
    for name in arguments.presets:
        reached: dict[int, list[Reached]] = {degree: [] for degree in arguments.degrees}
        for seed in range(arguments.seeds):
            for degree, runs in reached.items():
                runs.append(reach(name, degree, seed))
                console.print(
                    f"{name}, seed {seed}, degree {degree:2d}: {runs[-1].seconds:5.1f} s, {runs[-1].env_steps:,.0f}"
                    f" steps at {runs[-1].env_steps_per_s:,.0f}/s, lag {runs[-1].lag:.2f}",
                    highlight=False,
                )
        table = Table(title=name)
        for heading in ("degree", "seconds, median", "steps, median", "steps/s", "lag"):
            table.add_column(heading, justify="right")
        for degree, runs in reached.items():
            table.add_row(
                str(degree),
                f"{statistics.median(run.seconds for run in runs):.2f}",
                f"{statistics.median(run.env_steps for run in runs):,.0f}",
                f"{statistics.median(run.env_steps_per_s for run in runs):,.0f}",
                f"{statistics.mean(run.lag for run in runs):.2f}",
            )
        console.print(table)
        results[name] = {
            field.name: {str(degree): [getattr(run, field.name) for run in runs] for degree, runs in reached.items()}
            for field in fields(Reached)
        }
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps({"provenance": of_this_run(), **results}, indent=2) + "\n")
    console.print(f"written to {OUTPUT}")


if __name__ == "__main__":
    main()
