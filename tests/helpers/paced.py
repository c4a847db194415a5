"""An environment that takes its time without using any, so that a run goes on for as long as a test needs it to.

Importing this registers Paced-v0 with Gymnasium.
"""

import time
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

Observation = NDArray[np.float32]


class Paced(gymnasium.Env[Observation, np.int64]):
    """Rewards action 1; an episode has 50 steps, each with a pause."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, pause_s: float = 0.0005) -> None:
        self._pause_s, self._step = pause_s, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        time.sleep(self._pause_s)
        self._step += 1
        return self._observe(), float(action), self._step >= 50, False, {}

    def _observe(self) -> Observation:
        return np.array([self._step / 50.0, 1.0], np.float32)


gymnasium.register("Paced-v0", Paced)
