"""Environments whose runs need a hint, each for one reason, registered with Gymnasium on import."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

Observation = NDArray[np.float64]
Outcome = tuple[Observation, float, bool, bool, dict[str, Any]]


class Blind(gymnasium.Env[Observation, np.int64]):
    """Rewards of a fixed number of steps, with random observations that say nothing."""

    def __init__(self, rewards: str = "none", steps: int = 10) -> None:
        """Chooses the rewards: none, equal ones, or noise; or goal, for the right actions in all steps."""
        self.observation_space, self.action_space = Box(-np.inf, np.inf, (2,), np.float64), Discrete(2)
        self._rewards, self._steps, self._step, self._right = rewards, steps, 0, True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, Any]:
        super().reset(seed=seed)
        self._step, self._right = 0, True
        return self.np_random.normal(size=2), {}

    def step(self, action: np.int64) -> Outcome:
        self._step += 1
        self._right &= int(action) == self._step % 2
        ends = self._step == self._steps
        reward = {
            "none": 0.0,
            "equal": 1.0,
            "noise": float(self.np_random.normal()),
            "goal": float(ends and self._right),
        }[self._rewards]
        return self.np_random.normal(size=2), reward, ends, False, {}


class Corridor(gymnasium.Env[Observation, np.int64]):
    """Sutton's short corridor: in the middle of three cells, which look the same, left and right are exchanged.

    No policy that always takes the same action reaches the end. Each step costs 1.
    """

    def __init__(self) -> None:
        self.observation_space, self.action_space = Box(-1.0, 1.0, (1,), np.float64), Discrete(2)
        self._cell = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, Any]:
        super().reset(seed=seed)
        self._cell = 0
        return self._seen(), {}

    def step(self, action: np.int64) -> Outcome:
        right = bool(action) != (self._cell == 1)
        self._cell = self._cell + 1 if right else max(0, self._cell - 1)
        return self._seen(), -1.0, self._cell == 3, False, {}

    def _seen(self) -> Observation:
        return 0.01 * self.np_random.normal(size=1).clip(-1.0, 1.0)


class Seen(gymnasium.ObservationWrapper[Observation, Any, Any]):
    """CartPole whose observations, in float64, are multiplied by a factor and moved by an offset."""

    def __init__(self, factor: float = 1.0, offset: float = 0.0) -> None:
        super().__init__(CartPoleEnv())
        self._factor, self._offset = factor, offset
        self.observation_space = Box(-np.inf, np.inf, (4,), np.float64)

    def observation(self, observation: Any) -> Observation:
        return np.asarray(self._factor * observation.astype(np.float64) + self._offset)


class Dose(gymnasium.Env[Observation, NDArray[np.float64]]):
    """One step, whose best action, 37, is near the lower one of its bounds, 0 and 1,000."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = Box(-1.0, 1.0, (1,), np.float64), Box(0.0, 1000.0, (1,), np.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, Any]:
        super().reset(seed=seed)
        return np.zeros(1), {}

    def step(self, action: NDArray[np.float64]) -> Outcome:
        return np.zeros(1), -abs(float(action[0]) - 37.0) / 1000.0, True, False, {}


BLIND, CORRIDOR, DOSE, SEEN = (f"{kind.__name__}-v0" for kind in (Blind, Corridor, Dose, Seen))
for _kind in (Blind, Corridor, Dose, Seen):
    gymnasium.register(f"{_kind.__name__}-v0", f"{__name__}:{_kind.__name__}")
