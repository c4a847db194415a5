"""A Gymnasium vector environment whose exceptions become failures and whose values are checked."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from penstock.acting.environments.progress import Progress
from penstock.acting.values import faults, leaves
from penstock.acting.values.leaf_buffers import CORRECT_SPACE, Unusable, ValueCheck
from penstock.acting.values.masks import MaskSource
from penstock.acting.values.returned_values import UNREADABLE, array_of, column_of
from penstock.errors import ConfigurationError, EnvironmentFailed
from penstock.machine import foreign_errors
from penstock.types.spaces import EnvironmentSpec, Leaves

Step = tuple[NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


class CheckedVector:
    """Calls a vector environment and checks the values it returns.

    An exception is attributed to an environment only if there is just one.
    """

    def __init__(
        self,
        envs: VectorEnv[Any, Any, Any],
        spec: EnvironmentSpec,
        progress: Progress,
        masks: MaskSource | None = None,
    ) -> None:
        """Takes ownership of the environment. `masks` is None if it has no action masks."""
        self._envs, self._spec, self._progress = envs, spec, progress
        self._only = 0 if envs.num_envs == 1 else None
        self._actions = leaves.ActionForm(spec.action, spec.action_types)
        self._checks = [ValueCheck(leaf) for leaf in spec.observation.leaves]
        self._shapes = [(envs.num_envs, *space.observation_array[1]) for space in spec.observation.spaces]
        self._masks, self._mask_of = masks, masks.reader(envs) if masks else None
        self.count = envs.num_envs
        self.observation: Leaves = ()
        self._returned: Any = None

    def reset(self, seeds: Sequence[int]) -> dict[str, Any]:
        """Starts new episodes, with their observations in `observation`; returns infos. Raises `EnvironmentFailed`."""
        self._progress.doing = "reset"
        begin = functools.partial(self._envs.reset, seed=list(seeds))  # type: ignore[arg-type]
        infos: dict[str, Any]
        self._returned, infos = self.call("in reset", begin, 2)
        self.observation = self._flat(self._returned, "in reset")
        self.check(self.observation, "in reset")
        return infos

    def step(self, action: Leaves) -> Step:
        """Steps each environment and returns the other values of Gymnasium's `step`. Raises `EnvironmentFailed`.

        The new observations are in `observation`, [N, ...] for each leaf. The arrays are the environment's own, which
        may change them in its next step.
        """
        take = functools.partial(self._envs.step, self._actions.batch(action))
        self._returned, reward, terminated, truncated, infos = self.call("in step", take, 5)
        reward = self._column("rewards", reward)
        terminated = self._column("terminated", terminated).astype(np.bool_, copy=False)
        truncated = self._column("truncated", truncated).astype(np.bool_, copy=False)
        if found := faults.find_unusable(reward):
            raise self.failure(f"a reward of {found[1]}", found[0], faults.ONE_NUMBER)
        self.observation = self._flat(self._returned)
        self.check(self.observation)
        return reward.astype(np.float32, copy=False), terminated, truncated, infos

    @property
    def returned(self) -> Any:
        """The last observations, as the environment returned them."""
        return self._returned

    def masks(self, infos: dict[str, Any], ended: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
        """Returns the action masks of the last observations, <bool>[N, bits]; None if there are none.

        Where an episode has `ended`, <bool>[N], every action is legal. Raises `EnvironmentFailed`.
        """
        if self._masks is None or self._mask_of is None:
            return None
        bits = np.ones((self.count, self._masks.bits), np.bool_)
        if ended.all():
            return bits
        try:
            found = self._masks.rows(self._mask_of(self._returned, infos), self.count)
        except ConfigurationError as error:
            raise self._refused(str(error), None) from None
        except foreign_errors.MISBEHAVIOUR as error:
            where = f"in {self._masks.place.value}"
            raise faults.raised(error, where, self._spec.id, self._only) from error
        bits[~ended] = found[~ended]
        if illegal := self._masks.find_illegal(bits):
            raise self._refused(illegal[1], illegal[0])
        return bits

    def final(self, infos: dict[str, Any], index: int) -> tuple[Any, ...]:
        """Returns the leaves of the final observation of an environment that has already reset.

        Raises `EnvironmentFailed` if the infos have none.
        """
        if "final_obs" not in infos:
            raise self.without_final(index)
        return tuple(array_of(leaf) for leaf in leaves.flatten(self._spec.observation, infos["final_obs"][index]))

    def without_final(self, index: int) -> EnvironmentFailed:
        """Returns the failure of an environment that has reset, and whose last observation is not in the infos."""
        return self.failure(
            'a truncated episode without its last observation in info["final_obs"]',
            index,
            "add it in a wrapper, or terminate such episodes",
        )

    def close(self) -> None:
        """Closes the environments."""
        self._envs.close()

    def call(self, where: str, function: Callable[[], Any], count: int) -> Any:
        """Returns the tuple of `count` values from a function of the environment. Raises `EnvironmentFailed`."""
        self._progress.environment = self._only
        try:
            returned = function()
        except foreign_errors.MISBEHAVIOUR as error:
            raise faults.raised(error, where, self._spec.id, self._only) from error
        if fault := faults.of_form(returned, count):
            raise self.failure(fault[0], None, fault[1], where)
        self._progress.steps += 1
        return returned

    def check(self, observation: Leaves, where: str = "in step") -> None:
        """Raises `EnvironmentFailed` if leaves [N, ...] of observations can't be trained on."""
        self.check_shapes(observation, where)
        for values, check in zip(observation, self._checks, strict=True):
            try:
                check(values)
            except Unusable as fault:
                raise self.failure(fault.what, fault.index, fault.remedy, where) from None

    def check_shapes(self, observation: tuple[Any, ...], where: str = "in step") -> None:
        """Raises `EnvironmentFailed` if leaves of observations, arrays or tensors, do not have the shapes [N, ...]."""
        for values, expected in zip(observation, self._shapes, strict=True):
            if (shape := tuple(values.shape)) != expected:
                raise self.failure(f"observations of shape {shape}, not {expected}", None, CORRECT_SPACE, where)

    def _flat(self, observation: Any, where: str = "in step") -> Leaves:
        try:
            return tuple([array_of(leaf) for leaf in leaves.flatten(self._spec.observation, observation)])
        except ConfigurationError as error:
            raise self._refused(str(error), None, where) from None
        except UNREADABLE as error:
            what = f"observations that are not an array ({error})"
            raise self.failure(what, None, "return an array", where) from None

    def _column(self, what: str, values: Any) -> NDArray[Any]:
        try:
            column = column_of(values, self.count)
        except UNREADABLE as error:
            raise self.failure(f"{what} as {error}", None, f"return {what} of shape {(self.count,)}") from None
        if column is not values and (shape := tuple(np.shape(values))) != column.shape:
            self._progress.note(f"{what} of shape {shape}, where {column.shape} was expected")
        return column

    def _refused(self, refusal: str, index: int | None, where: str = "in step") -> EnvironmentFailed:
        return faults.refused(refusal, where, self._spec.id, self._only if index is None else index)

    def failure(self, what: str, index: int | None, remedy: str, where: str = "in step") -> EnvironmentFailed:
        """Returns the failure of environment `index` (None: not known) with the id of the environments."""
        return faults.failure(what, where, self._spec.id, self._only if index is None else index, remedy)
