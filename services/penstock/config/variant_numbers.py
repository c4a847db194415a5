"""The numbers by which a policy sees which variant of an environment it is in (`environment.show_variant`)."""

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.errors import ConfigurationError

_ABSENT = object()


def numbers_of(arguments: Mapping[str, Any], variants: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
    """Returns the numbers of a variant with these arguments, as many for each of the `variants` of a run.

    They are the arguments in which the variants differ, in the order of their names: a number as it is, a list of
    numbers as long in all variants as its numbers, and any other value as one 1 among zeros, in the order in which the
    values appear in the variants. Raises `ConfigurationError` if the arguments have another value.
    """
    found: list[float] = []
    for name in sorted({name for variant in variants for name in variant}):
        values = [variant.get(name, _ABSENT) for variant in variants]
        if all(value == values[0] for value in values):
            continue
        own = arguments.get(name, _ABSENT)
        rows = [_row(value) for value in (*values, own)]
        if all(row is not None and len(row) == len(rows[0] or ()) for row in rows):
            found += rows[-1] or ()
            continue
        different = [value for place, value in enumerate(values) if value not in values[:place]]
        if own not in different:
            raise ConfigurationError(
                f"environment.show_variant shows {name} as one of the values of environment.variants, and {own!r} is"
                " none of them; give numbers, or remove the argument"
            )
        found += [float(value == own) for value in different]
    return tuple(found)


def _row(value: object) -> list[float] | None:
    """Returns the numbers of a number or of a list of numbers; None for another value."""
    if isinstance(value, (bool, int, float)):
        return [float(value)]
    if isinstance(value, (list, tuple)) and value and all(isinstance(each, (bool, int, float)) for each in value):
        return [float(each) for each in value]
    return None
