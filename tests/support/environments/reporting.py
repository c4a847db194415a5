"""Reporting-v0 has numbers in its infos; ReportingAtOnce-v0 resets in the last step of an episode if vectorised."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

LENGTH = 4
"""Steps of an episode."""


class Reporting(gymnasium.Env[Any, Any]):
    """Its infos have a number at the first, the second or the last step of an episode, and in each."""

    observation_space, action_space = spaces.Box(-1.0, 1.0, (1,), np.float32), spaces.Discrete(2)

    def __init__(self) -> None:
        self.episode, self.steps = 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.steps = self.episode + 1, 0
        return np.zeros(1, np.float32), {"begun": 10 * self.episode}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        info: dict[str, Any] = {"count": np.int64(self.steps + self.episode), "kind": "text", "none": None}
        if self.steps == 2:
            info["early"] = 0.5 * self.episode
        if self.steps == LENGTH:
            info |= {"success": self.episode % 2 == 1, "last": {"distance": np.float32(self.episode)}}
        return np.zeros(1, np.float32), 1.0, False, self.steps == LENGTH, info


KEYS = ("success", "last.distance", "early", "begun", "count", "none", "absent", "kind")


def values_of(episode: int) -> list[float]:
    """Returns the numbers of an episode, counted from 1, by `KEYS`."""
    unknown = [np.nan] * 3
    return [float(episode % 2), float(episode), 0.5 * episode, 10.0 * episode, float(LENGTH + episode), *unknown]


def next_step_vector(num_envs: int, **kwargs: Any) -> SyncVectorEnv:
    return SyncVectorEnv([Reporting] * num_envs)


def same_step_vector(num_envs: int, **kwargs: Any) -> SyncVectorEnv:
    return SyncVectorEnv([Reporting] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


for _name, _vector in (("Reporting", "next_step_vector"), ("ReportingAtOnce", "same_step_vector")):
    gymnasium.register(
        f"{_name}-v0",
        f"{__name__}:Reporting",
        vector_entry_point=f"{__name__}:{_vector}",
        disable_env_checker=True,
    )
