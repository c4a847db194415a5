"""Pendulum-v1 as a vector environment in NumPy, because Gymnasium has none.

Dynamics, rewards and first states are those of `gymnasium.envs.classic_control.pendulum.PendulumEnv` with the time
limit of its registration. Episodes end and begin as in Gymnasium's `CartPoleVectorEnv`: the step after the last one
resets (`AutoresetMode.NEXT_STEP`).
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.pendulum import DEFAULT_X, DEFAULT_Y, PendulumEnv
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

ENV_ID = "VectorPendulum-v1"
EPISODE_STEPS = 200

Step = tuple[NDArray[np.float32], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


class VectorPendulum(VectorEnv[NDArray[np.float32], NDArray[np.float32], Any]):
    """N pendulums, stepped together.

    Observations are cosine and sine of the angle and the angular velocity, <float32>[N, 3]; actions are torques,
    <float32>[N, 1].
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int = 1, max_episode_steps: int = EPISODE_STEPS) -> None:
        single = PendulumEnv()
        self.num_envs, self._episode_steps = num_envs, max_episode_steps
        self.single_observation_space, self.single_action_space = single.observation_space, single.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._constants = single
        self._angle = self._velocity = np.zeros(num_envs)
        self._steps = np.zeros(num_envs, np.int64)
        self._ended = np.zeros(num_envs, np.bool_)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begins an episode in each environment."""
        super().reset(seed=seed[0] if isinstance(seed, list) else seed)
        self._angle, self._velocity = self._first_states(self.num_envs)
        self._steps = np.zeros(self.num_envs, np.int64)
        self._ended = np.zeros(self.num_envs, np.bool_)
        return self._observation(), {}

    def step(self, actions: NDArray[np.float32]) -> Step:
        """Takes one step in each environment, or begins an episode where the last step ended one."""
        is_of = self._constants
        angle, velocity = self._angle, self._velocity
        torque = np.clip(actions[:, 0], -is_of.max_torque, is_of.max_torque)
        normal_angle = (angle + np.pi) % (2 * np.pi) - np.pi
        reward = -(normal_angle**2 + 0.1 * velocity**2 + 0.001 * torque**2)
        gravity = 3 * is_of.g / (2 * is_of.l) * np.sin(angle)
        velocity = velocity + (gravity + 3.0 / (is_of.m * is_of.l**2) * torque) * is_of.dt
        self._velocity = np.clip(velocity, -is_of.max_speed, is_of.max_speed)
        self._angle = angle + self._velocity * is_of.dt
        self._steps += 1
        truncated = self._steps >= self._episode_steps
        if self._ended.any():
            begun = self._ended
            self._angle[begun], self._velocity[begun] = self._first_states(int(begun.sum()))
            self._steps[begun], reward[begun], truncated[begun] = 0, 0.0, False
        self._ended = truncated.copy()
        return self._observation(), reward, np.zeros(self.num_envs, np.bool_), truncated, {}

    def _first_states(self, count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        highest = np.array([[DEFAULT_X], [DEFAULT_Y]])
        angle, velocity = self.np_random.uniform(-highest, highest, (2, count))
        return angle, velocity

    def _observation(self) -> NDArray[np.float32]:
        columns = (np.cos(self._angle), np.sin(self._angle), self._velocity)
        return np.stack(columns, axis=1).astype(np.float32)


gymnasium.register(
    ENV_ID,
    entry_point="gymnasium.envs.classic_control.pendulum:PendulumEnv",
    max_episode_steps=EPISODE_STEPS,
    vector_entry_point="benchmarks.peers.vector_pendulum:VectorPendulum",
)
