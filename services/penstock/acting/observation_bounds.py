"""Detects observations far outside the bounds of their space. Training uses them unchanged, but learns more slowly."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.types.spaces import BoxSpace, EnvironmentSpec


class ObservationBounds:
    """Finds elements that exceed their finite bounds by more than the distance between the bounds.

    Smaller excesses are common and harmless. A search costs one pass over a window.
    """

    def __init__(self, spec: EnvironmentSpec) -> None:
        """Reads the bounds of floating-point observations; observations of other types are not searched."""
        space = spec.observation
        self._low = self._high = np.zeros(0, np.float32)
        if not isinstance(space, BoxSpace) or not space.dtype.startswith("float"):
            return
        size = len(space.low) // spec.frames
        low, high = np.array(space.low[:size]), np.array(space.high[:size])
        with np.errstate(over="ignore", invalid="ignore"):
            width = high - low
            usable = np.isfinite(width)
            self._low = np.where(usable, low - width, -np.inf).astype(np.float32)
            self._high = np.where(usable, high + width, np.inf).astype(np.float32)
        self._bounds = low, high
        if not usable.any():
            self._low = self._high = np.zeros(0, np.float32)

    def find_outside(self, observation: NDArray[Any]) -> tuple[int, str] | None:
        """Returns the first environment of <float32>[N, T, ...] with such an element, and a description, or None."""
        if not self._low.size:
            return None
        flat = observation.reshape(*observation.shape[:2], -1)
        if (flat.min(axis=(0, 1)) >= self._low).all() and (flat.max(axis=(0, 1)) <= self._high).all():
            return None
        environment, step, element = np.argwhere((flat < self._low) | (flat > self._high))[0].tolist()
        low, high = (float(bound[min(element, bound.size - 1)]) for bound in self._bounds)
        return environment, (
            f"an observation has {float(flat[environment, step, element]):g} in element {element}, and its space allows"
            f" {low:g} to {high:g}"
        )
