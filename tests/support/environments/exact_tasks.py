"""Small environments whose best return is known exactly, for every kind of space, for masks and for memory.

Importing this module registers the environments of `BEST_RETURNS` with Gymnasium, and the chain of
examples/episode_ends.py as `EpisodeEnds-v0` and as `SameStepEpisodeEnds-v0`.
"""

from abc import abstractmethod
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from examples.episode_ends import TRUNCATION, EpisodeEnds

STEPS = 8
"""Steps of an episode of a `Contextual` task; the best action is rewarded with 1 in each of them."""

LONGEST_STACK = 64
"""Largest `environment.frame_stack`."""

Convention = Literal["observation", "info", "method"]
"""Place of the action mask: the leaf `action_mask` of a Dict, `info["action_mask"]`, or the method `action_masks`."""

Outcome = tuple[Any, float, bool, bool, dict[str, Any]]


class Cue(gymnasium.Env[NDArray[np.float32], np.int64]):
    """Shows one of several cues in the first step, then nothing, and asks for it in the last step.

    The observation is <float32>[cues + 1]: 1 at the cue in the first step, and 1 at the end in the last one. Only the
    action of the last step counts; it is rewarded with 1 if it is the number of the cue, and with 0 otherwise. Without
    memory, no policy has a higher mean return than 1 / cues.
    """

    def __init__(self, length: int, cues: int = 2) -> None:
        """Creates a task whose cue is shown `length - 1` steps before it is needed."""
        self.observation_space = Box(0.0, 1.0, (cues + 1,), np.float32)
        self.action_space = Discrete(cues)
        self._length, self._cues = length, cues
        self._cue, self._step = 0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self._cue, self._step = int(self.np_random.integers(self._cues)), 0
        return self._observe(), {}

    def step(self, action: np.int64) -> Outcome:
        self._step += 1
        ended = self._step == self._length
        return self._observe(), float(ended and action == self._cue), ended, False, {}

    def best_action(self) -> np.int64:
        """Returns the action that a policy with perfect memory takes."""
        return np.int64(self._cue)

    def _observe(self) -> NDArray[np.float32]:
        observation = np.zeros(self._cues + 1, np.float32)
        if self._step == 0:
            observation[self._cue] = 1.0
        elif self._step == self._length - 1:
            observation[-1] = 1.0
        return observation


