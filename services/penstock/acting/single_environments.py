"""Environments that are stepped one after another, so that a failure can be attributed to one of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from penstock.acting import faults
from penstock.acting.progress import Progress
from penstock.errors import EnvironmentFailed
from penstock.types.spaces import EnvironmentSpec

_NOTHING = object()
_RESET = (0.0, False, False)
_LARGEST = faults.LARGEST


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The outcome of one step of N environments.

    Attributes:
        reward: <float32>[N] raw rewards.
        terminated, truncated: <bool>[N] whether the episode ended, and how.
        valid: <bool>[N] whether the row is trained on; False where it only reset.
    """

    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]


class SingleEnvironments:
    """N environments with the rows of `acting.environments.Environments`.

    They behave like Gymnasium's SyncVectorEnv in NEXT_STEP autoreset mode, without infos. All values that an
    environment returns are checked before they are used.
    """

    def __init__(
        self, envs: Sequence[gymnasium.Env[Any, Any]], spec: EnvironmentSpec, progress: Progress | None = None
    ) -> None:
        """Takes ownership of environments with the same spaces."""
        self._envs, self.spec, self.count = list(envs), spec, len(envs)
        self.progress = progress or Progress()
        space = envs[0].observation_space
        self._rows: list[Any] = [None] * self.count
        self._buffer = np.zeros((self.count, *(space.shape or ())), space.dtype)
        self._ended = np.zeros(self.count, np.bool_)
        self._episode_steps = [0] * self.count
        self.observation: NDArray[np.generic] = self._buffer
        self.acting_observation: NDArray[np.generic] = self._buffer
        self.frame_age: NDArray[np.uint8] = np.zeros(self.count, np.uint8)

    def reset(self, seeds: Sequence[int]) -> None:
        """Starts new episodes. Raises `EnvironmentFailed` if an environment failed."""
        for index, seed in enumerate(seeds):
            self._begin(index, seed=seed)
        self._ended = np.zeros(self.count, np.bool_)
        self._observe()

    def step(self, action: NDArray[np.generic]) -> StepOutcome:
        """Takes one step in each environment. Raises `EnvironmentFailed` if an environment failed."""
        progress, ended, outcomes = self.progress, self._ended, []
        for index, resets in enumerate(ended.tolist()):
            progress.environment = index
            if resets:
                self._begin(index)
                outcomes.append(_RESET)
            else:
                outcomes.append(self._take(index, action[index]))
            progress.steps += 1
        self._observe()
        reward, terminated, truncated = zip(*outcomes, strict=True)
        terminations, truncations = np.array(terminated, np.bool_), np.array(truncated, np.bool_)
        self._ended = terminations | truncations
        return StepOutcome(np.array(reward, np.float32), terminations, truncations, ~ended)

    def close(self) -> None:
        """Closes the environments."""
        for env in self._envs:
            env.close()

    def _begin(self, index: int, **seed: Any) -> None:
        progress, before = self.progress, self.progress.doing
        result: Any = _NOTHING
        progress.doing, progress.environment = "reset", index
        try:
            result = self._envs[index].reset(**seed)
            # A reset of the old API returns only the observation, which may have two elements.
            if not isinstance(result, tuple):
                raise TypeError
            self._rows[index], _ = result
        except faults.MISBEHAVIOUR as error:
            if result is _NOTHING:
                raise faults.raised(error, "in reset", self.spec.id, index) from error
            raise self._returned(index, "reset", "an observation and a dict", result) from error
        self._episode_steps[index] = 0
        progress.doing = before

    def _take(self, index: int, action: Any) -> tuple[float, bool, bool]:
        result: Any = _NOTHING
        self._episode_steps[index] += 1
        try:
            result = self._envs[index].step(action)
            self._rows[index], reward, terminated, truncated, _ = result
            # Comparisons with NaN are false, so that NaN fails this test.
            if -_LARGEST <= reward <= _LARGEST:
                return reward, bool(terminated), bool(truncated)
        except faults.MISBEHAVIOUR as error:
            if result is _NOTHING:
                raise faults.raised(error, self._where(index), self.spec.id, index) from error
            if not isinstance(result, tuple) or len(result) != 5:
                expected = "observation, reward, terminated, truncated and info"
                raise self._returned(index, "step", expected, result) from error
            what = f"step returned {faults.shortened(repr(result[1:4]))} as reward, terminated and truncated:"
            raise self._failure(f"{what} {faults.describe(error)}", index) from error
        raise self._failure(f"step returned the reward {faults.not_finite(float(reward))}", index)

    def _observe(self) -> None:
        buffer, shape, dtype = self._buffer, self._buffer.shape[1:], self._buffer.dtype
        for index, row in enumerate(self._rows):
            if type(row) is np.ndarray and row.shape == shape and row.dtype == dtype:
                buffer[index] = row
                continue
            # Lists and other types are converted by Gymnasium's rules.
            try:
                np.stack([row], out=buffer[index : index + 1])
            except (TypeError, ValueError) as error:
                raise self._misshaped() from error
        if found := faults.find_unusable(self._buffer):
            raise self._failure(f"an observation with {found[1]}", found[0])

    def _misshaped(self) -> EnvironmentFailed:
        """Returns the failure of the first environment whose observation does not fit the space."""
        shape, dtype = self._buffer.shape[1:], self._buffer.dtype
        for index, row in enumerate(self._rows):
            try:
                found = np.asarray(row)
            except (TypeError, ValueError):
                found = np.asarray(None)
            if found.shape != shape or not np.can_cast(found.dtype, dtype, "same_kind"):
                what = f"an observation of shape {found.shape} and type {found.dtype}, where its space has {shape} and"
                return self._failure(f"{what} {dtype}", index)
        return faults.failure("observations that can't be stacked", "", self.spec.id, None)

    def _returned(self, index: int, call: str, expected: str, result: Any) -> EnvironmentFailed:
        count = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
        what = f"{call} returned {count}, where {expected} are expected: {faults.shortened(repr(result))}"
        return self._failure(what, index, "" if call == "reset" else None)

    def _failure(self, what: str, index: int, where: str | None = None) -> EnvironmentFailed:
        return faults.failure(what, self._where(index) if where is None else where, self.spec.id, index)

    def _where(self, index: int) -> str:
        steps = self._episode_steps[index]
        return f"in step {steps} of its episode" if steps else "in reset"
