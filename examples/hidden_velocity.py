"""CartPole without velocities: a task that needs memory.

Balancing the pole needs the velocities of cart and pole, and this environment hides both. A policy with memory can
infer them from successive positions. Run this in this folder:

    penstock train --env-id HiddenVelocityCartPole-v0 --env-import hidden_velocity --policy.memory gru
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv
from numpy.typing import NDArray

ENV_ID = "HiddenVelocityCartPole-v0"
_VISIBLE = [0, 2]
"""Indices of the cart's position and the pole's angle in an observation of CartPole."""

Outcome = tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]


class HiddenVelocityCartPole(CartPoleEnv):
    """CartPole-v1 that observes only the position of the cart and the angle of the pole, in radians."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        space = self.observation_space
        assert isinstance(space, gymnasium.spaces.Box)
        self.observation_space = gymnasium.spaces.Box(space.low[_VISIBLE], space.high[_VISIBLE], dtype=np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Starts an episode as CartPole-v1 does."""
        observation, info = super().reset(seed=seed, options=options)
        return observation[_VISIBLE], info

    def step(self, action: int | NDArray[Any]) -> Outcome:
        """Takes a step as CartPole-v1 does."""
        observation, reward, terminated, truncated, info = super().step(action)  # type: ignore[no-untyped-call]
        return observation[_VISIBLE], float(reward), terminated, truncated, info


gymnasium.register(
    ENV_ID,
    entry_point=f"{__name__}:HiddenVelocityCartPole",
    max_episode_steps=500,
    reward_threshold=475.0,
)