class Contextual(gymnasium.Env[Any, Any]):
    """A task of `STEPS` steps with a random context in each, which is all that the best action depends on."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return self._draw()

    def step(self, action: Any) -> Outcome:
        reward = self._reward(action)
        self._step += 1
        observation, info = self._draw()
        return observation, reward, self._step == STEPS, False, info

    @abstractmethod
    def best_action(self) -> Any:
        """Returns the action with the reward 1 in the present context."""

    @abstractmethod
    def _draw(self) -> tuple[Any, dict[str, Any]]:
        """Draws a context; returns its observation and its info."""

    @abstractmethod
    def _reward(self, action: Any) -> float:
        """Returns the reward of an action in the present context."""


class Locks(Contextual):
    """Locks that must all be turned to the positions that follow their marks.

    Observation and action hold one integer per lock, or are a single integer if there is one lock. The reward is the
    share of locks in their best position.

    With masks, each position is illegal with probability 1/2, except that each lock keeps a legal one. The best
    position is then the first legal one after the mark. An illegal action raises `ValueError`. A policy need not see
    the mask: one fixed order of preference for each mark is enough.
    """

    def __init__(self, sizes: tuple[int, ...], masks: Convention | None = None) -> None:
        """Creates locks with these numbers of positions."""
        self._sizes, self._masks = sizes, masks
        self.action_space = Discrete(sizes[0]) if len(sizes) == 1 else MultiDiscrete(list(sizes))
        mark = self.action_space
        leaf = Box(0, 1, (sum(sizes),), np.int8)
        self.observation_space = Dict({"action_mask": leaf, "mark": mark}) if masks == "observation" else mark

    def best_action(self) -> Any:
        return self._joined([self._best(lock) for lock in range(len(self._sizes))])

    def _best(self, lock: int) -> int:
        following = (np.arange(self._sizes[lock]) + self._marks[lock] + 1) % self._sizes[lock]
        return int(next(position for position in following if self._legal[lock][position]))

    def _draw(self) -> tuple[Any, dict[str, Any]]:
        self._marks = [int(self.np_random.integers(size)) for size in self._sizes]
        self._legal = [np.ones(size, np.bool_) for size in self._sizes]
        if self._masks is not None:
            for legal in self._legal:
                legal[:] = self.np_random.random(len(legal)) < 0.5
                legal[self.np_random.integers(len(legal))] = True
        mark = self._joined(self._marks)
        observation = {"action_mask": self._concatenated(), "mark": mark} if self._masks == "observation" else mark
        return observation, {"action_mask": self._concatenated()} if self._masks == "info" else {}

    def _reward(self, action: Any) -> float:
        positions = np.atleast_1d(action)
        if not all(legal[position] for legal, position in zip(self._legal, positions, strict=True)):
            raise ValueError(f"got the illegal action {action}; the mask is {self._concatenated().tolist()}")
        return float(np.mean([self._best(lock) == position for lock, position in enumerate(positions)]))

    def _concatenated(self) -> NDArray[np.int8]:
        return np.concatenate(self._legal).astype(np.int8)

    def _joined(self, numbers: list[int]) -> Any:
        return np.int64(numbers[0]) if len(numbers) == 1 else np.array(numbers, np.int64)


class LocksWithMethod(Locks):
    """Locks whose mask is returned by the method that sb3-contrib calls."""

    def action_masks(self) -> NDArray[np.bool_]:
        return self._concatenated().astype(np.bool_)


def make_locks(sizes: tuple[int, ...], masks: Convention | None = None) -> Locks:
    """Returns locks with masks in this place; None: without masks."""
    return LocksWithMethod(sizes, masks) if masks == "method" else Locks(sizes, masks)


class Switches(Contextual):
    """Four switches, each of which must be on where exactly one of a light and its right neighbour is on.

    Observation and action are <int8>[4]. The reward is the share of switches that are right.
    """

    observation_space = MultiBinary(4)
    action_space = MultiBinary(4)

    def best_action(self) -> NDArray[np.int8]:
        return self._lights ^ np.roll(self._lights, -1)

    def _draw(self) -> tuple[Any, dict[str, Any]]:
        self._lights = self.np_random.integers(2, size=4, dtype=np.int8)
        return self._lights.copy(), {}

    def _reward(self, action: Any) -> float:
        return float((self.best_action() == action).mean())


class Gears(Contextual):
    """A gear and a throttle, chosen together: a product of a discrete and a continuous action.

    The best gear is the number of the load. The best throttle is the wanted speed, and its opposite in the last gear,
    which is the reverse one. The reward is 1 for the best gear, minus the error of the throttle beyond `SLACK`, so that
    a policy that is close enough has the best return exactly.
    """

    GEARS = 3
    SLACK = 0.4

    observation_space = Dict({"load": Discrete(GEARS), "speed": Box(-1.0, 1.0, (1,), np.float32)})
    action_space = Dict({"gear": Discrete(GEARS), "throttle": Box(-1.0, 1.0, (1,), np.float32)})

    def best_action(self) -> dict[str, Any]:
        throttle = -self._speed if self._load == self.GEARS - 1 else self._speed
        return {"gear": np.int64(self._load), "throttle": throttle}

    def _draw(self) -> tuple[Any, dict[str, Any]]:
        self._load = int(self.np_random.integers(self.GEARS))
        self._speed = self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32)
        return {"load": np.int64(self._load), "speed": self._speed.copy()}, {}

    def _reward(self, action: Any) -> float:
        best = self.best_action()
        error = abs(float(action["throttle"][0] - best["throttle"][0]))
        return float(action["gear"] == best["gear"]) - max(0.0, error - self.SLACK)


def same_step_chain(num_envs: int, truncation: float = TRUNCATION) -> "SyncVectorEnv[Any, Any]":
    """Returns chains that reset in the step that ends an episode."""
    return SyncVectorEnv([lambda: EpisodeEnds(truncation)] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


BEST_RETURNS = {
    "Cue-v0": 1.0,
    "ShortCue-v0": 1.0,
    "Choice-v0": float(STEPS),
    "MaskedChoice-v0": float(STEPS),
    "Locks-v0": float(STEPS),
    "MaskedLocks-v0": float(STEPS),
    "Switches-v0": float(STEPS),
    "Gears-v0": float(STEPS),
}
"""Best return of every episode of each task. For `Cue-v0`, the cue is longer ago than the longest stack of frames."""


def _register(env_id: str, creator: str, **kwargs: Any) -> None:
    gymnasium.register(env_id, f"{__name__}:{creator}", kwargs=kwargs)


_register("Cue-v0", "Cue", length=LONGEST_STACK + 16)
_register("ShortCue-v0", "Cue", length=8)
_register("Choice-v0", "make_locks", sizes=(6,))
_register("MaskedChoice-v0", "make_locks", sizes=(6,), masks="info")
_register("Locks-v0", "make_locks", sizes=(3, 4, 2))
_register("MaskedLocks-v0", "make_locks", sizes=(3, 4, 2), masks="info")
_register("Switches-v0", "Switches")
_register("Gears-v0", "Gears")
gymnasium.register(
    "SameStepEpisodeEnds-v0", f"{__name__}:EpisodeEnds", vector_entry_point=f"{__name__}:same_step_chain"
)
