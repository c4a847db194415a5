"""Spaces that the policies support.

Imports no torch, so that a launcher can check the spaces before it starts any process.
"""

import math

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigurationError
from penstock.types import BoxSpace, DiscreteSpace, EnvironmentSpec, Space

_LEAST_IMAGE = 36
"""Smallest height and width in pixels that the convolutional layers accept."""


def check_spaces(spec: EnvironmentSpec) -> None:
    """Raises `ConfigurationError` if no policy supports the observation or action space."""
    observation, action = spec.observation, spec.action
    if not isinstance(observation, BoxSpace) or not (len(observation.shape) == 1 or is_image(observation)):
        raise ConfigurationError(
            f"{spec.id} has the observation space {_describe(observation)}; flat boxes (one dimension) and images"
            " (bytes in two or three) are supported. Wrap it, for instance in gymnasium.wrappers.FlattenObservation"
        )
    if is_image(observation) and min(observation.shape[1:]) < _LEAST_IMAGE:
        raise ConfigurationError(
            f"{spec.id} has images of {' x '.join(map(str, observation.shape[1:]))}; they must be at least"
            f" {_LEAST_IMAGE} x {_LEAST_IMAGE}. Enlarge them, for instance by gymnasium.wrappers.ResizeObservation, or"
            " flatten them by FlattenObservation"
        )
    if isinstance(action, BoxSpace) and not action.dtype.startswith("float"):
        raise ConfigurationError(f"{spec.id} has the action space {_describe(action)}; boxes must be of floats")


def is_image(space: BoxSpace) -> bool:
    """Returns whether a space holds images: bytes of shape (C, H, W)."""
    return space.dtype == "uint8" and len(space.shape) == 3


def bounds(space: BoxSpace) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the lowest and the highest value of each element, <float64>[A] each."""
    size = math.prod(space.shape)
    return np.broadcast_to(np.array(space.low), size), np.broadcast_to(np.array(space.high), size)


def bounded(space: BoxSpace) -> NDArray[np.bool_]:
    """Returns <bool>[A]: whether each element has finite bounds on both sides."""
    low, high = bounds(space)
    both: NDArray[np.bool_] = np.isfinite(low) & np.isfinite(high)
    return both


def _describe(space: Space) -> str:
    if isinstance(space, DiscreteSpace):
        return f"Discrete({space.n}, start={space.start})"
    return f"Box(shape={space.shape}, dtype={space.dtype})"
