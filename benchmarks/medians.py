"""Medians of measurements that are repeated in rounds."""

import statistics
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Measured = TypeVar("Measured", bound="DataclassInstance")


def median(rounds: Sequence[Measured]) -> Measured:
    """Returns the median of each number of a dataclass; a count stays whole."""

    def of(name: str) -> float | int:
        values = [getattr(each, name) for each in rounds]
        found: float = statistics.median(values)
        return round(found) if all(isinstance(value, int) for value in values) else found

    return replace(rounds[0], **{field.name: of(field.name) for field in fields(rounds[0])})
