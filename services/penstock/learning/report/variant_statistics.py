"""Statistics of the environment variants: returns of training episodes, and shares of collection.

A run without variants counts as one of variant 0 in the metrics, and shows no variants in its status.
"""

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.telemetry import metrics
from penstock.types.replay import SamplingPlan
from penstock.types.run import ActorReport
from penstock.types.status import VariantStatus

_RECENT_EPISODES = 100
_RECENT_BATCHES = 100
"""Batches in the share of the fresh segments that were collected in a variant."""

_RECENT_OF_ALL = 1_000
"""Episodes of all variants in their shares, if actors play the variants in turn."""

_LISTED = 256
"""Most variants in a status, those with the largest numbers."""


class VariantStatistics:
    """Statistics of the variants of a run, by number. The caller holds a lock.

    Attributes:
        played: Function that returns number, shown arguments and share of the steps of each variant that actors play in
            turn; None: the actors' slots decide their variants.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        """Begins without statistics. `arguments` has the shown arguments of each variant; empty if there are none."""
        self._arguments, self._count = tuple(arguments), max(1, len(arguments))
        self._episodes = dict[int, int]()
        self._returns = dict[int, deque[float]]()
        self._planned: list[float] = []
        self._fresh: deque[NDArray[np.int64]] = deque(maxlen=_RECENT_BATCHES)
        self._recent: deque[tuple[int, int]] = deque(maxlen=_RECENT_OF_ALL)
        self.played: Callable[[], Sequence[tuple[int, str, float]]] | None = None

    def ended(self, report: ActorReport, variant: int) -> None:
        """Adds the training episodes of a report, which ended in this variant unless they state their own."""
        if not self._arguments:
            return
        by_variant: dict[int, list[float]] = {}
        for episode in report.episodes:
            number = variant if episode.variant is None else episode.variant
            by_variant.setdefault(number, []).append(episode.episode_return)
            if self.played is not None:
                self._recent.append((number, episode.steps))
        for number, returns in by_variant.items():
            self._episodes[number] = self._episodes.get(number, 0) + len(returns)
            kept = self._returns.setdefault(number, deque(maxlen=_RECENT_EPISODES))
            kept.extend(returns)
            metrics.VARIANT_EPISODES.labels(str(number)).inc(len(returns))
            metrics.VARIANT_EPISODE_RETURN.labels(str(number)).set(float(np.mean(kept)))

    def planned(self, plan: SamplingPlan) -> None:
        """Sets the plan, from which the shares follow that collection aims at."""
        if self.played is None:
            self._planned = [share / self._count for share in plan.relative_shares(range(self._count))]
            for variant, share in enumerate(self._planned):
                metrics.LEARNER_COLLECTION_SHARE.labels(str(variant)).set(share)

    def trained(self, slots: NDArray[np.uint32]) -> None:
        """Adds the slots, <uint32>[F], of a batch's fresh segments; empty if unknown."""
        if not slots.size or self.played is not None:
            return
        self._fresh.append(np.bincount(slots % self._count, minlength=self._count))
        for variant, segments in enumerate(self._fresh[-1].tolist()):
            metrics.LEARNER_FRESH_SEGMENTS.labels(str(variant)).inc(segments)

    def recent_returns(self, numbers: Sequence[int] | None = None) -> list[list[float]]:
        """Returns of the last episodes of these variants, by default of the configured ones, oldest first."""
        return [list(self._returns.get(number, ())) for number in (range(self._count) if numbers is None else numbers)]

    def episodes(self, number: int) -> int:
        """Returns the number of training episodes that ended in a variant."""
        return self._episodes.get(number, 0)

    def statuses(self) -> tuple[VariantStatus, ...]:
        """Returns the status of each variant that is played; empty if there are none."""
        if self.played is not None:
            variants = self.played()[-_LISTED:]
            shares = self._shares_of_steps()
            total = sum(share for *_, share in variants)
            return tuple(
                self._status(number, arguments, share / total, shares.get(number, 0.0) if shares else None)
                for number, arguments, share in variants
            )
        fresh = np.sum(self._fresh, axis=0) if self._fresh else None
        return tuple(
            self._status(
                number,
                arguments,
                self._planned[number] if self._planned else None,
                float(fresh[number] / fresh.sum()) if fresh is not None else None,
            )
            for number, arguments in enumerate(self._arguments)
        )

    def _status(self, number: int, arguments: str, planned: float | None, fresh: float | None) -> VariantStatus:
        returns = self._returns.get(number)
        mean = float(np.mean(returns)) if returns else None
        return VariantStatus(arguments, self.episodes(number), mean, planned, fresh, number)

    def _shares_of_steps(self) -> dict[int, float]:
        """Returns the shares of the variants in the steps of the last episodes; none before the first episode."""
        steps: dict[int, int] = {}
        for number, taken in self._recent:
            steps[number] = steps.get(number, 0) + taken
        total = sum(steps.values())
        return {number: taken / total for number, taken in steps.items()} if total else {}
