"""Arrays that hold one leaf of the observations of N environments, and the checks of the values in them."""

from collections.abc import Sequence
from typing import Any, assert_never

import gymnasium
import numpy as np
from numpy.typing import NDArray

from penstock.acting import faults
from penstock.acting.returned_values import UNREADABLE, array_of
from penstock.types.spaces import BoxSpace, DiscreteSpace, Leaf, MultiBinarySpace, MultiDiscreteSpace, Space


class Unusable(Exception):
    """A value of an environment that can't be trained on. `index` is its row; None if it is not known."""

    def __init__(self, what: str, index: int | None) -> None:
        super().__init__(what)
        self.what, self.index = what, index


class LeafBuffer:
    """One leaf of the observations of N environments that are stepped one after another.

    Attributes:
        rows: [N, ...] the values. Boxes have the element type of their space, and integers that of their column.
    """

    rows: NDArray[np.generic]

    def __init__(self, leaf: Leaf, space: gymnasium.Space[Any], count: int) -> None:
        """Makes room for N rows. `space` is the leaf's Gymnasium space."""
        dtype, shape = leaf.space.observation_array
        self._leaf, self._is_box = leaf, isinstance(leaf.space, BoxSpace)
        self._dtype = np.dtype(space.dtype) if self._is_box else np.dtype(dtype)
        self._shape, self._check = shape, ValueCheck(leaf)
        self.rows = np.zeros((count, *shape), self._dtype)

    def fill(self, values: Sequence[Any]) -> None:
        """Copies one value per environment. Raises `Unusable` for a value that does not fit its space."""
        if self._is_box:
            self._copy(values)
        else:
            try:
                found = np.array(values)
            except UNREADABLE:
                raise self._misfit(values, "iub") from None
            if found.shape != self.rows.shape or found.dtype.kind not in "iub":
                raise self._misfit(values, "iub")
            self._check(found)
            self.rows[...] = found

    def _copy(self, values: Sequence[Any]) -> None:
        rows, shape, dtype = self.rows, self._shape, self._dtype
        for index, value in enumerate(values):
            if type(value) is np.ndarray and value.shape == shape and value.dtype == dtype:
                rows[index] = value
                continue
            # Lists and other types are converted by Gymnasium's rules.
            try:
                np.stack([array_of(value)], out=rows[index : index + 1])
            except UNREADABLE:
                raise self._misfit(values, "") from None
        self._check(rows)

    def _misfit(self, values: Sequence[Any], kinds: str) -> Unusable:
        """Returns the fault of the first value that does not fit; `kinds` has the kinds of types that do."""
        for index, value in enumerate(values):
            try:
                found = array_of(value)
            except UNREADABLE as error:
                return Unusable(f"an observation that is not an array ({error}){self._leaf.place}", index)
            fits = found.dtype.kind in kinds if kinds else np.can_cast(found.dtype, self._dtype, "same_kind")
            if found.shape != self._shape or not fits:
                has = f"{self._shape} and {self._dtype}" if self._is_box else self._leaf.space.shown()
                return Unusable(
                    f"an observation of shape {found.shape} and type {found.dtype}{self._leaf.place}, where its space"
                    f" has {has}",
                    index,
                )
        return Unusable(f"observations that can't be stacked{self._leaf.place}", None)


class ValueCheck:
    """Check of the values of one leaf: floats must be finite in float32, choices in their range, and bits 0 or 1."""

    def __init__(self, leaf: Leaf) -> None:
        self._leaf, self._limits = leaf, _limits(leaf.space)

    def __call__(self, values: NDArray[np.generic]) -> None:
        """Raises `Unusable` for the first row of [N, ...] with a value that can't be trained on."""
        if self._limits is None:
            if found := faults.find_unusable(values):
                raise Unusable(f"an observation with {found[1]}{self._leaf.place}", found[0])
            return
        low, high = self._limits
        outside = (values < low) | (values > high)
        if outside.any():
            row = tuple(np.argwhere(outside)[0].tolist())
            what = f"an observation with {values[row]}{self._leaf.place}, outside of {self._leaf.space.shown()}"
            raise Unusable(what, row[0])


def _limits(space: Space) -> tuple[Any, Any] | None:
    """Returns the lowest and the highest value of each element; None for a box, which may exceed its bounds."""
    match space:
        case BoxSpace():
            return None
        case DiscreteSpace(n=n, start=start):
            return start, start + n - 1
        case MultiDiscreteSpace(shape=shape, n=n, start=start):
            low = np.array(start).reshape(shape)
            return low, low + np.array(n).reshape(shape) - 1
        case MultiBinarySpace():
            return 0, 1
        case _:
            assert_never(space)
