"""Arguments and results of the peers of the benchmark of episode ends; imported in the environment of each peer."""

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import version

import gymnasium
import numpy as np
from numpy.typing import NDArray

from examples.episode_ends import STATES, observe

ENV_ID = "Chain-v0"
ENVIRONMENTS = 16


@dataclass(frozen=True, slots=True)
class Task:
    """A training run on the chain.

    Attributes:
        truncation: Probability with which a step truncates.
        segment_steps: Steps of each environment between two updates.
        updates: Number of updates of `segment_steps` steps of all environments.
        learning_rate: Learning rate at the start; it decreases to zero.
        seed: Seed of the run.
    """

    truncation: float
    segment_steps: int
    updates: int
    learning_rate: float
    seed: int

    @property
    def total_steps(self) -> int:
        """Environment steps of the run."""
        return ENVIRONMENTS * self.segment_steps * self.updates

    def options(self) -> list[str]:
        """Returns the command line from which `from_arguments` makes this task again."""
        return [f"--{name.replace('_', '-')}={value}" for name, value in asdict(self).items()]

    @classmethod
    def from_arguments(cls) -> "Task":
        """Parses the command line, and registers the chain as `ENV_ID`."""
        parser = argparse.ArgumentParser()
        for name in ("--truncation", "--learning-rate"):
            parser.add_argument(name, type=float, required=True)
        for name in ("--segment-steps", "--updates", "--seed"):
            parser.add_argument(name, type=int, required=True)
        task = cls(**vars(parser.parse_args()))
        gymnasium.register(ENV_ID, "examples.episode_ends:EpisodeEnds", kwargs={"truncation": task.truncation})
        return task


def observations() -> NDArray[np.float32]:
    """Returns the observations of all states whose values are compared, <float32>[STATES, STATES + 1]."""
    return np.stack([observe(state) for state in range(STATES)])


def print_values(values: NDArray[np.float32], *packages: str) -> None:
    """Prints the learnt values, one for each state, and the versions of these packages as JSON."""
    result = {"values": values.ravel().tolist(), "versions": {name: version(name) for name in packages}}
    json.dump(result, sys.stdout)
