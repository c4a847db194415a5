"""The tasks of the drill over nodes: environments whose observations are unique, so that every segment names itself.

Every observation ends with three numbers: two halves of a random nonce of the environment, and the number of calls of
step and reset so far, each in units of 2**-24, which float32 holds exactly. This file imports nothing of this
repository, so that it can be mounted into containers: environment.id is `task.py:Marked` or `task.py:MarkedCartPole`.
"""

import secrets
import time
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

Observation = NDArray[np.float32]
_UNIT = 2.0**-24
_EPISODE_STEPS = 50


class _Marks:
    """The nonce and the counter of one environment."""

    def __init__(self) -> None:
        self._nonce = [secrets.randbelow(2**24), secrets.randbelow(2**24)]
        self._calls = -1

    def next(self) -> Observation:
        """Counts a call, and returns the marks <float32>[3] of its observation."""
        self._calls += 1
        return (_UNIT * np.array([*self._nonce, self._calls])).astype(np.float32)


class Marked(gymnasium.Env[Observation, np.int64]):
    """Rewards action 1. Each step lasts `pause_s`, so that throughput depends on the number of actors alone."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, pause_s: float = 0.004) -> None:
        self._pause_s, self._step, self._marks = pause_s, 0, _Marks()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        time.sleep(self._pause_s)
        self._step += 1
        return self._observe(), float(action), self._step >= _EPISODE_STEPS, False, {}

    def _observe(self) -> Observation:
        return np.append(np.float32(self._step / _EPISODE_STEPS), self._marks.next())


class MarkedCartPole(gymnasium.Wrapper[Observation, np.int64, Observation, np.int64]):
    """CartPole-v1 with marks, scaled so that a policy can ignore them."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        inner = self.env.observation_space
        assert isinstance(inner, gymnasium.spaces.Box)
        low, high = np.append(inner.low, np.zeros(3)), np.append(inner.high, np.ones(3))
        self.observation_space = gymnasium.spaces.Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)
        self._marks = _Marks()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return np.append(observation, self._marks.next()), info

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return np.append(observation, self._marks.next()), float(reward), terminated, truncated, info
