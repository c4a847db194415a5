"""An environment with everything that a policy's input can have: a Dict of numbers and integers, and action masks.

Importing this module registers it with Gymnasium as `Courier-v0`.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

_DIRECTIONS = np.array([(0.0, 0.0), (1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.0, -1.0)], np.float32)
_VEHICLES = 3

Observation = dict[str, Any]
Outcome = tuple[Observation, float, bool, bool, dict[str, Any]]


class Courier(gymnasium.Env[Observation, np.int64]):
    """A courier carries a parcel towards the origin, in a vehicle that changes at random.

    Roads are closed at random: with masks, half of the directions are illegal in each step, and an illegal action
    raises `ValueError`. Half of the episodes terminate with an empty battery, and half are truncated. Their last masks
    have no legal action.
    """

    observation_space = Dict(
        {
            "battery": Box(0.0, 1.0, (1,), np.float32),
            "place": Box(-np.inf, np.inf, (2,), np.float32),
            "vehicle": Discrete(_VEHICLES, start=1),
            "wind": Box(-3.0, 3.0, (), np.float32),
        }
    )
    action_space = Discrete(len(_DIRECTIONS))

    def __init__(self, masks: bool = True) -> None:
        self._masks = masks

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self._battery, self._place = 1.0, self.np_random.normal(0.0, 5.0, 2).astype(np.float32)
        return self._observe(ended=False)

    def step(self, action: np.int64) -> Outcome:
        if not self._legal[action]:
            raise ValueError(f"got the illegal action {action}; the mask is {self._legal.tolist()}")
        before = np.abs(self._place).sum()
        self._place = self._place + self._vehicle * _DIRECTIONS[action] + np.float32(0.1) * self._wind
        self._battery -= self.np_random.uniform(0.0, 0.15)
        terminated = self._battery <= 0.0
        truncated = not terminated and bool(self.np_random.random() < 0.06)
        reward = float(before - np.abs(self._place).sum())
        observation, info = self._observe(ended=terminated or truncated)
        return observation, reward, terminated, truncated, info

    def _observe(self, *, ended: bool) -> tuple[Observation, dict[str, Any]]:
        self._vehicle = int(self.np_random.integers(1, 1 + _VEHICLES))
        self._wind = np.array(self.np_random.uniform(-3.0, 3.0), np.float32)
        self._legal = np.full(len(_DIRECTIONS), not ended)
        if self._masks and not ended:
            self._legal[self.np_random.permutation(len(_DIRECTIONS))[:2]] = False
        observation = {
            "battery": np.array([max(0.0, self._battery)], np.float32),
            "place": self._place.copy(),
            "vehicle": np.int64(self._vehicle),
            "wind": self._wind,
        }
        return observation, {"action_mask": self._legal.astype(np.int8)} if self._masks else {}


gymnasium.register("Courier-v0", f"{__name__}:Courier")
