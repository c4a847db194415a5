"""Statistics of the environment variants: returns of training episodes, and shares of collection.

A run without variants counts as one of variant 0 in the metrics, and shows no variants in its status.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.telemetry import metrics
from penstock.types.replay import SamplingPlan
from penstock.types.status import VariantStatus

_RECENT_EPISODES = 100
_RECENT_BATCHES = 100
"""Batches in the share of the fresh segments that were collected in a variant."""


class VariantStatistics:
    """Statistics of V variants. The caller holds a lock."""

    def __init__(self, arguments: Sequence[str]) -> None:
        """Begins without statistics. `arguments` has the shown arguments of each variant; empty if there are none."""
        self._arguments, self._count = tuple(arguments), max(1, len(arguments))
        self._episodes = [0] * self._count
        self._returns: list[deque[float]] = [deque(maxlen=_RECENT_EPISODES) for _ in range(self._count)]
        self._planned: list[float] = []
        self._fresh: deque[NDArray[np.int64]] = deque(maxlen=_RECENT_BATCHES)

    def ended(self, variant: int, returns: Sequence[float]) -> None:
        """Adds the returns of training episodes that ended in a variant."""
        if not self._arguments or not returns:
            return
        self._episodes[variant] += len(returns)
        self._returns[variant].extend(returns)
        metrics.VARIANT_EPISODES.labels(str(variant)).inc(len(returns))
        metrics.VARIANT_EPISODE_RETURN.labels(str(variant)).set(float(np.mean(self._returns[variant])))

    def planned(self, plan: SamplingPlan) -> None:
        """Sets the plan, from which the shares follow that collection aims at."""
        self._planned = [share / self._count for share in plan.relative_shares(range(self._count))]
        for variant, share in enumerate(self._planned):
            metrics.LEARNER_COLLECTION_SHARE.labels(str(variant)).set(share)

    def trained(self, slots: NDArray[np.uint32]) -> None:
        """Adds the slots, <uint32>[F], of a batch's fresh segments; empty if unknown."""
        if not slots.size:
            return
        self._fresh.append(np.bincount(slots % self._count, minlength=self._count))
        for variant, segments in enumerate(self._fresh[-1].tolist()):
            metrics.LEARNER_FRESH_SEGMENTS.labels(str(variant)).inc(segments)

    @property
    def recent_returns(self) -> list[list[float]]:
        """Returns of each variant's last episodes, oldest first."""
        return [list(returns) for returns in self._returns]

    def statuses(self) -> tuple[VariantStatus, ...]:
        """Returns the status of each variant; empty if there are none."""
        fresh = np.sum(self._fresh, axis=0) if self._fresh else None
        return tuple(
            VariantStatus(
                arguments,
                self._episodes[variant],
                float(np.mean(self._returns[variant])) if self._returns[variant] else None,
                planned_share=self._planned[variant] if self._planned else None,
                fresh_share=float(fresh[variant] / fresh.sum()) if fresh is not None else None,
            )
            for variant, arguments in enumerate(self._arguments)
        )
