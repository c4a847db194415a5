"""Shares of the variants that actors play in turn, and changes of these variants by a curriculum of the user's own."""

import time

from penstock.config import Config
from penstock.errors import ConfigurationError
from penstock.learning.members.population import Population
from penstock.learning.report.statistics import RunStatistics
from penstock.learning.run.collection import by_rule, normalised
from penstock.learning.run.own_curriculum import OwnCurriculum
from penstock.types.variants import RunVariant

_INTERVAL_S = 1.0
"""Seconds between reviews. Every change costs a message to each actor."""


class VariedCollection:
    """Weighs and changes the variants of a population (`sampling.collection`). Used by one thread."""

    def __init__(self, config: Config, population: Population, statistics: RunStatistics) -> None:
        """Begins without weights. Raises `ConfigurationError` if a rule of the user's own can't be used."""
        self._population, self._statistics = population, statistics
        self._kind, self._threshold = config.sampling.collection, config.evaluation.threshold
        self._kwargs = config.environment.kwargs
        self._own: OwnCurriculum | None = None
        if config.sampling.curriculum is not None:
            known = [self._arguments(each) for each in population.active]
            self._own = OwnCurriculum(config.sampling.curriculum, known, may_change=True)
        self._due_at = 0.0

    def review(self, progress: float) -> None:
        """Weighs the variants by their returns once in `_INTERVAL_S`, or does as a rule of the user's own says.

        The rule learns the `progress` of the run, 0 to 1. Raises `TrainingFailed` if it fails.
        """
        if self._kind == "equal" or (now := time.monotonic()) < self._due_at:
            return
        self._due_at = now + _INTERVAL_S
        active = self._population.active
        returns = self._statistics.variant_returns([each.number for each in active])
        if self._own is None:
            weights = by_rule(self._kind, returns, self._threshold)
        else:
            choice = self._own.choose([self._arguments(each) for each in active], returns, [()] * len(active), progress)
            if choice.variants:
                self._play(active, [{**self._kwargs, **each} for each in choice.variants], self._own)
                return
            weights = [*choice.weights]
        shares = zip(active, normalised(weights), strict=True)
        self._population.weigh({each.number: weight for each, weight in shares})

    def _play(self, active: tuple[RunVariant, ...], wanted: list[dict[str, object]], curriculum: OwnCurriculum) -> None:
        """Has actors play variants with these arguments, and no others."""
        known = [self._arguments(each) for each in active]
        add = [
            {name: value for name, value in each.items() if name not in self._kwargs or self._kwargs[name] != value}
            for place, each in enumerate(wanted)
            if each not in known and each not in wanted[:place]
        ]
        retire = [each.number for each in active if self._arguments(each) not in wanted]
        if add or retire:
            try:
                self._population.change(add, retire)
            except ConfigurationError as error:
                raise curriculum.fault(str(error)) from error

    def _arguments(self, variant: RunVariant) -> dict[str, object]:
        return {**self._kwargs, **variant.arguments}
