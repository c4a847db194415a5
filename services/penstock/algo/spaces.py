"""Spaces that the policies support.

Imports no torch, so that a launcher can check the spaces before it starts any process.
"""

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigurationError
from penstock.types.spaces import BoxSpace, EnvironmentSpec, is_image

SUPPORTED_OBSERVATIONS = (
    "flat boxes (one dimension) and images (bytes in two or three dimensions) are supported. Wrap it, for instance in"
    " gymnasium.wrappers.FlattenObservation"
)
_LEAST_IMAGE = 36
"""Smallest height and width in pixels that the convolutional layers accept."""


def check_spaces(spec: EnvironmentSpec) -> None:
    """Raises `ConfigurationError` if no policy supports the spaces. Images have channels first."""
    space, action = spec.observation, spec.action
    if not isinstance(space, BoxSpace) or not (len(space.shape) == 1 or (is_image(space) and len(space.shape) == 3)):
        raise ConfigurationError(f"{spec.id} has the observation space {space.shown()}; {SUPPORTED_OBSERVATIONS}")
    if is_image(space) and min(space.shape[1:]) < _LEAST_IMAGE:
        raise ConfigurationError(
            f"{spec.id} has images of {' x '.join(map(str, space.shape[1:]))}; they must be at least"
            f" {_LEAST_IMAGE} x {_LEAST_IMAGE}. Enlarge them, for instance by gymnasium.wrappers.ResizeObservation, or"
            " flatten them by FlattenObservation"
        )
    if isinstance(action, BoxSpace) and not action.dtype.startswith("float"):
        raise ConfigurationError(f"{spec.id} has the action space {action.shown()}; boxes must be of floats")


def bounds(space: BoxSpace) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the lowest and the highest value of each element, <float64>[A] each."""
    return np.broadcast_to(np.array(space.low), space.size), np.broadcast_to(np.array(space.high), space.size)


def bounded(space: BoxSpace) -> NDArray[np.bool_]:
    """Returns <bool>[A]: whether each element has finite bounds on both sides."""
    low, high = bounds(space)
    both: NDArray[np.bool_] = np.isfinite(low) & np.isfinite(high)
    return both
