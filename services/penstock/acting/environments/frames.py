"""Environments whose observations are stacked frames, or images with channels first."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.acting.environments.single_environments import StepOutcome
from penstock.acting.environments.vectors import Environments
from penstock.acting.values.spaces import channels_first, stacked
from penstock.errors import ConfigurationError
from penstock.types.spaces import BoxSpace, Leaf, Tree, is_image, is_stackable

_MAX_FRAMES = 64


class Frames:
    """Environments whose policy acts on the last k frames, stacked along the first axis, oldest first.

    The boxes of an observation are stacked, and its other leaves pass unchanged. A row records only its newest frame.
    The learner stacks frames in the same way (`learning.step.batches`). An episode's first frame replaces the frames
    before it. Images of shape (H, W) or (H, W, C) become (C, H, W).
    """

    def __init__(self, environments: Environments, frames: int) -> None:
        """Stacks k `frames`. Raises `ConfigurationError` if observations can't be stacked, or k is out of range."""
        spec = environments.spec
        if frames > 1 and not any(map(is_stackable, spec.observation.spaces)):
            raise ConfigurationError(
                f"{spec.id} has the observation space {spec.observation.shown()}, which can't be stacked; set"
                " environment.frame_stack to 1"
            )
        if not 1 <= frames <= _MAX_FRAMES:
            raise ConfigurationError(f"between 1 and {_MAX_FRAMES} frames can be stacked, not {frames}")
        self._environments, self.timed = environments, environments.timed
        self.count, self.progress, self.action_mask = (
            environments.count,
            environments.progress,
            environments.action_mask,
        )
        self._parts = [
            _Stack(space, frames, self.count) if is_stackable(space) else None for space in spec.observation.spaces
        ]
        leaves = zip(spec.observation.leaves, self._parts, strict=True)
        self.spec = dataclasses.replace(
            spec,
            observation=Tree(tuple(leaf if part is None else Leaf(leaf.path, part.space) for leaf, part in leaves)),
            frames=frames,
        )
        self.observation: tuple[NDArray[np.generic], ...] = ()
        self.acting_observation: tuple[NDArray[np.generic], ...] = ()

    def reset(self, seeds: Sequence[int]) -> None:
        """Starts new episodes."""
        self._environments.reset(seeds)
        self._push(np.ones(self.count, np.bool_))

    def step(self, action: tuple[NDArray[np.generic], ...]) -> StepOutcome:
        """Takes one step in each environment."""
        outcome = self._environments.step(action)
        self._after(outcome)
        return outcome

    def send(self, action: tuple[NDArray[np.generic], ...], environments: NDArray[np.intp]) -> None:
        """Begins a step in some environments."""
        self._environments.send(action, environments)

    def receive(self, least: int) -> tuple[NDArray[np.intp], StepOutcome]:
        """Waits until some environments have ended their step."""
        answered, outcome = self._environments.receive(least)
        self._after(outcome, answered)
        return answered, outcome

    def close(self) -> None:
        """Closes the environments."""
        self._environments.close()

    def _after(self, outcome: StepOutcome, answered: NDArray[np.intp] | None = None) -> None:
        self._push(outcome.begun, answered)
        hidden = (outcome.terminated | outcome.truncated) & ~outcome.begun
        acting = self._environments.acting_observation
        if acting is not self._environments.observation and hidden.any():
            self.acting_observation = tuple(
                leaf if part is None else part.replaced(leaf, hidden)
                for leaf, part in zip(acting, self._parts, strict=True)
            )

    def _push(self, begun: NDArray[np.bool_], answered: NDArray[np.intp] | None = None) -> None:
        leaves = list(zip(self._environments.observation, self._parts, strict=True))
        self.observation = tuple(leaf if part is None else part.push(leaf, begun, answered) for leaf, part in leaves)
        self.acting_observation = tuple(leaf if part is None else part.frames for leaf, part in leaves)
        self.action_mask = self._environments.action_mask


class _Stack:
    """The last k frames of one leaf of N environments.

    Attributes:
        space: Space of the stacked frames.
    """

    def __init__(self, space: BoxSpace, frames: int, count: int) -> None:
        self.space, self._image = stacked(space, frames), is_image(space)
        shape = self.space.shape
        self._stack = np.zeros((count, frames, shape[0] // frames, *shape[1:]), space.dtype)

    @property
    def frames(self) -> NDArray[np.generic]:
        """The stacked frames, [N, k C, ...]."""
        return self._flat(self._stack)

    def push(
        self, observation: NDArray[np.generic], begun: NDArray[np.bool_], answered: NDArray[np.intp] | None
    ) -> NDArray[np.generic]:
        """Adds the newest observation and returns it as a frame, [N, C, ...]. `begun` are first rows of episodes.

        `answered` are the rows with a newest observation; None: all.
        """
        frame = self._frame(observation)
        if frame.dtype == np.float64 and self._stack.dtype != np.float64:
            # Offsets are subtracted from all digits.
            self._stack = self._stack.astype(np.float64)
        rows = slice(None) if answered is None else answered
        self._stack[rows, :-1] = self._stack[rows, 1:]
        self._stack[rows, -1] = frame[rows]
        first = np.zeros(len(frame), np.bool_)
        first[rows] = begun[rows]
        if first.any():
            self._stack[first] = frame[first][:, None]
        return frame

    def replaced(self, observation: NDArray[np.generic], rows: NDArray[np.bool_]) -> NDArray[np.generic]:
        """Returns the stacked frames, in which this observation replaces all frames of some rows."""
        acting = self._stack.copy()
        acting[rows] = self._frame(observation)[rows][:, None]
        return self._flat(acting)

    def _frame(self, observation: NDArray[np.generic]) -> NDArray[np.generic]:
        return channels_first(observation) if self._image else observation

    def _flat(self, stack: NDArray[np.generic]) -> NDArray[np.generic]:
        """Returns [N, k, C, ...] as [N, k C, ...]."""
        flat: NDArray[np.generic] = stack.reshape(len(stack), -1, *stack.shape[3:])
        return flat


def with_frames(environments: Environments, frames: int) -> Environments:
    """Wraps environments to stack frames or convert images to channels first, if needed. Raises as `Frames`."""
    images = any(map(is_image, environments.spec.observation.spaces))
    return environments if frames == 1 and not images else Frames(environments, frames)
