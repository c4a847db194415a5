"""`make bench-centralised-critic`: simple_spread of three agents, whose critic sees the agent's view or the whole game.

All other settings are the defaults. Runs are made one after another. The result is
build/bench/centralised_critic.json, and is written after each run; a repeated command continues it. It needs the
packages pettingzoo and mpe2.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import penstock
from benchmarks.continued import train_all

OUTPUT = Path(__file__).parents[1] / "build" / "bench" / "centralised_critic.json"
ENV_ID, STEPS, EVALUATIONS, EPISODES = "pettingzoo:mpe2.simple_spread_v3", 1_000_000, 20, 300
"""`STEPS` and `EPISODES` count each agent."""
ROWS: dict[str, dict[str, Any]] = {
    "the agent's view": {},
    "the whole game": {"environment": {"kwargs": {"state": True}}, "policy": {"critic_only": ["state"]}},
}


@dataclass(frozen=True, slots=True)
class Trained:
    """A run.

    Attributes:
        row, seed: What was run: what the critic sees.
        env_steps, returns: Environment steps and mean return of an agent at each evaluation.
        explained: Share of the variance of returns that the critic explains, mean over the last fifth of the run.
        final_return: Mean return of an agent in further episodes with the best policy.
    """

    row: str
    seed: int
    env_steps: list[int]
    returns: list[float]
    explained: float
    final_return: float


def trained(row: str, seed: int, folder: Path) -> Trained:
    """Trains a run."""
    run = penstock.train(
        ENV_ID,
        preset="none",
        progress=False,
        seed=seed,
        total_steps=STEPS,
        run_dir=str(folder / f"{row}-{seed}"),
        evaluation={"interval_steps": STEPS // EVALUATIONS, "episodes": 60},
        **ROWS[row],
    )
    records = run.metrics()
    env_steps, returns = (records.evaluation[key].tolist() for key in ("env_steps", "return_mean"))
    explained = records.training["explained_variance"]
    finals = run.evaluate(EPISODES, deterministic=True).returns
    return Trained(
        row,
        seed,
        [int(each) for each in env_steps],
        returns,
        float(np.nanmean(explained[-len(explained) // 5 :])),
        sum(finals) / len(finals),
    )


def main() -> int:
    """Trains all runs in turn, and writes what they reached after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    chosen = parser.parse_args()
    cases = [(row, seed) for seed in range(1, chosen.seeds + 1) for row in ROWS]
    train_all(
        OUTPUT,
        Trained,
        cases,
        trained,
        lambda run: f"{run.final_return:.2f}, explained {run.explained:.2f}",
        {"steps": STEPS},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
