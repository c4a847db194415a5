"""Observations far outside of what their space says, which are trained on as they are and slow learning down."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.types import BoxSpace, EnvironmentSpec


class ObservationBounds:
    """Looks for elements that are outside of their finite bounds by more than the bounds are apart.

    What is slightly outside is common, and does no harm. A look costs a pass over a window.
    """

    def __init__(self, spec: EnvironmentSpec) -> None:
        """Takes the bounds of floating-point observations; others can't leave theirs."""
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
        """The first environment of <float32>[N, T, ...] with such an element, and what it is; None if there is none."""
        if not self._low.size:
            return None
        flat = observation.reshape(*observation.shape[:2], -1)
        if (flat.min(axis=(0, 1)) >= self._low).all() and (flat.max(axis=(0, 1)) <= self._high).all():
            return None
        environment, step, element = np.argwhere((flat < self._low) | (flat > self._high))[0].tolist()
        low, high = (float(bound[min(element, bound.size - 1)]) for bound in self._bounds)
        return environment, (
            f"an observation has {float(flat[environment, step, element]):g} in element {element}, and its space says"
            f" {low:g} to {high:g}"
        )
