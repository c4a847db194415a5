"""Scores of evaluations by a function of the user's own (`evaluation.score`)."""

import math
from typing import Any

from penstock.learning.step.own.code import OwnFunction, before_training
from penstock.types.evaluation import EvaluationSummary, InfoMetric, VariantReturns


class OwnScore:
    """A user's score, which was tried before training. Used by one thread."""

    def __init__(self, name: str, variants: int, keys: tuple[str, ...]) -> None:
        """Imports the function of this name, and calls it for an evaluation of these variants with these infos.

        Raises `ConfigurationError` if it can't be called, or returns no number.
        """
        self._function = OwnFunction(
            "evaluation.score",
            name,
            examples="file.py:my_score or my_package.my_module:my_score",
            arguments=("evaluation",),
        )
        parts = tuple(VariantReturns(1, float(number), 0.0, number) for number in range(variants))
        with before_training():
            self(EvaluationSummary(1, 0, 2, 0.5, 0.5, parts, 0, tuple(InfoMetric(key, 2, 0.5) for key in keys)))

    def __call__(self, evaluation: EvaluationSummary) -> float:
        """Returns the score. Raises `TrainingFailed` if the function raises an exception, or returns no number."""
        result: Any = self._function(evaluation)
        try:
            score = float(result)
        except (TypeError, ValueError):
            score = math.nan
        if math.isnan(score):
            raise self._function.fault(f"returned {result!r:.80}", "return a number")
        return score
