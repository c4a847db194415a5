r"""Planar arms with different numbers of joints, which reach for a point. One policy can control all of them.

    penstock train --env-id examples/arms.py:Arm --actors 2 --total-steps 100k --environment.pad-spaces auto \
      --environment.variants '[{"joints": 2}, {"joints": 5}]' --environment.show-variant true

An observation is the point, its distance from the tip of the arm, and the cosine, sine and speed of each joint in turn.
What all arms have comes first, so a number has the same place in arms of all sizes, and zeros of missing joints are at
the end. An action is the force at each joint. The reward of a step is minus the distance, less a little for force.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

STEPS = 100
"""Steps in an episode."""


class Arm(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
    """An arm of length 1. Joints have friction and no mass of their own."""

    def __init__(self, joints: int = 2, lengths: Sequence[float] = ()) -> None:
        """Makes an arm whose links are in proportion to the first of the `lengths`, by default equal."""
        links = np.array(lengths[:joints] or [1.0] * joints)
        self._joints, self._links = joints, links / links.sum()
        self.observation_space = spaces.Box(-np.inf, np.inf, (3 * joints + 4,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (joints,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Places the point somewhere in reach."""
        super().reset(seed=seed)
        self._angles, self._speeds, self._step = (
            self.np_random.uniform(-1.0, 1.0, self._joints),
            np.zeros(self._joints),
            0,
        )
        distance, direction = self.np_random.uniform(0.2, 0.9), self.np_random.uniform(-np.pi, np.pi)
        self._goal = distance * np.array([np.cos(direction), np.sin(direction)])
        return self._observation(), {}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Applies forces for one step."""
        force = np.clip(action, -1.0, 1.0)
        self._speeds = 0.8 * self._speeds + 0.2 * force
        self._angles = self._angles + 0.2 * self._speeds
        self._step += 1
        distance = float(np.linalg.norm(self._goal - self._tip()))
        reward = -distance - 0.05 * float(np.square(force).mean())
        return self._observation(), reward, False, self._step == STEPS, {}

    def _tip(self) -> NDArray[np.float64]:
        directions = np.cumsum(self._angles)
        return np.array([self._links @ np.cos(directions), self._links @ np.sin(directions)])

    def _observation(self) -> NDArray[np.float32]:
        joints = np.stack([np.cos(self._angles), np.sin(self._angles), self._speeds], axis=1)
        return np.concatenate([self._goal, self._goal - self._tip(), joints.ravel()], dtype=np.float32)
