"""Runs of `penstock train` on the chain of examples/episode_ends.py, and the values that they learn."""

from pathlib import Path

import numpy as np
import torch

import penstock
from examples.episode_ends import DISCOUNT, ENV_ID, STATES, TRUNCATION, Report, observe, report
from penstock.algo.policies import Inputs
from penstock.runs.folder import RunFolder
from tests.support.services.processes import WITH_HELPERS, run

SAME_STEP_ID = "SameStepEpisodeEnds-v0"
"""The chain in a vector environment that resets in the step that ends an episode; from `exact_tasks`."""

STEPS = 16_384
UNROLL_LENGTH = 8
"""Steps of a segment, so few that episodes end at every position of a segment."""
_OPTIONS = {
    "preset": "none",
    "env-import": "tests.support.environments.exact_tasks",
    "actors": 1,
    "evaluation.episodes": 1,
    "policy.normalise-observations": "false",
    "policy.normalise-returns": "false",
    "ppo.discount": DISCOUNT,
    "ppo.learning-rate": 0.01,
    "ppo.learning-rate-schedule": "linear",
}


def learn(
    folder: Path,
    seed: int = 0,
    *,
    same_step: bool = False,
    truncation: float = TRUNCATION,
    unroll_length: int = UNROLL_LENGTH,
) -> Report:
    """Trains through all services in this new folder; returns the report about the values at the end.

    Shorter segments make shorter runs, with as many batches.
    """
    own = {"env-id": SAME_STEP_ID, "environment.vectorization": "native"} if same_step else {"env-id": ENV_ID}
    steps = STEPS * unroll_length // UNROLL_LENGTH
    task = {
        "environment.kwargs": f"truncation={truncation}",
        "actor.unroll-length": unroll_length,
        "total-steps": steps,
        "evaluation.interval-steps": steps,
    }
    options = {"run-dir": folder, "seed": seed, **_OPTIONS, **own, **task}
    end = run("train", *(f"--{name}={value}" for name, value in options.items()), environment=WITH_HELPERS)
    assert end.code == 0, f"{end.stdout}\n{end.stderr}"
    return report(values_of(folder))


def values_of(folder: Path) -> list[float]:
    """Returns the values of the newest checkpoint of a run, one for each state."""
    policy = penstock.load_policy(RunFolder(folder).numbered_checkpoints()[-1]).policy
    observation = torch.from_numpy(np.stack([observe(state) for state in range(STATES)]))
    with torch.no_grad():
        values: list[float] = policy.evaluate(Inputs((observation,)))[1].tolist()
    return values
