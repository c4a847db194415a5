"""Weights of variants by a function of the user's own (`sampling.collection`)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.curricula import Variant
from penstock.errors import TrainingFailed
from penstock.learning.step.own.code import OwnFunction, before_training

Arguments = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Choice:
    """What a curriculum has chosen: the weights of the V variants, or, if there are none, the variants to play."""

    weights: list[float] = field(default_factory=list)
    variants: list[Arguments] = field(default_factory=list)


class OwnCurriculum:
    """A user's curriculum, which was tried without episodes and with some. Used by one thread."""

    def __init__(self, name: str, arguments: Sequence[Arguments], *, may_change: bool = False) -> None:
        """Imports the function of this name, and calls it for variants with these arguments.

        With `may_change`, it may also return the variants to play. Raises `ConfigurationError` if it can't be called,
        or does not return a usable weight for each variant.
        """
        self._may_change = may_change
        self._function = OwnFunction(
            "sampling.collection",
            name,
            examples="file.py:my_curriculum or my_package.my_module:my_curriculum",
            arguments=("variants", "progress"),
        )
        count = len(arguments)
        with before_training():
            self.choose(arguments, [()] * count, [()] * count, 0.0)
            self.choose(arguments, [(float(number), 1.0) for number in range(count)], [(1.0, 2.0)] * count, 1.0)

    def choose(
        self,
        arguments: Sequence[Arguments],
        returns: Sequence[Sequence[float]],
        errors: Sequence[Sequence[float]],
        progress: float,
    ) -> Choice:
        """Returns weights, of which each is finite and not negative, and one is above 0, or variants to play.

        Raises `TrainingFailed` if the function raises an exception, or returns something else.

        Args:
            arguments: All arguments of each variant.
            returns: Returns of the newest training episodes of each variant.
            errors: Mean errors of the newest segments of each variant.
            progress: Progress of the run, 0 to 1.
        """
        known = zip(arguments, returns, errors, strict=True)
        result: Any = self._function(
            [Variant(dict(each), tuple(ends), tuple(off)) for each, ends, off in known], progress
        )
        remedy = f"return {len(arguments)} numbers, one for each variant"
        if self._may_change:
            remedy += ", or the tables of the variants to play"
            if isinstance(result, (list, tuple)) and result and all(isinstance(each, Mapping) for each in result):
                return Choice(variants=[dict(each) for each in result])
        try:
            weights = [float(each) for each in result]
        except (TypeError, ValueError) as error:
            raise self._function.fault(f"returned {result!r:.80}", remedy) from error
        if len(weights) != len(arguments):
            raise self._function.fault(f"returned {len(weights)} weights", remedy)
        if not all(0.0 <= each < math.inf for each in weights) or not any(weights):
            raise self._function.fault(
                f"returned the weights {', '.join(f'{each:g}' for each in weights)}",
                "return finite numbers, 0 or above, of which one is above 0",
            )
        return Choice(weights)

    def fault(self, reason: str) -> TrainingFailed:
        """Returns the error about tables that can't be played."""
        return self._function.fault("returned variants that can't be played", reason)
