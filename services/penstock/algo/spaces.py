"""Which spaces the policies here can work with. Imports no torch, so that a launcher can ask before it starts
anything.
"""

import math

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigurationError
from penstock.types import BoxSpace, DiscreteSpace, EnvironmentSpec, Space

_LEAST_IMAGE = 36
"""Height and width that the convolutional layers need."""


def check_spaces(spec: EnvironmentSpec) -> None:
    """Raises `ConfigurationError` for an observation or action space that no policy here can work with."""
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
    """Whether these are images: bytes, (C, H, W)."""
    return space.dtype == "uint8" and len(space.shape) == 3


def bounds(space: BoxSpace) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """<float64>[A] the lowest and the highest value of each element."""
    size = math.prod(space.shape)
    return np.broadcast_to(np.array(space.low), size), np.broadcast_to(np.array(space.high), size)


def bounded(space: BoxSpace) -> NDArray[np.bool_]:
    """<bool>[A] which elements have finite bounds on both sides."""
    low, high = bounds(space)
    both: NDArray[np.bool_] = np.isfinite(low) & np.isfinite(high)
    return both


def _describe(space: Space) -> str:
    if isinstance(space, DiscreteSpace):
        return f"Discrete({space.n}, start={space.start})"
    return f"Box(shape={space.shape}, dtype={space.dtype})"
