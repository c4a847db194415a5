"""One-line descriptions of environment faults: exceptions, and values that can't be trained on."""

import signal
import traceback

import numpy as np
from numpy.typing import NDArray

from penstock.errors import EnvironmentFailed

LARGEST = float(np.finfo(np.float32).max)
"""Largest magnitude of a value in a segment, which is stored as float32."""

MISBEHAVIOUR = (Exception, SystemExit, KeyboardInterrupt)
"""Exceptions that count as a failure of the environment and do not end the process."""

_SHOWN = 300
_NOT_THEIRS = ("/gymnasium/", "/penstock/", "/numpy/", "<frozen ")
"""Parts of the file names of code that calls environments or imports them."""


def describe(error: BaseException) -> str:
    """Returns an exception's class and text in one line."""
    text, kind = shortened(str(error)), type(error).__name__
    return f"{kind}: {text}" if text else kind


def explain(error: BaseException) -> str:
    """Returns an exception's class and text, and the line of the environment that raised it."""
    frames = ((frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__))
    theirs = [frame for frame in frames if not any(part in frame[0] for part in _NOT_THEIRS)]
    place = f" ({theirs[-1][0]}, line {theirs[-1][1]})" if theirs else ""
    return f"{describe(error).rstrip('.')}{place}"


def one_line(text: str) -> str:
    """Returns a text without its line breaks and indentation."""
    return " ".join(text.split())


def shortened(text: str) -> str:
    """Returns at most 300 characters of a text in one line."""
    line = one_line(text)
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."


def failure(what: str, where: str, env_id: str, index: int | None) -> EnvironmentFailed:
    """Returns the failure of environment `index`, described by the fault, the call where it occurred, and the id."""
    return EnvironmentFailed(f"{what} {where} ({env_id})", index)


def refused(refusal: str, where: str, env_id: str, index: int | None) -> EnvironmentFailed:
    """Returns the failure of an environment whose values were refused. The remedy follows the semicolon."""
    found, _, remedy = refusal.partition("; ")
    return EnvironmentFailed(f"{found} {where} ({env_id}); {remedy}", index)


def let_ctrl_c_pass(error: BaseException) -> None:
    """Re-raises a KeyboardInterrupt of the user. In a service, which handles SIGINT, it is an environment's."""
    if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        raise error


def raised(error: BaseException, where: str, env_id: str, index: int | None) -> EnvironmentFailed:
    """Returns the failure of an environment that raised an exception. Raises like `let_ctrl_c_pass`."""
    let_ctrl_c_pass(error)
    return failure(describe(error), where, env_id, index)


def all_usable(values: NDArray[np.generic]) -> bool:
    """Returns whether all values are finite as float32. Integers and booleans always are."""
    if values.dtype.kind != "f":
        return True
    flat = values.ravel("K")
    if values.dtype.itemsize >= 4 and flat.dot(flat) <= LARGEST:
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
