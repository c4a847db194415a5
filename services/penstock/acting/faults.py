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


def all_usable(values: NDArray[np.generic]) -> bool:
    """Returns whether all values are finite as float32. Integers and booleans always are."""
    dtype = values.dtype
    if dtype.kind != "f":
        return True
    flat = values.ravel("K")
    if dtype.itemsize >= 4 and flat.dot(flat) <= LARGEST:
        # A small sum of squares has no large summand and no NaN.
        return True
    return bool((np.abs(values) <= LARGEST).all())


def find_unusable(values: NDArray[np.generic]) -> tuple[int, str] | None:
    """Returns the first row of <number>[N, ...] with a value that can't be trained on, and why; None if all can."""
    if all_usable(values):
        return None
    rows = values.reshape(len(values), -1)
    row, element = np.argwhere(~(np.abs(rows) <= LARGEST))[0].tolist()
    return row, not_finite(float(rows[row, element]))


def not_finite(value: float) -> str:
    """Returns why a value can't be trained on."""
    finite = np.isfinite(value)
    return f"{value:g}, which float32 can't hold (at most {LARGEST:.3g})" if finite else f"{value:g}"
