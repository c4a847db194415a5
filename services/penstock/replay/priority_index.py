"""Index of the segments that may be replayed and their probabilities: a sum tree over the store's seen rows.

Only seen rows have mass. It decreases with age by the store's clock (`replay.store.ages`) and is 0 past
`max_staleness`. Callers hold the buffer's lock.
"""

import numpy as np
from numpy.typing import NDArray

from penstock.replay.masses import MassFunction
from penstock.replay.store.ages import Ages
from penstock.replay.store.header_scans import BLOCK_ROWS, NO_VERSION, find_older, mark_seen
from penstock.replay.store.layout import State
from penstock.replay.store.ring_store import RingStore
from penstock.replay.sum_tree import SumTree
from penstock.types.replay import Mass, SamplingPlan

_LARGEST_PRIORITY_DECAY = 0.999
"""Factor per batch, so that one outlier does not give late segments too much weight for the rest of a run."""

_OF_MASSES = ("alpha", "epsilon", "half_life", "max_staleness")
"""Fields of a plan on which masses depend."""


class PriorityIndex:
    """Priorities of one store's segments, and draws by them.

    Attributes:
        seen: Segments that were trained at least once and are still present.
        largest_priority: Largest priority committed, decayed per batch.
    """

    def __init__(self, store: RingStore, ages: Ages) -> None:
        """Counts the seen segments of the store. No segment has mass before `adopt`."""
        self._store, self._session, self._ages = store, store.session, ages
        self._tree = SumTree(store.capacity)
        self._plan: SamplingPlan | None = None
        self._mass = MassFunction(alpha=1.0, epsilon=0.0, half_life=1.0, reference=0)
        # Lower bound, per block of rows, on the version of segments with mass.
        self._oldest = np.full(-(-store.capacity // BLOCK_ROWS), NO_VERSION)
        rows = self.seen_among(np.arange(store.capacity, dtype=np.int64))
        self.seen = rows.size
        self.largest_priority = float(store.headers["priority"][rows].max(initial=0.0)) or 1.0

    @property
    def mass(self) -> Mass:
        """Sum of all masses, comparable with the sums of stores that skipped other numbers."""
        return Mass(self._tree.total, self._mass.reference + self._ages.skipped)

    @property
    def ready(self) -> bool:
        """Whether enough segments were seen for replay to begin."""
        enough = self._plan is not None and self.seen >= max(1, self._plan.min_replay_segments)
        return enough and self._tree.total > 0.0

    def adopt(self, plan: SamplingPlan) -> None:
        """Adopts a plan, also of a new session, at the store's version.

        Only if the plan changes the masses, or is the first one, are all of them computed, which costs O(capacity).
        """
        former, self._plan = self._plan, plan
        if former is None or any(getattr(former, name) != getattr(plan, name) for name in _OF_MASSES):
            self._compute(plan)
        else:
            self.advance()

    def _compute(self, plan: SamplingPlan) -> None:
        """Computes the mass of every seen segment from its priority and its age."""
        self._mass = MassFunction(plan.alpha, plan.epsilon, plan.half_life, self._ages.at(self._session.version))
        headers, everything = self._store.headers, np.arange(self._tree.capacity, dtype=np.int64)
        rows = self.seen_among(everything)
        masses = np.zeros(self._tree.capacity)
        masses[rows] = self._masses(headers["priority"][rows], headers["version"][rows])
        self._tree.update(everything, masses)
        self._oldest[:] = np.minimum.reduceat(
            np.where(masses > 0.0, headers["version"], NO_VERSION), everything[::BLOCK_ROWS]
        )

    def mark_seen(self, rows: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        """Stores the raw priorities <float64>[B] of segments and marks the segments as seen."""
        versions, new = mark_seen(self._store, rows, priorities, self._oldest)
        self.seen += new
        self._tree.update(rows, self._masses(priorities, versions))

    def note_largest(self, priority: float) -> None:
        """Updates `largest_priority` from the largest of a batch's priorities."""
        self.largest_priority = max(self.largest_priority * _LARGEST_PRIORITY_DECAY, priority)

    def seen_among(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the rows among these that hold seen segments. A caller that overwrites them must `forget` them."""
        headers = self._store.headers
        seen: NDArray[np.int64] = rows[(headers["key"][rows] != 0) & (headers["state"][rows] == State.SEEN)]
        return seen

    def forget(self, rows: NDArray[np.int64]) -> None:
        """Removes seen segments that are being overwritten."""
        self._tree.update(rows, np.zeros(rows.size))
        self.seen -= rows.size

    def remove(self, rows: NDArray[np.int64]) -> None:
        """Removes segments whose former state is unknown. Costs O(capacity)."""
        self._tree.update(rows, np.zeros(rows.size))
        self.seen = self.seen_among(np.arange(self._store.capacity)).size

    def advance(self) -> None:
        """Follows a new version of the store: rebases the masses if due, and removes those that are too old."""
        assert self._plan is not None
        self._mass, factor = self._mass.rebased(self._ages.at(self._session.version))
        if factor != 1.0:
            self._tree.scale(factor)
        limit = self._ages.oldest(self._session.version, self._plan.max_staleness)
        if (self._oldest < limit).any():
            rows = find_older(self._store, self._tree.masses, limit, self._oldest)
            self._tree.update(rows, np.zeros(rows.size))

    def draw(self, number: int, count: int, attempt: int) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        """Draws segments for batch `number` in proportion to their masses. It draws none until enough were seen.

        The seed of the plan, `number` and `attempt` key the draw, so a run at degree 0 is reproducible at any timing.

        Returns:
            <uint64>[count] keys and <float64>[count] probabilities, or both empty. No segment is older than
            `max_staleness` when the batch is trained.
        """
        plan = self._plan
        if plan is None or count == 0:
            return np.zeros(0, np.uint64), np.zeros(0)
        randomness = np.random.Generator(np.random.Philox(key=plan.seed, counter=[number, attempt, 0, 0]))
        # A segment within the bound at the last commit may exceed it in this batch, which is later.
        limit = self._ages.oldest(number, plan.max_staleness)
        while self.ready:
            rows, masses = self._tree.draw(randomness.random(count))
            stale = self._store.headers["version"][rows] < limit
            if not stale.any():
                return self._store.headers["key"][rows].copy(), masses / self._tree.total
            self._tree.update(rows[stale], np.zeros(int(np.count_nonzero(stale))))
        return np.zeros(0, np.uint64), np.zeros(0)

    def _masses(self, priorities: NDArray[np.float64], versions: NDArray[np.int64]) -> NDArray[np.float64]:
        assert self._plan is not None
        # A segment that claims a version above the store's would win every draw.
        masses = self._mass.masses(priorities, self._ages.clock(np.minimum(versions, self._session.version)))
        masses[versions < self._ages.oldest(self._session.version, self._plan.max_staleness)] = 0.0
        return masses
