"""Environments whose observations are stacked frames, or images with channels first."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.acting.environments import Environments
from penstock.acting.single_environments import StepOutcome
from penstock.acting.spaces import channels_first, stacked
from penstock.errors import ConfigurationError
from penstock.types.spaces import BoxSpace, is_image

_MAX_FRAMES = 64


class Frames:
    """Environments whose policy acts on the last k frames, stacked along the first axis, oldest first.

    A row records only its newest frame and the number of rows since its episode began, at most k - 1. The learner
    stacks frames in the same way (`learning.batches`). An episode's first frame replaces the frames before it. Images
    of shape (H, W) or (H, W, C) become (C, H, W).
    """

    def __init__(self, environments: Environments, frames: int) -> None:
        """Stacks k `frames`. Raises `ConfigurationError` if observations can't be stacked, or k is out of range."""
        space = environments.spec.observation
        if not isinstance(space, BoxSpace) or not space.shape:
            raise ConfigurationError(
                f"{environments.spec.id} has the observation space {space.shown()}, which can't be stacked"
            )
        if not 1 <= frames <= _MAX_FRAMES:
            raise ConfigurationError(f"between 1 and {_MAX_FRAMES} frames can be stacked, not {frames}")
        self._environments, self._frames = environments, frames
        self.count, self.progress = environments.count, environments.progress
        self._image = is_image(space)
        stack = stacked(space, frames)
        shape = (stack.shape[0] // frames, *stack.shape[1:])
        self.spec = dataclasses.replace(environments.spec, observation=stack, frames=frames)
        self._stack = np.zeros((self.count, frames, *shape), space.dtype)
        self.frame_age: NDArray[np.uint8] = np.zeros(self.count, np.uint8)
        self.observation: NDArray[np.generic] = self._stack[:, -1]
        self.acting_observation: NDArray[np.generic] = self._flat(self._stack)

    def reset(self, seeds: Sequence[int]) -> None:
        """Starts new episodes."""
        self._environments.reset(seeds)
        self._push(np.ones(self.count, np.bool_))

    def step(self, action: NDArray[np.generic]) -> StepOutcome:
        """Takes one step in each environment."""
        outcome = self._environments.step(action)
        # A row that only resets is followed by the first row of an episode.
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
        return channels_first(observation) if self._image else observation

    def _flat(self, stack: NDArray[np.generic]) -> NDArray[np.generic]:
        """Returns [N, k, C, ...] as [N, k C, ...]."""
        flat: NDArray[np.generic] = stack.reshape(self.count, -1, *stack.shape[3:])
        return flat


def with_frames(environments: Environments, frames: int) -> Environments:
    """Wraps environments to stack frames or convert images to channels first, if needed. Raises as `Frames`."""
    return environments if frames == 1 and not is_image(environments.spec.observation) else Frames(environments, frames)
