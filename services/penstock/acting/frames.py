"""Environments whose observations are frames: images, channels first, and the last few of them stacked."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.acting.environments import Environments
from penstock.acting.step_outcome import StepOutcome
from penstock.errors import ConfigurationError
from penstock.types import BoxSpace

_MAX_FRAMES = 64


class Frames:
    """Environments whose policy acts on the last k frames, stacked along the first axis, the oldest first.

    A row records its newest frame alone, and how many rows ago its episode began; the learner stacks them in the same
    way (`learning.batches`). An episode's first frame stands in for those before it. Images that come as (H, W) or
    (H, W, C) are shown as (C, H, W).
    """

    def __init__(self, environments: Environments, frames: int) -> None:
        """Args:
        environments: Those with single frames.
        frames: k.

        Raises:
            ConfigurationError: Their observations can't be stacked.
        """
        space = environments.spec.observation
        if not isinstance(space, BoxSpace) or not space.shape:
            raise ConfigurationError(f"{environments.spec.id} has observations that are no box and can't be stacked")
        if not 1 <= frames <= _MAX_FRAMES:
            raise ConfigurationError(f"between 1 and {_MAX_FRAMES} frames can be stacked, not {frames}")
        self._environments, self._frames = environments, frames
        self.count, self.progress = environments.count, environments.progress
        self._image = _is_image(space)
        shape = _channels_first(np.empty((1, *space.shape), np.bool_)).shape[1:] if self._image else space.shape
        # An image has thousands of equal bounds, which need not travel with every version of the policy.
        low, high = (
            ((min(space.low),), (max(space.high),)) if self._image else (space.low * frames, space.high * frames)
        )
        stacked = BoxSpace(space.dtype, (frames * shape[0], *shape[1:]), low, high)
        self.spec = dataclasses.replace(environments.spec, observation=stacked, frames=frames)
        self._stack = np.zeros((self.count, frames, *shape), space.dtype)
        self.frame_age: NDArray[np.uint8] = np.zeros(self.count, np.uint8)
        self.observation: NDArray[np.generic] = self._stack[:, -1]
        self.acting_observation: NDArray[np.generic] = self._flat(self._stack)

    def reset(self, seeds: Sequence[int]) -> None:
        """Begins new episodes."""
        self._environments.reset(seeds)
        self._push(np.ones(self.count, np.bool_))

    def step(self, action: NDArray[np.generic]) -> StepOutcome:
        """Takes one step in each environment."""
        outcome = self._environments.step(action)
        # The row after one that only reset is the first of its episode.
        self._push(~outcome.valid)
        hidden = (outcome.terminated | outcome.truncated) & outcome.valid
        if self._environments.acting_observation is not self._environments.observation and hidden.any():
            acting = self._stack.copy()
            acting[hidden] = self._frame(self._environments.acting_observation)[hidden][:, None]
            self.acting_observation = self._flat(acting)
        return outcome

    def close(self) -> None:
        """Closes the environments."""
        self._environments.close()

    def _push(self, begun: NDArray[np.bool_]) -> None:
        frame = self._frame(self._environments.observation)
        self.frame_age = np.where(begun, 0, np.minimum(self.frame_age + 1, self._frames - 1)).astype(np.uint8)
        self._stack[:, :-1] = self._stack[:, 1:]
        self._stack[:, -1] = frame
        if begun.any():
            self._stack[begun] = frame[begun][:, None]
        self.observation, self.acting_observation = frame, self._flat(self._stack)

    def _frame(self, observation: NDArray[np.generic]) -> NDArray[np.generic]:
        return _channels_first(observation) if self._image else observation

    def _flat(self, stack: NDArray[np.generic]) -> NDArray[np.generic]:
        """[N, k, C, ...] as [N, k C, ...]."""
        flat: NDArray[np.generic] = stack.reshape(self.count, -1, *stack.shape[3:])
        return flat


def with_frames(environments: Environments, frames: int) -> Environments:
    """Environments whose observations are images, channels first, or `frames` of them stacked; others as they are.

    Raises:
        ConfigurationError: As `Frames`.
    """
    space = environments.spec.observation
    if frames == 1 and not (isinstance(space, BoxSpace) and _is_image(space)):
        return environments
    return Frames(environments, frames)


def _is_image(space: BoxSpace) -> bool:
    """Whether a frame of this space is an image: bytes in two or three dimensions."""
    return space.dtype == "uint8" and len(space.shape) in (2, 3)


def _channels_first(images: NDArray[np.generic]) -> NDArray[np.generic]:
    """[N, H, W] or [N, H, W, C] as [N, C, H, W], without a copy; there are fewer channels than rows or columns."""
    if images.ndim == 3:
        return images[:, None]
    return np.moveaxis(images, 3, 1) if images.shape[3] < images.shape[1] else images
