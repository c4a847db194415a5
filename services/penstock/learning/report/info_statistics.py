"""Numbers of training episodes that environments return in their infos (`environment.info_metrics`)."""

import math
from collections import deque
from collections.abc import Sequence

from penstock.telemetry import metrics
from penstock.types.evaluation import EvaluationSummary, InfoMetric
from penstock.types.run import ActorReport

_RECENT_EPISODES = 100


class InfoStatistics:
    """Values of the keys over training episodes. The caller holds a lock."""

    def __init__(self, keys: Sequence[str]) -> None:
        """Begins without episodes."""
        self._keys = tuple(keys)
        self._recent: dict[str, deque[float]] = {key: deque(maxlen=_RECENT_EPISODES) for key in keys}
        self._missing = dict.fromkeys(keys, 0)

    def ended(self, report: ActorReport) -> None:
        """Adds the training episodes of an actor, whose settings may have other keys."""
        if not self._keys or not report.episodes:
            return
        columns = dict(
            zip(report.info_metrics, zip(*(each.info for each in report.episodes), strict=True), strict=True)
        )
        for key in self._keys:
            values = columns.get(key, (math.nan,) * len(report.episodes))
            known = [value for value in values if not math.isnan(value)]
            self._recent[key].extend(known)
            self._missing[key] += len(values) - len(known)
            metrics.EPISODE_INFO_MISSING.labels(key).inc(len(values) - len(known))
        for each in self.recent():
            metrics.EPISODE_INFO.labels(each.name).set(_shown(each))

    def recent(self) -> tuple[InfoMetric, ...]:
        """Returns the means over the last 100 episodes that had a number, and all that had none in this session."""
        return tuple(
            InfoMetric(key, len(values), math.fsum(values) / len(values) if values else None, self._missing[key])
            for key, values in self._recent.items()
        )


def evaluated(evaluation: EvaluationSummary) -> None:
    """Exports the numbers of an evaluation."""
    for each in evaluation.info_metrics:
        metrics.EVALUATION_INFO.labels(each.name).set(_shown(each))


def _shown(found: InfoMetric) -> float:
    return math.nan if found.mean is None else found.mean
