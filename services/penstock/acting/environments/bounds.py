"""Detects observations from which training learns slowly or nothing, and which it uses unchanged.

They are far outside the bounds of their space, or change by less than float32 can tell apart.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.acting.environments.offsets import offsets_of
from penstock.types.block import Columns
from penstock.types.spaces import BoxSpace, EnvironmentSpec, Leaf, is_stackable

_ENOUGH_ROWS = 100
"""Rows whose extremes show the extent of an element."""

_FEWEST_STEPS = 100
"""Steps of float32 in the extent of an element with which it is precise enough."""

_LEAST_OFFSET = 10.0
"""Magnitude below which an element without extent is not an offset, such as the number of a quaternion."""

_ROUNDING = 1e4
"""Steps of float64 up to which an extent may be rounding."""


class ObservationBounds:
    """Finds elements that exceed their finite bounds by more than the distance between the bounds.

    Smaller excesses are common and harmless. A search costs one pass over a window.
    """

    def __init__(self, spec: EnvironmentSpec, offsets: Sequence[float] = ()) -> None:
        """Reads the bounds of floating-point leaves without offsets (`offsets_of`); others are not searched."""
        names, shifts = spec.observation.columns("observation"), offsets_of(spec, offsets)
        self._leaves = [
            (column, found)
            for column, leaf, shift in zip(names, spec.observation.leaves, shifts, strict=True)
            if isinstance(leaf.space, BoxSpace)
            and shift is None
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
        self._name, self.usable = name, False
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
        return environment, outside(float(flat[environment, step, element]), element, self._name, low, high)


class Precision:
    """Finds numbers of 64 bits that change by a few steps of float32, in which policies see them.

    A search costs two reductions of one row per environment, until it has seen enough rows.
    """

    def __init__(self, spec: EnvironmentSpec) -> None:
        """Reads the leaves, of which boxes are searched."""
        self._leaves, self._rows = spec.observation.leaves, 0
        self._extremes: dict[Leaf, tuple[NDArray[Any], NDArray[Any]]] = {}

    def find_coarse(self, observation: tuple[NDArray[np.generic], ...]) -> str:
        """Looks at raw observations, [N, ...] of each leaf; once after enough rows, describes a coarse element.

        Empty if there is none.
        """
        if self._rows >= _ENOUGH_ROWS:
            return ""
        self._rows += len(observation[0])
        for leaf, values in zip(self._leaves, observation, strict=True):
            if isinstance(leaf.space, BoxSpace) and values.dtype.itemsize == 8:
                flat: NDArray[Any] = values.reshape(len(values), -1)
                low, high = flat.min(0), flat.max(0)
                before = self._extremes.get(leaf, (low, high))
                self._extremes[leaf] = np.minimum(before[0], low), np.maximum(before[1], high)
        if self._rows < _ENOUGH_ROWS:
            return ""
        return next(filter(None, (_coarse(leaf, *found) for leaf, found in self._extremes.items())), "")


def outside(value: float, element: int, leaf: str, low: float, high: float) -> str:
    """Returns the warning about an element, of a leaf with this name, that is outside of its bounds."""
    of = f" of {leaf}" if leaf else ""
    return f"an observation has {value:g} in element {element}{of}, and its space allows {low:g} to {high:g}"


def _coarse(leaf: Leaf, low: NDArray[Any], high: NDArray[Any]) -> str:
    largest = np.maximum(np.abs(low), np.abs(high)).astype(np.float64)
    extent = high.astype(np.float64) - low
    step = np.spacing(largest.astype(np.float32)).astype(np.float64)
    found = (largest >= _LEAST_OFFSET) & (extent > _ROUNDING * np.spacing(largest)) & (extent < _FEWEST_STEPS * step)
    if not found.any():
        return ""
    element = int(found.argmax())
    return (
        f"element {element} of the observation{leaf.place} changed by only {extent[element]:.3g} around"
        f" {largest[element]:.3g}, where the policy's float32 has steps of {step[element]:.3g}; subtract a constant"
        " from it, by policy.observation_offsets or in gymnasium.wrappers.TransformObservation"
    )


def _extreme(function: np.ufunc, values: NDArray[Any]) -> NDArray[Any]:
    """Reduces [N, rows, elements] over the first two axes.

    A reduction over the first axis reads contiguous memory. One over both takes twenty times as long.
    """
    first: NDArray[Any] = function.reduce(values, axis=0)
    reduced: NDArray[Any] = function.reduce(first, axis=0)
    return reduced
