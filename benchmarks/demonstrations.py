"""`make bench-demonstrations`: runs with and without demonstrations (`sampling.demonstrations`).

The expert pushes a car in the direction in which it moves. Runs have the default settings, and evaluations of 20
episodes every 5,000 steps. The result is build/bench/demonstrations.json.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import penstock
from penstock.machine.files import write_json
from tests.support.results.provenance import of_this_run

OUTPUT = Path(__file__).parents[1] / "build" / "bench" / "demonstrations.json"
DEMONSTRATED_STEPS, STEPS, INTERVAL = 5_000, 50_000, 5_000

EXPERTS: dict[str, Callable[[Any], Any]] = {
    "MountainCar-v0": lambda observation: 2 if observation[1] > 0.0 else 0,
    "MountainCarContinuous-v0": lambda observation: [1.0 if observation[1] > 0.0 else -1.0],
}
NOISES: dict[str, float | None] = {"none": None, "without noise": 0.0, "with noise of 0.2": 0.2}
"""Noise of the recorded expert in each row; None: there are no demonstrations."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Evaluations of one run: environment steps and mean returns."""

    task: str
    demonstrations: str
    seed: int
    env_steps: list[int]
    returns: list[float]


def trained(task: str, row: str, seed: int, folder: Path) -> Curve:
    """Trains a run, for which the expert is recorded first."""
    settings: dict[str, Any] = {}
    if (noise := NOISES[row]) is not None:
        file = folder / f"{task}-{noise}.safetensors"
        penstock.record_demonstrations(
            EXPERTS[task], file, task, steps=DEMONSTRATED_STEPS, noise=noise, preset="none", progress=False
        )
        settings = {"demonstrations": file}
    run = penstock.train(
        task,
        preset="none",
        progress=False,
        seed=seed,
        total_steps=STEPS,
        run_dir=str(folder / f"{task}-{row}-{seed}"),
        evaluation={"interval_steps": INTERVAL, "episodes": 20},
        **settings,
    )
    found = run.metrics().evaluation
    return Curve(task, row, seed, found["env_steps"].astype(int).tolist(), found["return_mean"].tolist())


def main() -> int:
    """Trains all runs in turn, and writes their curves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    curves = list[Curve]()
    with tempfile.TemporaryDirectory(prefix="penstock-demonstrations-") as temporary:
        for seed in range(1, seeds + 1):
            for task in EXPERTS:
                for row in NOISES:
                    curve = trained(task, row, seed, Path(temporary))
                    curves.append(curve)
                    print(
                        f"{task}, {row}, seed {seed}: {' '.join(f'{each:.0f}' for each in curve.returns)}", flush=True
                    )
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    about = {"seeds": seeds, "steps": STEPS, "demonstrated_steps": DEMONSTRATED_STEPS}
    write_json(OUTPUT, {"provenance": of_this_run(), **about, "curves": [asdict(each) for each in curves]})
    print(f"written to {OUTPUT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
