"""Tiny deterministic environments with known values, and their specs. Started services import them, so torch is not.

Importing this module registers Counting-v0, Echo-v0, Drifting-v0, Still-v0, Pieces-v0, Told-v0, NeverResets-v0 and
ResetsAtOnce-v0 with Gymnasium.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from penstock.acting.environments.vectors import SameStepEnvironments
from penstock.acting.values.spaces import describe
from penstock.types.run import Assignment
from penstock.types.spaces import EnvironmentSpec

TAXI = "Taxi-v4" if "Taxi-v4" in gymnasium.registry else "Taxi-v3"
"""Gymnasium has version 4 from 1.3 on."""

Observation = NDArray[np.float32]
Outcome = tuple[Observation, float, bool, bool, dict[str, Any]]


class Counting(gymnasium.Env[Observation, np.int64]):
    """Observes [episode, step]; step k is rewarded with k; even episodes terminate and odd ones are truncated.

    A reset with a seed begins episode 0.
    """

    observation_space = gymnasium.spaces.Box(0.0, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length: int = 3, spread: int = 0) -> None:
        if length < 1:
            raise ValueError("an episode of Counting\nhas at least one step")
        self._length, self._spread = length, spread
        self._episode, self._step, self._end = -1, 0, length

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode, self._step = self._episode + 1 if seed is None else 0, 0
        self._end = self._length + int(self.np_random.integers(self._spread + 1))
        return self._observe(), {}

    def step(self, action: np.int64) -> Outcome:
        self._step += 1
        ended, even = self._step >= self._end, self._episode % 2 == 0
        return self._observe(), float(self._step), ended and even, ended and not even, {}

    def _observe(self) -> Observation:
        return np.array([self._episode, self._step], np.float32)


class Echo(gymnasium.Env[Observation, NDArray[np.float32]]):
    """Rewards with the sum of the action, whose elements are between -1 and 3 unless it is unbounded."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, length: int = 1, bounded: bool = True) -> None:
        low, high = (-1.0, 3.0) if bounded else (-np.inf, np.inf)
        self.action_space = gymnasium.spaces.Box(low, high, (2,), np.float32)
        self._length, self._step = length, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: NDArray[np.float32]) -> Outcome:
        self._step += 1
        return np.zeros(1, np.float32), float(action.sum()), self._step >= self._length, False, {}


class Drifting(gymnasium.Env[Observation, NDArray[np.float32]]):
    """Observes two random numbers; the reward of an unbounded action is its value.

    An episode has 2 to 8 steps, and every second one is truncated.
    """

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def __init__(self) -> None:
        self._episode = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self._left, self._episode = int(self.np_random.integers(2, 9)), self._episode + 1
        return self._observe(), {}

    def step(self, action: NDArray[np.float32]) -> Outcome:
        self._left -= 1
        ended, truncates = self._left == 0, self._episode % 2 == 0
        return self._observe(), float(action[0]), ended and not truncates, ended and truncates, {}

    def _observe(self) -> Observation:
        return self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)


class Still(gymnasium.Env[Any, Any]):
    """An environment with any spaces, in which nothing happens."""

    def __init__(self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> None:
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}


class Pieces(gymnasium.Env[NDArray[np.uint8], np.int64]):
    """A board with new pieces in every step. A move from any cell to any other is legal; one of a piece is rewarded."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 2, (2, 3), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(36)
        self._board = np.zeros((2, 3), np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        super().reset(seed=seed)
        self._board = self.np_random.integers(3, size=(2, 3), dtype=np.uint8)
        return self._board, {}

    def step(self, action: np.int64) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        moved = self._board.flat[action // self._board.size] > 0
        self._board = self.np_random.integers(3, size=(2, 3), dtype=np.uint8)
        return self._board, float(moved), False, False, {}


class Told(gymnasium.Env[Any, np.int64]):
    """Rewards the choice with the sign of its part `own` by 1, and adds 5 times its part `luck`. Ends after 8 steps."""

    observation_space = gymnasium.spaces.Dict(
        {
            "luck": gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32),
            "own": gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32),
        }
    )
    action_space = gymnasium.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Observation], dict[str, Any]]:
        super().reset(seed=seed)
        self._left = 8
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[dict[str, Observation], float, bool, bool, dict[str, Any]]:
        earned = float(action == (self._own > 0.0)) + 5.0 * self._luck[0]
        self._left -= 1
        return self._observe(), earned, self._left == 0, False, {}

    def _observe(self) -> dict[str, Observation]:
        self._luck, self._own = self.np_random.normal(0.0, 1.0, 2), self.np_random.uniform(-1.0, 1.0)
        return {"luck": self._luck.astype(np.float32), "own": np.array([self._own], np.float32)}


def counting_vector(mode: AutoresetMode, num_envs: int = 1, length: int = 3) -> "SyncVectorEnv[Any, Any]":
    return SyncVectorEnv([lambda: Counting(length)] * num_envs, copy=False, autoreset_mode=mode)


def never_resetting(num_envs: int) -> "SyncVectorEnv[Any, Any]":
    return counting_vector(AutoresetMode.DISABLED, num_envs)


def resetting_at_once(num_envs: int, length: int = 3) -> "SyncVectorEnv[Any, Any]":
    return counting_vector(AutoresetMode.SAME_STEP, num_envs, length)


def _register(env_id: str, creator: str, **options: Any) -> None:
    gymnasium.register(env_id, f"{__name__}:{creator}", **options)


_register("Counting-v0", "Counting")
_register("Echo-v0", "Echo")
_register("Drifting-v0", "Drifting")
_register("Still-v0", "Still", disable_env_checker=True)
_register("Pieces-v0", "Pieces")
_register("Told-v0", "Told")
_register("NeverResets-v0", "Counting", vector_entry_point=f"{__name__}:never_resetting")
_register("ResetsAtOnce-v0", "Counting", vector_entry_point=f"{__name__}:resetting_at_once")


def same_step_counting(length: int = 3) -> SameStepEnvironments:
    """Returns one adapted Counting environment that resets in the step that ends an episode."""
    envs = counting_vector(AutoresetMode.SAME_STEP, length=length)
    return SameStepEnvironments(envs, describe("Counting-v0", envs.single_observation_space, envs.single_action_space))


def spec_of(env_id: str, **kwargs: Any) -> EnvironmentSpec:
    """Returns the spec of a registered environment."""
    env = gymnasium.make(env_id, **kwargs)
    return describe(env_id, env.observation_space, env.action_space)


def assignment(*environments: int, seed: int = 7, incarnation: int = 1, slot: int = 0) -> Assignment:
    """Returns an assignment with these environments."""
    return Assignment(slot, incarnation, environments, token=b"token", seed=seed)
