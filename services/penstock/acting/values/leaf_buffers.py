"""Arrays that hold one leaf of the observations of N environments, and the checks of the values in them."""

from collections.abc import Sequence
from typing import Any, assert_never

import gymnasium
import numpy as np
from numpy.typing import NDArray

from penstock.acting.values import faults
from penstock.acting.values.returned_values import UNREADABLE, array_of
from penstock.types.spaces import BoxSpace, DiscreteSpace, Leaf, MultiBinarySpace, MultiDiscreteSpace, Space

CORRECT_SPACE = "correct observation_space, or what is returned"
"""Remedy for an observation that does not fit its space."""


class Unusable(Exception):
    """A value of an environment that can't be trained on. `index` is its row; None if it is not known."""

    def __init__(self, what: str, index: int | None, remedy: str = CORRECT_SPACE) -> None:
        super().__init__(what)
        self.what, self.index, self.remedy = what, index, remedy


class LeafBuffer:
    """One leaf of the observations of N environments that are stepped one after another.

    Attributes:
        rows: [N, ...] the values. Boxes have the element type of their space, and integers the type of their column.
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
        try:
            self._check(rows)
        except Unusable:
            # A value that the type of the space can't hold is named as it was.
            self._check(np.stack([array_of(value) for value in values]))
            raise

    def _misfit(self, values: Sequence[Any], kinds: str) -> Unusable:
        """Returns the fault of the first value that does not fit; `kinds` has the kinds of types that do."""
        for index, value in enumerate(values):
            try:
                found = array_of(value)
            except UNREADABLE as error:
                what = f"an observation that is not an array ({error}){self._leaf.place}"
                return Unusable(what, index, "return an array")
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
            if not faults.all_usable(values):
                value, row, place = self._first(values, ~(np.abs(values.astype(np.float64)) <= faults.LARGEST))
                what = f"an observation with {faults.not_finite(float(value), place)}"
                raise Unusable(what, row, "observations must be finite in float32")
            return
        low, high = self._limits
        outside = (values < low) | (values > high)
        if outside.any():
            value, row, place = self._first(values, outside)
            raise Unusable(f"an observation with {value}{place}, outside of {self._leaf.space.shown()}", row)

    def _first(self, values: NDArray[Any], wrong: NDArray[np.bool_]) -> tuple[Any, int, str]:
        """Returns the first value that is `wrong`, its row, and its place for messages, such as ` at pair.1[0]`."""
        row, *index = np.argwhere(wrong)[0].tolist()
        place = f"{self._leaf.place or ' at '}{index}" if index else self._leaf.place
        return values[(row, *index)], row, place


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
