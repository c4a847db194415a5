"""Weights of variants by a function of the user's own (`sampling.collection`)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.curricula import Variant
from penstock.learning.step.own.code import OwnFunction, before_training


class OwnCurriculum:
    """A user's curriculum, which was tried without episodes and with some. Used by one thread."""

    def __init__(self, name: str, arguments: Sequence[Mapping[str, object]]) -> None:
        """Imports the function of this name, and calls it for variants with these arguments.

        Raises `ConfigurationError` if it can't be called, or does not return a usable weight for each variant.
        """
        self._arguments = arguments
        self._function = OwnFunction(
            "sampling.collection",
            name,
            examples="file.py:my_curriculum or my_package.my_module:my_curriculum",
            arguments=("variants", "progress"),
        )
        count = len(arguments)
        with before_training():
            self.weights([()] * count, [()] * count, 0.0)
            self.weights([(float(number), 1.0) for number in range(count)], [(1.0, 2.0)] * count, 1.0)

    def weights(
        self, returns: Sequence[Sequence[float]], errors: Sequence[Sequence[float]], progress: float
    ) -> list[float]:
        """Returns the weights of the V variants, of which each is finite and not negative, and one is above 0.

        Raises `TrainingFailed` if the function raises an exception, or returns something else.

        Args:
            returns: Returns of the newest training episodes of each variant.
            errors: Mean errors of the newest segments of each variant.
            progress: Progress of the run, 0 to 1.
        """
        known = zip(self._arguments, returns, errors, strict=True)
        result: Any = self._function(
            [Variant(dict(each), tuple(ends), tuple(off)) for each, ends, off in known], progress
        )
        remedy = f"return {len(self._arguments)} numbers, one for each of environment.variants"
        try:
            weights = [float(each) for each in result]
        except (TypeError, ValueError) as error:
            raise self._function.fault(f"returned {result!r:.80}", remedy) from error
        if len(weights) != len(self._arguments):
            raise self._function.fault(f"returned {len(weights)} weights", remedy)
        if not all(0.0 <= each < math.inf for each in weights) or not any(weights):
            raise self._function.fault(
                f"returned the weights {', '.join(f'{each:g}' for each in weights)}",
                "return finite numbers, 0 or above, of which one is above 0",
            )
        return weights
