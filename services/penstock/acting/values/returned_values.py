"""Converts the results of an environment's `step` to numbers, truth values and arrays.

Environments return rewards and ends of episodes as numbers, as arrays of shape (1,), as tensors, or in lists. The check
of an environment and its actors read them by the same functions, so that the check refuses results that an actor can't
use.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

NUMBERS = (float, int, np.floating, np.integer, np.bool_)
"""Types of one number, which `float` converts."""

UNREADABLE = (TypeError, ValueError, OverflowError, RuntimeError)
"""Errors of these functions. The last comes from torch."""


def number_of(value: Any) -> float:
    """Returns the one number that a value holds, NaN if it is masked.

    Raises `UNREADABLE` if it holds none or several, or its number is complex, text or a duration.
    """
    if isinstance(value, NUMBERS):
        return float(value)
    if np.ma.is_masked(value):
        return float("nan")
    while isinstance(value, (list, tuple)) and len(value) == 1:
        value = value[0]
    if hasattr(value, "item"):
        # Also of a tensor on a device, or with a gradient.
        value = value.item()
    if isinstance(value, (str, bytes)):
        raise TypeError(f"a number was expected, not {value!r:.40}")
    return float(value)


def truth_of(value: Any) -> bool:
    """Returns the one truth value that a value holds. Raises as `number_of`, and `ValueError` if it is not 0 or 1."""
    if isinstance(value, np.bool_):
        return bool(value)
    number = number_of(value)
    if number not in (0.0, 1.0):
        raise ValueError(f"True or False was expected, not {value!r:.40}")
    return number == 1.0


def shape_of(value: Any) -> tuple[int, ...]:
    """Returns the shape of an array, a tensor or a list; () for all else."""
    if hasattr(value, "shape"):
        return tuple(value.shape)
    return np.shape(np.array(value, object)) if isinstance(value, (list, tuple)) else ()


def array_of(values: Any) -> NDArray[Any]:
    """Converts values to an array. A tensor is detached from its gradient and copied from its device.

    Raises `UNREADABLE` if they are not an array, or elements are masked.
    """
    if type(values) is np.ndarray:
        return values
    if np.ma.is_masked(values):
        raise ValueError("it has masked elements")
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    return np.asarray(values)


def column_of(values: Any, count: int) -> NDArray[Any]:
    """Returns one value for each environment of a vector environment, [N], also from [N, 1] or a tensor.

    Raises `UNREADABLE` if they are not N numbers.
    """
    column = array_of(values)
    if column.shape != (count,):
        if column.shape[:1] != (count,) or column.size != count:
            raise ValueError(f"an array of shape {column.shape}, not {(count,)}")
        column = column.reshape(count)
    if column.dtype.kind == "O":
        column = np.array([number_of(each) for each in column])
    if column.dtype.kind not in "fiub":
        raise ValueError(f"values of type {column.dtype}, not numbers")
    return column
