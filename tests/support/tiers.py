"""Cases of a parametrised test that `make test` leaves to `make test-all`."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

import pytest
from _pytest.mark import ParameterSet

T = TypeVar("T")


def gate_of(count: int, cases: Iterable[T]) -> Sequence[T | ParameterSet]:
    """Marks all cases but `count` of them as nightly. Those that remain are spread evenly over all."""
    every = list(cases)
    kept = {index * len(every) // count for index in range(count)}
    return [
        case
        if index in kept
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.nightly)
        for index, case in enumerate(every)
    ]
