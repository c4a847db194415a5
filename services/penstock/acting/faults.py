"""Faults of environments, described in one line: exceptions, and values that can't be trained on."""

import numpy as np
from numpy.typing import NDArray

from penstock.errors import EnvironmentFailed
from penstock.foreign_errors import describe, let_ctrl_c_pass

LARGEST = float(np.finfo(np.float32).max)
"""Largest magnitude of a value in a segment, which is stored as float32."""


def failure(what: str, where: str, env_id: str, index: int | None) -> EnvironmentFailed:
    """Returns the failure of environment `index`, described by the fault, the call where it occurred, and the id."""
    return EnvironmentFailed(f"{what} {where} ({env_id})", index)


def refused(refusal: str, where: str, env_id: str, index: int | None) -> EnvironmentFailed:
    """Returns the failure of an environment whose values were refused. The remedy follows the semicolon."""
    found, _, remedy = refusal.partition("; ")
    return EnvironmentFailed(f"{found} {where} ({env_id}); {remedy}", index)


def raised(error: BaseException, where: str, env_id: str, index: int | None) -> EnvironmentFailed:
    """Returns the failure of an environment that raised an exception. Raises like `let_ctrl_c_pass`."""
    let_ctrl_c_pass(error)
    return failure(describe(error), where, env_id, index)


def all_usable(values: NDArray[np.generic], largest: float = LARGEST) -> bool:
    """Returns whether no magnitude exceeds `largest`. Those of integers and booleans never do."""
    dtype = values.dtype
    if dtype.kind != "f":
        return True
    flat = values.ravel("K")
    if dtype.itemsize >= 4 and flat.dot(flat) <= min(largest * largest, LARGEST):
        # A small sum of squares has no large summand and no NaN.
        return True
    return bool((np.abs(values) <= largest).all())


def find_unusable(values: NDArray[np.generic], largest: float = LARGEST) -> tuple[int, str] | None:
    """Returns the first row of <number>[N, ...] with a value that can't be trained on, and why; None if all can.

    `largest` is the largest magnitude of one that can.
    """
    if all_usable(values, largest):
        return None
    rows = values.reshape(len(values), -1)
    row, element = np.argwhere(~(np.abs(rows) <= largest))[0].tolist()
    value = float(rows[row, element])
    if abs(value) <= LARGEST:
        return row, f"{value:g}, above {largest:g} in magnitude (environment.largest_magnitude)"
    return row, not_finite(value)


def not_finite(value: float) -> str:
    """Returns why a value can't be trained on."""
    finite = np.isfinite(value)
    return f"{value:g}, which float32 can't hold (at most {LARGEST:.3g})" if finite else f"{value:g}"
