"""The variants that a run has had, and changes of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Arguments = Mapping[str, Any]


def named(arguments: Arguments) -> str:
    """Returns the arguments of a variant as text for display."""
    return ", ".join(f"{name}={value}" for name, value in arguments.items()) or "plain"


@dataclass(frozen=True, slots=True)
class VariantChange:
    """A request for a change: arguments of variants to add, and numbers of variants to retire."""

    add: Sequence[Arguments] = ()
    retire: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class RunVariant:
    """A variant that a run has had (`penstock.Run.list_variants`).

    For example::

        weakest = min(run.list_variants(), key=lambda each: each.return_mean or 0.0)
        run.retire_variants(weakest.number)

    Attributes:
        number: Its number, which is never used again.
        arguments: The arguments of its environments that distinguish it.
        retired: Whether it is no longer played.
        share: Its share of the steps, relative to an equal share; 0 if it is retired.
        episodes: Training episodes since the learner started that ended in it.
        return_mean: Mean return of the last 100 of them; None if there were none.
    """

    number: int
    arguments: Arguments
    retired: bool = False
    share: float = 1.0
    episodes: int = 0
    return_mean: float | None = None

    @property
    def name(self) -> str:
        """Its arguments as text for display."""
        return named(self.arguments)
