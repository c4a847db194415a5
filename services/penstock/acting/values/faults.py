"""Faults of environments, described in one line: exceptions, and values that can't be trained on.

The check before a run and the actors describe them by the same functions, so that a fault has one text: the fault, the
call in which it occurred, the environment's id, and a remedy.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.acting.values.returned_values import number_of, shape_of, truth_of
from penstock.errors import EnvironmentFailed
from penstock.machine.foreign_errors import explain, let_ctrl_c_pass, place_of, shortened

LARGEST = float(np.finfo(np.float32).max)
"""Largest magnitude of a value in a segment, which is stored as float32."""

_LARGEST_HALF = float(np.finfo(np.float16).max)

ONE_NUMBER = "a reward must be one finite number, also in float32"
"""Remedy for a reward that can't be used."""

_RETURNED = {
    2: "reset must return observation and info",
    5: "step must return observation, reward, terminated, truncated and info",
}


def failure(what: str, where: str, env_id: str, index: int | None, remedy: str = "") -> EnvironmentFailed:
    """Returns the failure of environment `index`, described by the fault, the call where it occurred, and the id."""
    return EnvironmentFailed(f"{what} {where} ({env_id})" + (f"; {remedy}" if remedy else ""), index)


def refused(refusal: str, where: str, env_id: str, index: int | None) -> EnvironmentFailed:
    """Returns the failure of an environment whose values were refused. The remedy follows the semicolon."""
    found, _, remedy = refusal.partition("; ")
    return failure(found, where, env_id, index, remedy)


def raised(error: BaseException, where: str, env_id: str, index: int | None) -> EnvironmentFailed:
    """Returns the failure of an environment that raised an exception. Raises like `let_ctrl_c_pass`."""
    let_ctrl_c_pass(error)
    return failure(explain(error), where, env_id, index, remedy_for(error))


def remedy_for(error: BaseException) -> str:
    """Returns the remedy for an exception of an environment."""
    # Python's texts for a call with other arguments, and for a result of another length, say something about reset and
    # step only if no line of the user raised them.
    called = not place_of(error)
    if called and isinstance(error, TypeError) and "argument" in str(error):
        return "reset must take the keywords seed and options, and step one action"
    if called and isinstance(error, ValueError) and "to unpack" in str(error):
        return f"{_RETURNED[5]}, and reset observation and info"
    if isinstance(error, SystemExit):
        return "an environment must raise an exception, not end its process"
    return "correct the environment, or choose another by --env-id"


def of_form(result: object, count: int) -> tuple[str, str] | None:
    """Returns the fault, and its remedy, of a result that is not the tuple of `reset` (2 values) or `step` (5)."""
    if not isinstance(result, tuple) or len(result) != count:
        return f"{_kind(result)} was returned", _RETURNED[count]
    if not isinstance(result[-1], dict):
        return f"an info that is {_kind(result[-1])}", "it must be a dict"
    return None


def of_step(result: object) -> tuple[str, str]:
    """Returns the fault, and its remedy, of a result of `step` that a single environment can't be trained with."""
    if fault := of_form(result, 5):
        return fault
    assert isinstance(result, tuple)
    _, reward, *ends, _ = result
    try:
        number = number_of(reward)
    except Exception:
        if shape := shape_of(reward):
            return f"a reward of shape {shape}", f"{ONE_NUMBER}; add its elements, for instance in a wrapper"
        return "no reward (None)" if reward is None else f"the reward {_kind(reward)}", ONE_NUMBER
    for what, value in zip(("terminated", "truncated"), ends, strict=True):
        try:
            truth_of(value)
        except Exception:
            return f"{what} as {_kind(value)}", "it must be True or False"
    return f"a reward of {not_finite(number)}", ONE_NUMBER


def all_usable(values: NDArray[np.generic], largest: float = LARGEST) -> bool:
    """Returns whether no magnitude exceeds `largest`. Those of integers and booleans never do."""
    dtype = values.dtype
    if dtype.kind != "f":
        return True
    flat = values.ravel("K")
    if dtype.itemsize >= 4 and flat.dot(flat) <= min(largest * largest, LARGEST):
        # A small sum of squares has no large summand and no NaN.
        return True
    # A half holds no limit above its own, which would become infinite.
    return bool((np.abs(values) <= (largest if dtype.itemsize >= 4 else min(largest, _LARGEST_HALF))).all())


def require_usable(
    named: Iterable[tuple[str, NDArray[np.generic], str]], *, largest: float, where: str, env_id: str
) -> None:
    """Raises `EnvironmentFailed` for the first row of <number>[N, ...] with a value that can't be trained on.

    `named` has the values, each between the texts before a value and after it.
    """
    for what, values, place in named:
        if found := find_unusable(values, largest, place):
            index, why, remedy = found
            raise failure(f"{what} {why}", where, env_id, index, remedy)


def find_unusable(
    values: NDArray[np.generic], largest: float = LARGEST, place: str = ""
) -> tuple[int, str, str] | None:
    """Returns the first row of <number>[N, ...] with a value that can't be trained on, why, and a remedy; None if none.

    `largest` is the largest magnitude of one that can, and `place` the text after the value.
    """
    if all_usable(values, largest):
        return None
    rows = values.reshape(len(values), -1).astype(np.float64)
    row, element = np.argwhere(~(np.abs(rows) <= largest))[0].tolist()
    value = float(rows[row, element])
    if abs(value) <= LARGEST:
        why = f"{value:g}{place}, above {largest:g} in magnitude (environment.largest_magnitude)"
        return row, why, "scale it to about 1, or raise the limit"
    return row, not_finite(value, place), ""


def not_finite(value: float, place: str = "") -> str:
    """Returns why the value at this place can't be trained on."""
    why = f", which float32 can't hold (at most {LARGEST:.3g})" if np.isfinite(value) else ""
    return f"{value:g}{place}{why}"


def _kind(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    return shortened(f"{type(value).__name__} {value!r:.80}")
