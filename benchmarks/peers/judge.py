"""The judge of all peers in the table "as people run them": 20 deterministic episodes.

Penstock's evaluator does the same: it plays one episode in each of 20 environments, all at once, and takes the most
likely actions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv
from numpy.typing import NDArray

from benchmarks.peers.command_line import CommandLine
from benchmarks.peers.journal import Journal

EPISODES = 20

Act = Callable[[NDArray[np.float32]], NDArray[Any]]
"""Returns the most likely action for each row of observations [N, ...]."""


@dataclass(frozen=True, slots=True)
class Goal(CommandLine):
    """A run to a threshold.

    Attributes:
        env_id: Gymnasium id of the environment.
        interval_steps: Environment steps between evaluations.
        seed: Seed of the run.
        journal: File of the run's journal.
    """

    env_id: str
    interval_steps: int
    seed: int
    journal: Path


class Judge:
    """Evaluates a policy whenever it has been trained for another interval of environment steps."""

    def __init__(self, goal: Goal) -> None:
        self._goal, self._journal = goal, Journal(goal.journal)
        self._due = goal.interval_steps
        self._envs: SyncVectorEnv | None = None
        self._played = 0
        # Shows that the program has started.
        self._journal.trained(0)

    def look(self, env_steps: int, act: Act) -> None:
        """Notes the steps in the journal, and evaluates the policy if that is due."""
        if env_steps < self._due:
            self._journal.trained(env_steps)
            return
        self._due = (env_steps // self._goal.interval_steps + 1) * self._goal.interval_steps
        self._journal.evaluated(env_steps, self._mean_return(act))

    def _mean_return(self, act: Act) -> float:
        if self._envs is None:
            self._envs = SyncVectorEnv([lambda: gymnasium.make(self._goal.env_id)] * EPISODES)
        self._played += 1
        observation = self._envs.reset(seed=10**6 * (1 + self._goal.seed) + EPISODES * self._played)[0]
        returns, playing = np.zeros(EPISODES), np.ones(EPISODES, np.bool_)
        while playing.any():
            observation, reward, terminated, truncated, _ = self._envs.step(act(observation))
            returns[playing] += reward[playing]
            playing &= ~(terminated | truncated)
        return float(returns.mean())
