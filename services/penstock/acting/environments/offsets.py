"""Observations as their differences to a constant, where float32 can't tell the numbers of an environment apart.

`find_offsets` chooses the constants before a run (`policy.observation_offsets`), and the weights record them
(`Network.observation_offsets`). Whatever acts with the weights subtracts them while the numbers still have 64 bits, so
that actors, evaluators and trained policies agree.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.acting.environments.single_environments import StepOutcome
from penstock.acting.environments.vectors import Environments
from penstock.algo.network import Network
from penstock.errors import ConfigurationError
from penstock.types.spaces import BoxSpace, EnvironmentSpec, Leaf, Leaves, is_stackable

_LEAST_OFFSET = 1e4
"""Magnitude above which a number may be an offset. Below it, steps of float32 are at most a thousandth."""

_MOST_CHANGE = 1e-3
"""Change in the first steps, as a share of the magnitude, up to which a number is an offset and a small remainder."""

_MOST_NUMBERS = 1024
"""Most numbers of an observation with offsets, which a run's file lists."""


def find_offsets(spec: EnvironmentSpec, rows: Sequence[Leaves]) -> tuple[float, ...]:
    """Returns offsets for these first raw observations, if any, 0 where a number needs none; empty if none does.

    Only numbers of type float64 have offsets, because others have no digits that float32 lacks.
    """
    if not rows:
        return ()
    found: list[NDArray[np.float64]] = []
    for leaf, values in zip(spec.observation.leaves, zip(*rows, strict=True), strict=True):
        if not _has_offsets(leaf):
            continue
        raw = np.stack(values).reshape(len(values), -1)
        largest = np.abs(raw).max(0)
        if raw.dtype == np.float64 and (largest.size + sum(each.size for each in found) <= _MOST_NUMBERS):
            is_offset = (largest >= _LEAST_OFFSET) & (np.ptp(raw, 0) <= _MOST_CHANGE * largest)
            found.append(np.where(is_offset, np.rint(raw[0]), 0.0))
        else:
            found.append(np.zeros(largest.size))
    offsets = tuple(np.concatenate(found).tolist()) if found else ()
    return offsets if any(offsets) else ()


def offsets_of(spec: EnvironmentSpec, offsets: Sequence[float]) -> tuple[NDArray[np.float64] | None, ...]:
    """Returns the offsets of each leaf in the shape of one frame; None for a leaf without any.

    Raises `ConfigurationError` if there is not one number for each number of a frame's boxes of floats.
    """
    sizes = [_size(leaf, spec.frames) for leaf in spec.observation.leaves]
    if len(offsets) not in (0, sum(sizes)):
        raise ConfigurationError(
            f"policy.observation_offsets has {len(offsets)} numbers, and an observation of {spec.id} has {sum(sizes)}"
            " numbers in its boxes of floats; give one for each, or leave it unset"
        )
    if not any(offsets):
        return (None,) * len(sizes)
    parts = np.split(np.array(offsets), np.cumsum(sizes)[:-1])
    return tuple(
        part.reshape(_frame(leaf, spec.frames)) if part.any() else None
        for leaf, part in zip(spec.observation.leaves, parts, strict=True)
    )


def stacked_offsets(spec: EnvironmentSpec, offsets: Sequence[float]) -> tuple[NDArray[np.float64] | None, ...]:
    """Returns the offsets of each leaf in the shape of the stacked frames. Raises as `offsets_of`."""
    parts = zip(spec.observation.leaves, offsets_of(spec, offsets), strict=True)
    return tuple(
        None if part is None else np.concatenate([part] * spec.frames) if is_stackable(leaf.space) else part
        for leaf, part in parts
    )


def with_offsets(environments: Environments, network: Network) -> Environments:
    """Returns environments whose observations are the differences that a policy takes; themselves if it has no offsets.

    Raises `ConfigurationError` as `offsets_of`.
    """
    if not any(network.observation_offsets) or isinstance(environments, OffsetEnvironments):
        return environments
    return OffsetEnvironments(environments, network.observation_offsets)


class OffsetEnvironments:
    """Environments that have been reset, whose observations are differences to the offsets."""

    def __init__(self, environments: Environments, offsets: Sequence[float]) -> None:
        self._environments, self.spec, self.count = environments, environments.spec, environments.count
        self.timed, self.progress = environments.timed, environments.progress
        self._recorded, self._acted = offsets_of(self.spec, offsets), stacked_offsets(self.spec, offsets)
        self._observe()

    def reset(self, seeds: Sequence[int]) -> None:
        """Starts new episodes."""
        self._environments.reset(seeds)
        self._observe()

    def step(self, action: tuple[NDArray[np.generic], ...]) -> StepOutcome:
        """Takes one step in each environment."""
        outcome = self._environments.step(action)
        self._observe()
        return outcome

    def send(self, action: tuple[NDArray[np.generic], ...], environments: NDArray[np.intp]) -> None:
        """Begins a step in some environments."""
        self._environments.send(action, environments)

    def receive(self, least: int) -> tuple[NDArray[np.intp], StepOutcome]:
        """Waits until some environments have ended their step."""
        answered = self._environments.receive(least)
        self._observe()
        return answered

    def close(self) -> None:
        """Closes the environments."""
        self._environments.close()

    def _observe(self) -> None:
        made = self._environments
        self.observation = subtracted(made.observation, self._recorded)
        self.acting_observation = subtracted(made.acting_observation, self._acted)
        self.action_mask = made.action_mask


def subtracted(leaves: Leaves, offsets: Sequence[NDArray[np.float64] | None]) -> Leaves:
    """Returns leaves, [N, ...] each, without their offsets."""
    return tuple(
        leaf if part is None else np.subtract(leaf, part, dtype=np.float64)
        for leaf, part in zip(leaves, offsets, strict=True)
    )


def _has_offsets(leaf: Leaf) -> bool:
    return isinstance(leaf.space, BoxSpace) and leaf.space.dtype == "float32"


def _frame(leaf: Leaf, frames: int) -> tuple[int, ...]:
    shape = leaf.space.observation_array[1]
    return (shape[0] // frames, *shape[1:]) if is_stackable(leaf.space) else shape


def _size(leaf: Leaf, frames: int) -> int:
    return math.prod(_frame(leaf, frames)) if _has_offsets(leaf) else 0
