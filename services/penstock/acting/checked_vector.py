"""A Gymnasium vector environment whose exceptions become failures and whose values are checked."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from penstock.acting import faults
from penstock.acting.progress import Progress
from penstock.errors import EnvironmentFailed
from penstock.types.spaces import EnvironmentSpec

T = TypeVar("T")
Step = tuple[NDArray[np.generic], NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


class CheckedVector:
    """Calls a vector environment and checks the values it returns.

    An exception is attributed to an environment only if there is just one.
    """

    def __init__(self, envs: VectorEnv[Any, Any, Any], spec: EnvironmentSpec, progress: Progress) -> None:
        self._envs, self._env_id, self._progress = envs, spec.id, progress
        self._only = 0 if envs.num_envs == 1 else None
        self._shape = (envs.num_envs, *(envs.single_observation_space.shape or ()))
        self.count = envs.num_envs

    def reset(self, seeds: Sequence[int]) -> NDArray[np.generic]:
        """Starts new episodes and returns their first observations [N, ...]. Raises `EnvironmentFailed`."""
        self._progress.doing = "reset"
        observation, _ = self._call("in reset", self._envs.reset, seed=list(seeds))
        return self.checked(observation, "in reset")

    def step(self, action: NDArray[np.generic]) -> Step:
        """Steps each environment and returns the values of Gymnasium's `step`. Raises `EnvironmentFailed`."""
        observation, reward, terminated, truncated, infos = self._call("in step", self._envs.step, action)
        reward = np.asarray(reward)
        if reward.shape != (self.count,) or reward.dtype.kind not in "fiub":
            raise self._failure(f"rewards of shape {reward.shape} and type {reward.dtype}, not numbers of shape"
                                f" {(self.count,)}", None)  # fmt: skip
        if found := faults.find_unusable(reward):
            raise self._failure(f"step returned the reward {found[1]}", found[0])
        return self.checked(observation), reward.astype(np.float32), terminated.copy(), truncated.copy(), infos

    def close(self) -> None:
        """Closes the environments."""
        self._envs.close()

    def _call(self, where: str, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        self._progress.environment = self._only
        try:
            returned = function(*arguments, **named)
        except faults.MISBEHAVIOUR as error:
            raise faults.raised(error, where, self._env_id, self._only) from error
        self._progress.steps += 1
        return returned

    def checked(self, observation: NDArray[np.generic], where: str = "in step") -> NDArray[np.generic]:
        """Returns these observations [N, ...]. Raises `EnvironmentFailed` if they can't be trained on."""
        if observation.shape != self._shape:
            raise self._failure(f"observations of shape {observation.shape}, not {self._shape}", None, where)
        if found := faults.find_unusable(observation):
            raise self._failure(f"an observation with {found[1]}", found[0], where)
        return observation

    def _failure(self, what: str, index: int | None, where: str = "in step") -> EnvironmentFailed:
        return faults.failure(what, where, self._env_id, self._only if index is None else index)
