"""Levels of unequal difficulty: each is a task of MiniGrid with one seed, so that its rooms never change."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

TASKS = "DoorKey-5x5", "DoorKey-6x6", "DoorKey-8x8", "MultiRoom-N2-S4", "MultiRoom-N4-S5", "LavaCrossingS9N1"
MOST_STEPS = 200
"""Steps after which an episode is cut."""

_DIRECTIONS = 4


class Level(gymnasium.Env[NDArray[np.float32], np.int64]):
    """One level. An observation is the view of 7 x 7 cells and the direction; an episode fails with the return 0."""

    def __init__(self, level: int = 0) -> None:
        """Makes a level, whose number is its seed and, modulo the number of tasks, its task."""
        self._env = gymnasium.make(f"minigrid:MiniGrid-{TASKS[level % len(TASKS)]}-v0", max_episode_steps=MOST_STEPS)
        self._seed = level
        self.observation_space = spaces.Box(0.0, 1.0, (7 * 7 * 3 + _DIRECTIONS,), np.float32)
        self.action_space = spaces.Discrete(7)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begins the episode, which is the same for every seed."""
        super().reset(seed=seed)
        observation, _ = self._env.reset(seed=self._seed)
        return self._seen(observation), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Takes one step."""
        observation, reward, terminated, truncated, _ = self._env.step(action)
        return self._seen(observation), float(reward), terminated, truncated, {}

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()

    @staticmethod
    def _seen(observation: dict[str, Any]) -> NDArray[np.float32]:
        # Numbers of objects, colours and states are at most 10.
        cells = observation["image"].astype(np.float32).ravel() / 10.0
        return np.concatenate([cells, np.eye(_DIRECTIONS, dtype=np.float32)[observation["direction"]]])


def shuffled(variants: Any, progress: float) -> list[float]:
    """Returns the learnability of the variants in another order, which is the same during a run: the control."""
    rates = [np.mean([value > 0.0 for value in each.returns[-20:]]) if each.returns else 0.5 for each in variants]
    weights = [float(rate * (1.0 - rate)) for rate in rates]
    order = np.random.default_rng(0).permutation(len(weights))
    return [weights[place] for place in order] if any(weights) else [1.0] * len(weights)
