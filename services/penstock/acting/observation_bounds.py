"""Detects observations far outside the bounds of their space. Training uses them unchanged, but learns more slowly."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.types.block import Columns
from penstock.types.spaces import BoxSpace, EnvironmentSpec, is_stackable


class ObservationBounds:
    """Finds elements that exceed their finite bounds by more than the distance between the bounds.

    Smaller excesses are common and harmless. A search costs one pass over a window.
    """

    def __init__(self, spec: EnvironmentSpec) -> None:
        """Reads the bounds of floating-point leaves; others are not searched."""
        leaves = zip(spec.observation.columns("observation"), spec.observation.leaves, strict=True)
        self._leaves = [
            (column, found)
            for column, leaf in leaves
            if isinstance(leaf.space, BoxSpace)
            and (found := _LeafBounds(leaf.space, spec.frames if is_stackable(leaf.space) else 1, leaf.name)).usable
        ]

    def find_outside(self, columns: Columns) -> tuple[int, str] | None:
        """Returns the first environment of a window with such an element, and a description, or None."""
        for column, bounds in self._leaves:
            if found := bounds.find_outside(columns.column(column)):
                return found
        return None


class _LeafBounds:
    """The bounds of one leaf. `usable` is whether any element has finite bounds."""

    def __init__(self, space: BoxSpace, frames: int, name: str) -> None:
        self._place = f" of {name}" if name else ""
        self.usable = False
        if not space.dtype.startswith("float"):
            return
        size = max(len(space.low) // frames, 1)
        low, high = np.array(space.low[:size]), np.array(space.high[:size])
        with np.errstate(over="ignore", invalid="ignore"):
            width = high - low
            finite = np.isfinite(width)
            self._low = np.where(finite, low - width, -np.inf).astype(np.float32)
            self._high = np.where(finite, high + width, np.inf).astype(np.float32)
        self._bounds, self.usable = (low, high), bool(finite.any())

    def find_outside(self, observation: NDArray[Any]) -> tuple[int, str] | None:
        flat = observation.reshape(*observation.shape[:2], -1)
        if (_extreme(np.minimum, flat) >= self._low).all() and (_extreme(np.maximum, flat) <= self._high).all():
            return None
        environment, step, element = np.argwhere((flat < self._low) | (flat > self._high))[0].tolist()
        low, high = (float(bound[min(element, bound.size - 1)]) for bound in self._bounds)
        return environment, (
            f"an observation has {float(flat[environment, step, element]):g} in element {element}{self._place}, and its"
            f" space allows {low:g} to {high:g}"
        )


def _extreme(function: np.ufunc, values: NDArray[Any]) -> NDArray[Any]:
    """Reduces [N, rows, elements] over the first two axes.

    A reduction over the first axis reads contiguous memory. One over both takes twenty times as long.
    """
    first: NDArray[Any] = function.reduce(values, axis=0)
    reduced: NDArray[Any] = function.reduce(first, axis=0)
    return reduced
