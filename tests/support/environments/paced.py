"""Environments that sleep in each step, so that a run lasts as long as a test needs without load.

Importing this module registers Paced-v0, Tail-v0 and PacedCartPole-v0 with Gymnasium.
"""

import os
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from numpy.typing import NDArray

from penstock.process.service import SUPERVISED_VARIABLE

PACED, PACED_CARTPOLE = "Paced-v0", "PacedCartPole-v0"

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


class Tail(Paced):
    """In the actor `actor-0`, fails as the file `fault_file` states: "hung", "slow" or "dead"; else like Paced."""

    def __init__(self, pause_s: float = 0.03, fault_file: str = "") -> None:
        super().__init__(pause_s)
        self._fault_file = Path(fault_file) if os.environ.get(SUPERVISED_VARIABLE) == "actor-0" else None
        self._life = 0

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self._life += 1
        while (kind := self._kind()) == "hung":
            time.sleep(0.05)
        if kind == "slow":
            time.sleep(1.0)
        if kind == "dead" and self._life >= 4:
            os._exit(1)
        return super().step(action)

    def _kind(self) -> str:
        return self._fault_file.read_text() if self._fault_file is not None and self._fault_file.exists() else ""


class PacedCartPole(CartPoleEnv):
    """CartPole whose step sleeps."""

    def __init__(self, pause_s: float = 0.0, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self._pause_s = pause_s

    def step(self, action: Any) -> Any:
        time.sleep(self._pause_s)
        return super().step(action)  # type: ignore[no-untyped-call]


gymnasium.register(PACED, f"{__name__}:Paced")
gymnasium.register("Tail-v0", f"{__name__}:Tail")
gymnasium.register(PACED_CARTPOLE, f"{__name__}:PacedCartPole", max_episode_steps=500)
