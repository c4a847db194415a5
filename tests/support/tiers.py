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
    return [case if index in kept else _nightly(case) for index, case in enumerate(every)]


def gate_without(others: Iterable[T], cases: Iterable[T]) -> Sequence[T | ParameterSet]:
    """Marks these cases as nightly."""
    left = list(others)
    return [_nightly(case) if case in left else case for case in cases]


def _nightly(case: object) -> ParameterSet:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.nightly)
