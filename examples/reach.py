"""A custom environment: a point on a line that must stop at a target.

Penstock only needs its registration with Gymnasium. Run this in this folder:

    penstock train --env-id Reach-v0 --env-import reach --total-steps 60_000 --ppo.learning-rate 1e-3
"""

import math
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

_TIME_STEP_S = 0.1
_WALL = 4.0


class Reach(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
    """A force on a point of mass 1 on a line; the observation is (distance to the target, speed)."""

    def __init__(self, max_force: float = 1.0) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = gymnasium.spaces.Box(-max_force, max_force, (1,), np.float32)
        self._state = np.zeros(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Starts at rest, up to 2 units from the target."""
        super().reset(seed=seed)
        # Use only the environment's own generator, which Penstock seeds for every environment of a run.
        self._state = np.array([self.np_random.uniform(-2.0, 2.0), 0.0])
        return self._state.astype(np.float32), {}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Applies the force; the reward penalises distance and effort, and walls stop the point."""
        distance, speed = (float(value) for value in self._state)
        force = float(action[0])
        speed += _TIME_STEP_S * force
        distance += _TIME_STEP_S * speed
        if abs(distance) > _WALL:
            distance, speed = math.copysign(_WALL, distance), 0.0
        self._state = np.array([distance, speed])
        reward = -(distance**2) - 0.01 * force**2
        return self._state.astype(np.float32), reward, False, False, {}


gymnasium.register("Reach-v0", entry_point="reach:Reach", max_episode_steps=100)
