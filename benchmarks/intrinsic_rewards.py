"""`make bench-intrinsic-rewards`: tasks with rare rewards, with and without random network distillation.

The module of rewards is the example of docs/change-the-algorithm.md; all other settings are the defaults. An episode of
these tasks succeeds if its return is above 0. Runs are made one after another. The result is
build/bench/intrinsic_rewards.json, and is written after each run; a repeated command continues it.
"""

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import penstock
from benchmarks.continued import train_all

ROOT = Path(__file__).parents[1]
PAGE, OUTPUT = ROOT / "docs" / "change-the-algorithm.md", ROOT / "build" / "bench" / "intrinsic_rewards.json"
EVALUATIONS, PLAYED = 20, 100
EXAMPLE = re.compile(r'^```python\n("""rnd\.py""".*?)^```$', re.MULTILINE | re.DOTALL)
TASKS = {"MiniGrid-MultiRoom-N4-S5-v0": 800_000, "MiniGrid-DoorKey-8x8-v0": 200_000}
"""Environment steps of a run of each task."""
ROWS = "none", "random network distillation"


@dataclass(frozen=True, slots=True)
class Trained:
    """A run.

    Attributes:
        env_id, row, seed: What was run.
        env_steps, seconds, returns: Environment steps, seconds of training and mean return at each evaluation.
        final_returns: Returns of 100 further episodes with the best policy and its likeliest actions.
        sampled_returns: The same with sampled actions.
    """

    env_id: str
    row: str
    seed: int
    env_steps: list[int]
    seconds: list[float]
    returns: list[float]
    final_returns: list[float]
    sampled_returns: list[float]


def trained(env_id: str, row: str, seed: int, folder: Path) -> Trained:
    """Trains a run."""
    settings: dict[str, Any] = {}
    if row != ROWS[0]:
        if not (example := EXAMPLE.search(PAGE.read_text())):
            raise SystemExit(f"{PAGE.name} has no rnd.py")
        (folder / "rnd.py").write_text(example[1])
        settings = {"ppo": {"intrinsic_reward": f"{folder / 'rnd.py'}:Rnd"}}
    run = penstock.train(
        env_id,
        preset="none",
        progress=False,
        seed=seed,
        total_steps=TASKS[env_id],
        run_dir=str(folder / f"{env_id}-{row}-{seed}"),
        evaluation={"interval_steps": TASKS[env_id] // EVALUATIONS},
        **settings,
    )
    found = run.metrics().evaluation
    env_steps, seconds, returns = (found[key].tolist() for key in ("env_steps", "training_s", "return_mean"))
    finals, sampled = (list(run.evaluate(PLAYED, deterministic=each).returns) for each in (True, False))
    return Trained(env_id, row, seed, [int(each) for each in env_steps], seconds, returns, finals, sampled)


def main() -> int:
    """Trains all runs in turn, and writes what they reached after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    chosen = parser.parse_args()
    cases = [(task, row, seed) for task in chosen.tasks for seed in range(1, chosen.seeds + 1) for row in ROWS]
    train_all(
        OUTPUT,
        Trained,
        cases,
        trained,
        lambda run: f"{run.seconds[-1]:.0f} s, {successes(run.final_returns):.0%} of episodes succeed",
        {"tasks": {each: TASKS[each] for each in chosen.tasks}},
    )
    return 0


def successes(returns: list[float]) -> float:
    """Returns the share of episodes with a return above 0."""
    return sum(each > 0.0 for each in returns) / len(returns)


if __name__ == "__main__":
    sys.exit(main())
