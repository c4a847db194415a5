"""Automatic choice of how far collection may run ahead of training (`sampling.off_policy_degree` -1).

At a higher degree the learner waits less, but its data is older and counts for less. So the degree is raised while the
learner starves and raising it helps, and lowered when too little of the fresh data counts.
"""

from dataclasses import dataclass

LEAST = 1
"""Smallest degree. At 0, collection and training would alternate."""


def least_degree(largest_window: int, fresh_segments: int, shards: int = 1) -> int:
    """Returns the smallest degree at which the largest window, in segments, can be granted.

    A window holds at most the fresh segments of `degree` batches on its shard. The shards divide the fresh segments of
    a batch.
    """
    return max(LEAST, -(-largest_window // max(1, fresh_segments // shards)))


LARGEST = 16

_REVIEW_BATCHES = 32
"""Batches between reviews. The effect of a change shows only after the batches that were collected before it."""

_STARVING = 0.05
"""Share of time spent waiting for fresh segments above which the learner starves."""

_HELPS = 0.9
"""Factor to which an increase of the degree must reduce the waiting to be kept."""

_EFFECTIVE = 0.6
"""Smallest acceptable effective share of the fresh data: (sum w)^2 / (n sum w^2) of its behaviour weights."""

_HOLD_REVIEWS = 16
"""Reviews before a degree that did not help or made data too old is tried again, since speeds and policies change."""


@dataclass(slots=True)
class _Seen:
    """Observations since the last review."""

    batches: int = 0
    waited_s: float = 0.0
    elapsed_s: float = 0.0
    effective: float = 0.0


class ChosenDegree:
    """Off-policy degree of a run that leaves the choice to the learner. Used by one thread."""

    def __init__(self, first: int) -> None:
        """Starts at degree `first`."""
        self.degree = first
        self._seen = _Seen()
        self._waiting_before: float | None = None
        self._ceiling, self._held = LARGEST, 0

    def observe(
        self,
        *,
        waited_s: float,
        elapsed_s: float,
        effective_share: float,
        smallest: int = LEAST,
        largest: int = LARGEST,
    ) -> bool:
        """Observes one batch, `elapsed_s` seconds after the previous one, and returns whether the degree has changed.

        The learner waited `waited_s` seconds for the batch. `effective_share` is that of its fresh segments' behaviour
        weights, 0 to 1. The degree is at least `smallest`, which admits every actor's window (`least_degree`), and
        otherwise at most `largest`, for which the store has room.
        """
        seen = self._seen
        seen.batches += 1
        seen.waited_s += waited_s
        seen.elapsed_s += elapsed_s
        seen.effective += effective_share
        if seen.batches < _REVIEW_BATCHES:
            return False
        self._seen, former = _Seen(), self.degree
        waiting = seen.waited_s / seen.elapsed_s if seen.elapsed_s > 0.0 else 0.0
        smallest = max(LEAST, smallest)
        self._review(waiting, seen.effective / seen.batches, smallest, max(smallest, largest))
        return self.degree != former

    def _review(self, waiting: float, effective: float, smallest: int, largest: int) -> None:
        self._held -= 1
        if self._held <= 0:
            self._ceiling = LARGEST
        before, self._waiting_before = self._waiting_before, None
        helped = before is None or waiting < _HELPS * before
        if self.degree < smallest:
            self.degree = smallest
        elif self.degree > smallest and (effective < _EFFECTIVE or not helped):
            self.degree -= 1
            self._ceiling, self._held = self.degree, _HOLD_REVIEWS
        elif self.degree > largest:
            self.degree = largest
        elif waiting > _STARVING and effective >= _EFFECTIVE and self.degree < min(self._ceiling, largest):
            self.degree += 1
            self._waiting_before = waiting
