"""Numbers that environments return in their infos, such as info["success"] (`environment.info_metrics`).

A value lasts until the end of its episode, so that it counts even if the last info lacks it. `single_environments` and
`vectors` read their infos here and pass the values on in `StepOutcome`. Keys that are missing, and values that are not
numbers, become NaN, with one notice for each key.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.acting.values.returned_values import UNREADABLE, array_of, column_of, number_of
from penstock.machine.foreign_errors import shortened

LARGEST = 1e100
"""Largest magnitude of a value. The mean of any number of them is finite in float64."""

SUCCESS = ("success", "is_success")
"""Keys by which environments report that an episode has reached its goal."""

Values = NDArray[np.float64]


class InfoMetrics:
    """The latest values of M keys in the episodes of N environments. Used by one thread.

    A key with dots, such as final.success, is a path in nested infos unless an info has a key of just that name. Each
    method returns <float64>[N, M] values so far, NaN where an episode has none yet, which the next call overwrites.
    """

    def __init__(self, keys: Sequence[str], count: int, notice: Callable[[str], None]) -> None:
        """Begins before any reset. `notice` gets a line for the user, once for each key and kind of fault."""
        self._paths = [(key, key.split(".")) for key in keys]
        self._values: Values = np.full((count, len(keys)), np.nan)
        self._ended, self._next = np.zeros(count, np.bool_), self._values.copy()
        self._notice, self._noticed = notice, set[tuple[str, str]]()

    def begin(self, infos: Sequence[Any] | Mapping[str, Any]) -> Values:
        """Takes the infos after a reset of all environments, in either form."""
        self._ended[:] = False
        self._values[:] = self._read(infos)
        return self._values

    def step(
        self, infos: Sequence[Any] | Mapping[str, Any], begun: NDArray[np.bool_], ended: NDArray[np.bool_]
    ) -> Values:
        """Takes the infos of a step: one for each environment, or those of a vector environment.

        `begun`, <bool>[N], are environments that only reset, and `ended` those whose episode ended.
        """
        self._values[begun] = np.nan
        self._update(self._read(infos))
        self._look_for_missing(infos, ended)
        return self._values

    def step_at_once(self, infos: Mapping[str, Any], ended: NDArray[np.bool_]) -> Values:
        """Takes the infos of a vector environment whose environments reset in the step that ends an episode.

        Their last infos are in info["final_info"], and the others are of the next episode.
        """
        self._values[self._ended] = self._next[self._ended]
        found, final = self._read(infos), infos.get("final_info", {})
        if ended.any():
            self._next, self._ended = found, ended.copy()
            found = np.where(ended[:, None], self._read(final), found)
        else:
            self._ended = ended.copy()
        self._update(found)
        self._look_for_missing(final, ended)
        return self._values

    def _update(self, found: Values) -> None:
        np.copyto(self._values, found, where=~np.isnan(found))

    def _read(self, infos: Sequence[Any] | Mapping[str, Any]) -> Values:
        found = np.full(self._values.shape, np.nan)
        if isinstance(infos, Mapping):
            for column, (key, path) in enumerate(self._paths):
                found[:, column] = self._column(infos, key, path)
            return found
        for row, info in enumerate(infos):
            for column, (key, path) in enumerate(self._paths):
                if (place := _place(info, key, path)) is not None:
                    found[row, column] = self._number(key, place[0][place[1]])
        return found

    def _column(self, infos: Mapping[str, Any], key: str, path: list[str]) -> Values:
        """Returns the values of one key in the infos of a vector environment, <float64>[N]."""
        count = len(self._values)
        if (place := _place(infos, key, path)) is None:
            return np.full(count, np.nan)
        holder, name = place
        known = np.ones(count, np.bool_)
        try:
            # Gymnasium marks the environments that have returned the key.
            if (mask := holder.get(f"_{name}")) is not None:
                known = column_of(mask, count).astype(np.bool_)
            values = array_of(holder[name])
            if values.dtype.kind != "O" or values.shape != (count,):
                values = column_of(values, count).astype(np.float64)
                usable = np.abs(values) <= LARGEST
                if (wrong := known & ~usable & ~np.isnan(values)).any():
                    self._refuse(key, f"has {values[wrong][0]:g}, which is not finite or too large")
                return np.where(known & usable, values, np.nan)
        except UNREADABLE as error:
            self._refuse(key, f"is not one number for each environment: {shortened(str(error))}")
            return np.full(count, np.nan)
        pairs = zip(known.tolist(), values.tolist(), strict=True)
        return np.array([self._number(key, value) if present else math.nan for present, value in pairs])

    def _number(self, key: str, value: Any) -> float:
        """Returns the number in a value; NaN if it has none, with a notice unless it is None or NaN."""
        if value is None:
            return math.nan
        try:
            number = number_of(value)
        except UNREADABLE:
            self._refuse(key, f"is {shortened(repr(value))}, not a number or a truth value")
            return math.nan
        if abs(number) <= LARGEST:
            return number
        if not math.isnan(number):
            self._refuse(key, f"is {number:g}, which is not finite or too large")
        return math.nan

    def _look_for_missing(self, infos: Sequence[Any] | Mapping[str, Any], ended: NDArray[np.bool_]) -> None:
        if not ended.any():
            return
        missing = np.isnan(self._values) & ended[:, None]
        for column in np.flatnonzero(missing.any(0)).tolist():
            info = infos if isinstance(infos, Mapping) else infos[int(missing[:, column].argmax())]
            key, path = self._paths[column]
            if _place(info, key, path) is None:
                known = shortened(", ".join(_keys(info))) or "none"
                self._tell(key, "lacked", f"info lacked {key!r} in an episode; the keys of its last info: {known}")

    def _refuse(self, key: str, fault: str) -> None:
        self._tell(key, "refused", f"info[{key!r}] {fault}")

    def _tell(self, key: str, kind: str, text: str) -> None:
        if (key, kind) not in self._noticed:
            self._noticed.add((key, kind))
            self._notice(f"{text}; correct environment.info_metrics")


def _place(info: Any, key: str, path: list[str]) -> tuple[Mapping[str, Any], str] | None:
    """Returns the mapping that has a key, and its name there; None if there is none."""
    if not isinstance(info, Mapping):
        return None
    if key in info:
        return info, key
    for part in path[:-1]:
        info = info.get(part)
        if not isinstance(info, Mapping):
            return None
    return (info, path[-1]) if path[-1] in info else None


def _keys(info: Any, prefix: str = "") -> Iterator[str]:
    """Yields the keys of an info, those of nested ones with their path, without the masks of a vector environment."""
    if isinstance(info, Mapping):
        for key, value in info.items():
            if str(key).removeprefix("_") not in info or not str(key).startswith("_"):
                nested = isinstance(value, Mapping)
                yield from _keys(value, f"{prefix}{key}.") if nested else [f"{prefix}{key}"]
