"""The work that every system does in the table "like for like", and the environments in which all do it.

Imported in the environments of the peers, so it needs only NumPy and Gymnasium.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from benchmarks.peers.command_line import CommandLine
from benchmarks.peers.journal import Journal
from benchmarks.peers.vector_pendulum import VectorPendulum

ENVIRONMENTS = 64
SEGMENT_STEPS = 64
BATCH = ENVIRONMENTS * SEGMENT_STEPS
EPOCHS = 2
UNITS = 64
"""Units of each of the two hidden layers, with tanh, of policy and value each."""
LEARNING_RATE = 1e-3
DISCOUNT = 0.99
TRACE_DECAY = 0.95
CLIP_RANGE = 0.2
VALUE_COEFFICIENT = 0.5
ENTROPY_COEFFICIENT = 0.0
MAX_GRADIENT_NORM = 0.5
ENDLESS_STEPS = 10**9
"""Environment steps of a run, more than it makes until it is stopped."""

VECTOR_ENVIRONMENTS: dict[str, Any] = {"CartPole-v1": CartPoleVectorEnv, "Pendulum-v1": VectorPendulum}
"""The implementation of each environment, which steps all copies with NumPy: Gymnasium's own where it has one."""


@dataclass(frozen=True, slots=True)
class Work(CommandLine):
    """A run of one system.

    Attributes:
        env_id: Gymnasium id of the environment.
        minibatch: Environment steps in a minibatch.
        seed: Seed of the run.
        journal: File of the run's journal.
        units: Units of each hidden layer.
    """

    env_id: str = field(metadata={"choices": list(VECTOR_ENVIRONMENTS)})
    minibatch: int
    seed: int
    journal: Path
    units: int = UNITS

    @property
    def hidden(self) -> tuple[int, int]:
        """Units of the hidden layers of policy and value each."""
        return self.units, self.units

    @property
    def minibatches(self) -> int:
        """Minibatches, and gradient steps, in each pass over a batch."""
        return BATCH // self.minibatch

    def open_journal(self) -> Journal:
        """Returns the journal of the run."""
        return Journal(self.journal)

    def make(self) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
        """Returns the environments, as many as `ENVIRONMENTS`."""
        made: gymnasium.vector.VectorEnv[Any, Any, Any] = VECTOR_ENVIRONMENTS[self.env_id](num_envs=ENVIRONMENTS)
        return made
