"""`make bench-shared-policy`: one policy for several variants of an environment, beside a policy of its own for each.

Arms with 2 to 5 joints have spaces of different sizes; pendulums differ in gravity. All runs have the default settings
and two actors, which play the variants of a shared run in turn. A shared run has as many environment steps as one of
the separate runs, or as all of them together.
Runs are made one after another. The result is build/bench/shared_policy.json, and is written after each seed.
"""

import argparse
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

import penstock
from penstock.machine.files import write_json
from tests.support.results.provenance import of_this_run

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / "build" / "bench" / "shared_policy.json"
ACTORS, EVALUATIONS, PLAYED, SAMPLED_EVERY_S = 2, 40, 100, 0.5


@dataclass(frozen=True, slots=True)
class Task:
    """An environment with its variants, the steps of a run, and the mean return that counts as learnt."""

    env_id: str
    variants: list[dict[str, Any]]
    steps: int
    threshold: float


TASKS = {
    "arms": Task(f"{ROOT / 'examples' / 'arms.py'}:Arm", [{"joints": each} for each in (2, 3, 4, 5)], 200_000, -30.0),
    "pendulums": Task(
        "Pendulum-v1",
        [{"g": 3.0 + 0.5 * number} for number in range(16)],
        60_000,
        -200.0,
    ),
}
WIDE = "layers of 128"
SHOWN: dict[str, Any] = {"pad_spaces": "auto", "show_variant": True}
ROWS: dict[str, dict[str, Any]] = {
    "a policy for each": {},
    "one policy, steps of one of them": SHOWN,
    "one policy, steps of all of them": SHOWN,
    "one policy, steps of all of them, variant not shown": {**SHOWN, "show_variant": False},
    f"one policy, steps of all of them, {WIDE}": SHOWN,
}


@dataclass(frozen=True, slots=True)
class Trained:
    """A run.

    Attributes:
        task, row, seed: What was run.
        variant: Number of the variant; None: all.
        env_steps, seconds, returns: Environment steps, seconds of training and mean return at each evaluation.
        memory_bytes: Largest memory of all processes of the run at a time (PSS).
        final_returns: Mean return in each variant of the run, over 100 further episodes with the best policy.
    """

    task: str
    row: str
    seed: int
    variant: int | None
    env_steps: list[int]
    seconds: list[float]
    returns: list[float]
    memory_bytes: int
    final_returns: list[float]


class Memory(threading.Thread):
    """Samples the memory of this process's children, and keeps the largest sum."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.largest, self._stopped = 0, threading.Event()

    def run(self) -> None:
        """Samples until `stop`."""
        while not self._stopped.wait(SAMPLED_EVERY_S):
            total = 0
            for process in psutil.Process().children(recursive=True):
                try:
                    total += process.memory_full_info().pss
                except psutil.Error:
                    continue
            self.largest = max(self.largest, total)

    def stop(self) -> int:
        """Returns the largest sum in bytes."""
        self._stopped.set()
        self.join()
        return self.largest


def trained(name: str, row: str, seed: int, variant: int | None, folder: Path) -> Trained:
    """Trains a run in one variant, or in all of them."""
    task, memory = TASKS[name], Memory()
    total = task.steps * (len(task.variants) if "steps of all" in row else 1)
    environment: dict[str, Any] = {"variants": task.variants, **ROWS[row]} if variant is None else {}
    if variant is not None:
        environment["kwargs"] = task.variants[variant]
    memory.start()
    run = penstock.train(
        task.env_id,
        preset="none",
        progress=False,
        seed=seed,
        total_steps=total,
        train={"actors": ACTORS},
        run_dir=str(folder / f"{name}-{row}-{seed}-{variant}"),
        environment=environment,
        evaluation={
            "interval_steps": total // EVALUATIONS,
            "episodes": 4 * len(task.variants) if variant is None else 20,
        },
    )
    largest, found = memory.stop(), run.metrics().evaluation
    played = run.evaluate(episodes=PLAYED if variant is not None else PLAYED * len(task.variants))
    finals = [each.return_mean for _, _, each in played.variants] or [played.return_mean]
    steps, seconds, returns = (found[key].tolist() for key in ("env_steps", "training_s", "return_mean"))
    return Trained(name, row, seed, variant, [int(each) for each in steps], seconds, returns, largest, finals)


def main() -> int:
    """Trains all runs in turn, and writes what they reached."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    chosen = parser.parse_args()
    runs, origin = list[Trained](), of_this_run()
    tasks = {name: asdict(TASKS[name]) | {"env_id": TASKS[name].env_id.rpartition("/")[2]} for name in chosen.tasks}
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="penstock-shared-") as temporary:
        for seed in range(1, chosen.seeds + 1):
            for name in chosen.tasks:
                separate: list[int | None] = list(range(len(TASKS[name].variants)))
                for row in ROWS:
                    for variant in separate if not ROWS[row] else [None]:
                        run = trained(name, row, seed, variant, Path(temporary))
                        runs.append(run)
                        returns = " ".join(f"{each:.0f}" for each in run.final_returns)
                        print(
                            f"{name}, {row}, seed {seed}, variant {variant}: {run.seconds[-1]:.0f} s, {returns}",
                            flush=True,
                        )
            found = {"seeds": seed, "tasks": tasks, "runs": [asdict(each) for each in runs]}
            write_json(OUTPUT, {"provenance": origin, **found})
    print(f"written to {OUTPUT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
