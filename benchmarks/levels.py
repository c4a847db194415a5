"""`make bench-levels`: shares of collection over 256 levels of MiniGrid, most of which give no signal at first.

The shares are equal, or they follow learnability with a floor. The control has the shares of learnability, assigned to
other levels, and so the same entropy. Levels that were not trained on are played with the checkpoints of a run. Runs
are made one after another. The result is build/bench/levels.json, and is written after each run; a repeated command
continues it. It needs the package minigrid.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import penstock
from benchmarks.continued import train_all
from benchmarks.level_tasks import Level
from penstock.runs.folder import RunFolder

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / "build" / "bench" / "levels.json"
LEVELS, UNSEEN, STEPS, CHECKPOINTS = 256, 128, 300_000, 4
ROWS = {
    "equal": "equal",
    "learnability": "learnability",
    "learnability in another order": f"{ROOT / 'benchmarks' / 'level_tasks.py'}:shuffled",
}


@dataclass(frozen=True, slots=True)
class Trained:
    """A run.

    Attributes:
        row, seed: What was run.
        env_steps: Environment steps at each checkpoint.
        successes: Share of the unseen levels that succeed with it, with sampled actions.
        trained_successes: Share of the training levels whose last returns are mostly above 0, at the end.
    """

    row: str
    seed: int
    env_steps: list[int]
    successes: list[float]
    trained_successes: float


def trained(row: str, seed: int, folder: Path) -> Trained:
    """Trains a run, and plays unseen levels with its checkpoints."""
    run = penstock.train(
        f"{ROOT / 'benchmarks' / 'level_tasks.py'}:Level",
        preset="none",
        progress=False,
        seed=seed,
        total_steps=STEPS,
        train={"actors": 2},
        run_dir=str(folder / f"{row}-{seed}"),
        environment={"variants": [{"level": level} for level in range(LEVELS)]},
        evaluation={"episodes": LEVELS, "interval_steps": STEPS, "threshold": 1e-3},
        sampling={"collection": ROWS[row]},
        checkpoint={
            "save_interval": STEPS // CHECKPOINTS,
            "save_interval_minutes": None,
            "max_checkpoints": CHECKPOINTS,
        },
    )
    steps, found = [], []
    for path in RunFolder(Path(run.run_dir)).numbered_checkpoints():
        policy = penstock.load_policy(path)
        steps.append(int(path.stem))
        found.append(successes(policy))
    ended = [each.return_mean for each in run.variants if each.return_mean is not None]
    return Trained(row, seed, steps, found, float(np.mean([each > 0.0 for each in ended])))


def successes(policy: Any) -> float:
    """Plays each unseen level once with sampled actions; returns the share with a return above 0."""
    levels = [Level(LEVELS + number) for number in range(UNSEEN)]
    observations, succeeded, playing = [level.reset()[0] for level in levels], 0, list(range(UNSEEN))
    while playing:
        actions, _ = policy.predict(np.stack([observations[number] for number in playing]), deterministic=False)
        for number, action in zip(list(playing), actions, strict=True):
            observations[number], reward, terminated, truncated, _ = levels[number].step(action)
            if terminated or truncated:
                succeeded += reward > 0.0
                playing.remove(number)
    for level in levels:
        level.close()
    return succeeded / UNSEEN


def main() -> int:
    """Trains all runs in turn, and writes what they reached after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    chosen = parser.parse_args()
    cases = [(row, seed) for seed in range(1, chosen.seeds + 1) for row in ROWS]
    train_all(
        OUTPUT,
        Trained,
        cases,
        trained,
        lambda run: " ".join(f"{each:.0%}" for each in run.successes),
        {"levels": LEVELS, "unseen": UNSEEN, "steps": STEPS},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
