"""How far collection may run ahead of training, chosen while it runs (`sampling.off_policy_degree` -1).

Further ahead, the learner waits less; but what it trains on is older, and counts for less. So the degree is raised
while the learner starves and that helps, and lowered when too little of the fresh data counts.
"""

from dataclasses import dataclass

LEAST = 1
"""With 0 collection and training would take turns."""


def least_degree(largest_window: int, fresh_segments: int, shards: int = 1) -> int:
    """The smallest degree at which a window of so many segments can be granted.

    A window is of at most `degree` batches of its shard's fresh segments, and the shards divide a batch's.

    Args:
        largest_window: Segments in the largest window of any actor.
        fresh_segments: Of a batch (F).
        shards: Replay services.
    """
    return max(LEAST, -(-largest_window // max(1, fresh_segments // shards)))


LARGEST = 16

_REVIEW_BATCHES = 32
"""What changed shows in the batches after the ones that were collected before."""

_STARVING = 0.05
"""Share of the time that the learner may wait for fresh segments."""

_HELPS = 0.9
"""What a further batch ahead must bring the waiting down to, to be kept."""

_EFFECTIVE = 0.6
"""Share of the fresh data that must count: (sum w)^2 / (n sum w^2) of its behaviour weights."""

_HOLD_REVIEWS = 16
"""So long a degree that did not help, or made data too old, is not tried again; speeds and policies change."""


@dataclass(slots=True)
class _Seen:
    """What was observed since the last review."""

    batches: int = 0
    waited_s: float = 0.0
    elapsed_s: float = 0.0
    effective: float = 0.0


class ChosenDegree:
    """The degree of a run that leaves it to us. Used by one thread."""

    def __init__(self, first: int) -> None:
        """Begins at `first`."""
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
        """Learns from one batch; whether the degree has changed.

        Args:
            waited_s: How long the learner waited for the batch.
            elapsed_s: Since the batch before.
            effective_share: Of the fresh segments' behaviour weights, 0 to 1.
            smallest: The least that lets every actor's window in (`least_degree`); it comes before `largest`.
            largest: The most that the store has room for.
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
