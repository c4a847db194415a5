"""What environments do wrong, in one line each: exceptions, and values that can't be trained on."""

import signal

import numpy as np
from numpy.typing import NDArray

from penstock.errors import EnvironmentFailed

LARGEST = float(np.finfo(np.float32).max)
"""Of the values of segments, which are float32."""

MISBEHAVIOUR = (Exception, SystemExit, KeyboardInterrupt)
"""What an environment may raise that is its failure, and not the process's end."""

_SHOWN = 300


def describe(error: BaseException) -> str:
    """An exception's class and text, in one line."""
    text, kind = shortened(str(error)), type(error).__name__
    return f"{kind}: {text}" if text else kind


def one_line(text: str) -> str:
    """A text without its line breaks and indentation."""
    return " ".join(text.split())


def shortened(text: str) -> str:
    """At most 300 characters of a text, in one line."""
    line = one_line(text)
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."


def failure(what: str, where: str, env_id: str, index: int | None) -> EnvironmentFailed:
    """The failure of an environment: what it did, where in its life, and its id."""
    return EnvironmentFailed(f"{what} {where} ({env_id})", index)


def let_ctrl_c_pass(error: BaseException) -> None:
    """Raises a KeyboardInterrupt again that is the user's. In a service, which handles that signal itself, it can only
    be the environment's.
    """
    if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        raise error


def raised(error: BaseException, where: str, env_id: str, index: int | None) -> EnvironmentFailed:
    """The failure of an environment that raised an exception. Raises as `let_ctrl_c_pass`."""
    let_ctrl_c_pass(error)
    return failure(describe(error), where, env_id, index)


def all_usable(values: NDArray[np.generic]) -> bool:
    """Whether all of these are finite as float32. Integers and booleans are."""
    if values.dtype.kind != "f":
        return True
    flat = values.ravel("K")
    if values.dtype.itemsize >= 4 and flat.dot(flat) <= LARGEST:
        # A sum of squares that is not large has no summand that is, and none that is no number.
        return True
    return bool((np.abs(values) <= LARGEST).all())


def unusable_row(values: NDArray[np.generic]) -> tuple[int, float]:
    """The first row of <float>[N, ...] with a value that is not finite as float32, and that value."""
    bad = ~(np.abs(values.reshape(len(values), -1)) <= LARGEST)
    row = int(np.flatnonzero(bad.any(axis=1))[0])
    return row, float(values.reshape(len(values), -1)[row][bad[row]][0])


def not_finite(value: float) -> str:
    """Why a value can't be trained on."""
    finite = np.isfinite(value)
    return f"{value:g}, which float32 can't hold (at most {LARGEST:.3g})" if finite else f"{value:g}"
