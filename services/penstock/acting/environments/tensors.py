"""Vector environments that take and return tensors of torch, on a GPU or on the CPU, as simulators on a GPU do."""

import functools
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from penstock.acting.environments.checked_vector import CheckedVector
from penstock.acting.environments.wrappers.vector_wrapper import VectorWrapper
from penstock.acting.values import faults
from penstock.acting.values.leaves import flatten, mapped, row_of, unflatten
from penstock.acting.values.returned_values import array_of, column_of
from penstock.errors import ConfigurationError
from penstock.types.spaces import EnvironmentSpec, Leaves


def takes_tensors(env: VectorEnv[Any, Any, Any]) -> bool:
    """Returns whether a vector environment names the device of its tensors, as those of simulators on a GPU do."""
    device = getattr(env.unwrapped, "device", None)
    torch = _torch()
    return torch is not None and isinstance(device, (str, torch.device))


def is_tensor(value: Any) -> bool:
    """Returns whether a value is a tensor of torch."""
    return hasattr(value, "detach")


class TensorVector(VectorWrapper):
    """A vector environment whose actions are tensors on its device. It returns tensors, which are copied when used.

    All environments share one seed. Final observations in `info["final_obs"]` become those of ended episodes alone, by
    index.
    """

    def reset(  # type: ignore[override]
        self, *, seed: Sequence[int], options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts new episodes. The first of the seeds, of at most 31 bits, is that of all environments."""
        return self.env.reset(seed=int(seed[0]) % 2**31, options=options)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Takes one step in each environment, with arrays of actions."""
        torch, device = _torch(), self.env.unwrapped.device  # type: ignore[attr-defined]
        batch = mapped(actions, lambda leaf: torch.from_numpy(np.ascontiguousarray(leaf)).to(device))
        observation, reward, terminated, truncated, infos = self.env.step(batch)
        if "final_obs" in infos:
            ended = np.flatnonzero(column_of(truncated, self.num_envs))
            final = mapped(infos["final_obs"], lambda leaf: array_of(leaf[ended]) if len(ended) else leaf)
            infos = infos | {"final_obs": {index: row_of(final, place) for place, index in enumerate(ended.tolist())}}
        return observation, reward, terminated, truncated, infos


class TensorRows:
    """The rows of a vector environment of tensors, from a reset on, as tensors on its device.

    They are the rows of `vectors.NextStepEnvironments` or, for environments that reset in the last step of an episode,
    of `vectors.SameStepEnvironments`. A step does not wait for the device, so its values are not checked. The tensors
    of a row may be overwritten by the next step.

    Attributes:
        observation: Observations that the next row records, [N, ...] for each leaf.
        acting: Observations that the policy acts on.
        begun: <bool>[N] whether the next row is the first of an episode.
    """

    def __init__(self, vector: TensorVector, checked: CheckedVector, spec: EnvironmentSpec, *, at_once: bool) -> None:
        """Begins after a reset. `at_once` is whether environments reset in the last step of an episode."""
        self._vector, self._checked, self._spec, self._at_once = vector, checked, spec, at_once
        self.observation = self.acting = self._leaves(checked.returned)
        none = self.acting[0].new_zeros(checked.count).bool()
        # Rows that are not trained on, and all that lacked their observation.
        self._invalid, self._incomplete, self.begun = none, none, ~none

    def step(self, action: tuple[Any, ...]) -> tuple[Any, Any, Any, Any]:
        """Takes one step in each environment with one tensor of actions [N, ...] per leaf.

        Returns `reward`, `terminated`, `truncated` and `valid`, [N] each, as `StepOutcome`. Raises `EnvironmentFailed`.
        """
        take = functools.partial(self._vector.env.step, unflatten(self._spec.action, action))
        returned, *columns, infos = self._checked.call("in step", take, 5)
        names = ("rewards", "terminated", "truncated")
        reward, terminated, truncated = (self._column(*each) for each in zip(names, columns, strict=True))
        terminated, truncated, reset = terminated.bool(), truncated.bool(), self._invalid
        self.observation = self.acting = self._leaves(returned)
        if not self._at_once:
            self._invalid, self.begun = terminated | truncated, reset
            return reward, terminated, truncated, ~reset
        self._invalid = truncated & ~terminated & ~reset
        self.begun = reset | terminated
        if "final_obs" in infos:
            final = self._leaves(infos["final_obs"])
            self.observation = tuple(
                last.where(self._invalid.reshape(-1, *[1] * (last.ndim - 1)), first)
                for last, first in zip(final, self.acting, strict=True)
            )
        else:
            self._incomplete = self._incomplete | self._invalid
        return reward, terminated, truncated, ~reset

    def check(self) -> None:
        """Raises `EnvironmentFailed` if the last observation of a truncated episode was missing. Waits for the device.

        Call it after the last step of a window.
        """
        if missing := np.flatnonzero(array_of(self._incomplete)).tolist():
            raise self._checked.without_final(missing[0])

    def check_observation(self, observation: Leaves) -> None:
        """Raises `EnvironmentFailed` if leaves [N, ...] of a row, on the host, can't be trained on."""
        self._checked.check(observation)

    def _leaves(self, observation: Any) -> tuple[Any, ...]:
        try:
            leaves = flatten(self._spec.observation, observation)
        except ConfigurationError as error:
            raise faults.refused(str(error), "in step", self._spec.id, None) from None
        for leaf in leaves:
            self._require_tensor("observations", leaf)
        self._checked.check_shapes(leaves)
        return leaves

    def _column(self, what: str, values: Any) -> Any:
        """Returns one value for each environment, [N], also from [N, 1]."""
        self._require_tensor(what, values)
        if values.shape[:1] != (self._checked.count,) or values.numel() != self._checked.count:
            shape = tuple(values.shape)
            what, remedy = f"{what} of shape {shape}", f"return {what} of shape {(self._checked.count,)}"
            raise self._checked.failure(what, None, remedy)
        return values.reshape(-1)

    def _require_tensor(self, what: str, values: Any) -> None:
        if not is_tensor(values):
            kind = type(values).__name__
            remedy = "an environment with the attribute device must return tensors on it"
            raise self._checked.failure(f"{what} of type {kind}", None, remedy)


def _torch() -> Any:
    """Returns the library if an environment has imported it, which an actor itself may not need."""
    return sys.modules.get("torch")
