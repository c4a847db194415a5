"""Which segments may be replayed, and how likely each is: the sum tree over the store's seen rows.

Only seen rows have mass. It falls with age, and is gone past `max_staleness`. Called by `replay.buffer` alone, under
its lock.
"""

import numpy as np
from numpy.typing import NDArray

from penstock.replay.header_scans import mark_seen
from penstock.replay.layout import State
from penstock.replay.masses import MassFunction
from penstock.replay.ring_store import RingStore
from penstock.replay.sum_tree import SumTree
from penstock.types import Mass, SamplingPlan

_CURSOR_STEP = 1024

_LARGEST_PRIORITY_DECAY = 0.999
"""Per batch, so that one outlier does not give late segments too much weight for the rest of a run."""


class PriorityIndex:
    """Priorities of one store's segments, and draws by them.

    Attributes:
        seen: Segments that were trained at least once, and are still there.
        largest_priority: About the largest that was committed lately.
    """

    def __init__(self, store: RingStore) -> None:
        """Counts what the store holds already; nothing has mass before `adopt`."""
        self._store = store
        self._tree = SumTree(store.capacity)
        self._plan: SamplingPlan | None = None
        self._mass = MassFunction(alpha=1.0, epsilon=0.0, half_life=1.0, reference=0)
        self._stale_cursor = 1
        rows = self.seen_among(np.arange(store.capacity, dtype=np.int64))
        self.seen = rows.size
        self.largest_priority = float(store.headers["priority"][rows].max(initial=0.0)) or 1.0

    @property
    def total(self) -> float:
        """The sum of all masses."""
        return self._tree.total

    @property
    def mass(self) -> Mass:
        """The sum of all masses, such that other stores' can be compared with it."""
        return Mass(self._tree.total, self._mass.reference)

    @property
    def ready(self) -> bool:
        """Whether enough segments have been seen to replay any."""
        enough = self._plan is not None and self.seen >= max(1, self._plan.min_replay_segments)
        return enough and self.total > 0.0

    def adopt(self, plan: SamplingPlan) -> None:
        """Gives every seen segment its mass by this plan. Costs O(capacity)."""
        self._plan = plan
        self._mass = MassFunction(plan.alpha, plan.epsilon, plan.half_life, self._version)
        headers, everything = self._store.headers, np.arange(self._tree.capacity, dtype=np.int64)
        rows = self.seen_among(everything)
        masses = np.zeros(self._tree.capacity)
        masses[rows] = self._masses(headers["priority"][rows], headers["version"][rows])
        self._tree.update(everything, masses)
        # A plan with another `max_staleness` may have given mass to segments that the cursor had passed.
        self._stale_cursor = 1

    def adjust(self, plan: SamplingPlan) -> None:
        """Works by another plan; masses are made anew only where they would differ."""
        former, self._plan = self._plan, plan
        shape = ("alpha", "epsilon", "half_life", "max_staleness")
        if former is None or any(getattr(former, name) != getattr(plan, name) for name in shape):
            self.adopt(plan)

    def mark_seen(self, rows: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        """Stores raw priorities, <float64>[B], of segments that are seen from now on."""
        versions, new = mark_seen(self._store, rows, priorities)
        self.seen += new
        self._tree.update(rows, self._masses(priorities, versions))

    def note_largest(self, priorities: NDArray[np.float64]) -> None:
        """Takes a batch's priorities into `largest_priority`."""
        decayed = self.largest_priority * _LARGEST_PRIORITY_DECAY
        self.largest_priority = max(decayed, float(priorities.max(initial=0.0)))

    def seen_among(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which of these rows hold seen segments; what overwrites them gives them to `forget`."""
        headers = self._store.headers
        seen: NDArray[np.int64] = rows[(headers["key"][rows] != 0) & (headers["state"][rows] == State.SEEN)]
        return seen

    def forget(self, rows: NDArray[np.int64]) -> None:
        """Takes segments out that were seen and are overwritten now."""
        self._tree.update(rows, np.zeros(rows.size))
        self.seen -= rows.size

    def advance(self, next_key: int) -> None:
        """After the store's version moved: rebases the masses when it is time, and takes the mass of what is too old.

        Args:
            next_key: The key that the next segment will get.
        """
        plan = self._plan
        assert plan is not None
        self._mass, factor = self._mass.rebased(self._version)
        if factor != 1.0:
            self._tree.scale(factor)
        headers = self._store.headers
        self._stale_cursor = max(self._stale_cursor, next_key - self._store.capacity)
        while self._stale_cursor < next_key:
            keys = np.arange(self._stale_cursor, min(self._stale_cursor + _CURSOR_STEP, next_key), dtype=np.uint64)
            rows = self._store.rows(keys)
            young = self._version - headers["version"][rows] <= plan.max_staleness
            young &= headers["key"][rows] == keys
            # Versions rise with keys but for the spread of actors: stop at the first that is young enough.
            passed = int(np.argmax(young)) if young.any() else keys.size
            self._tree.update(rows[:passed], np.zeros(passed))
            self._stale_cursor += passed
            if passed < keys.size:
                return

    def draw(self, number: int, count: int, attempt: int) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        """Draws segments for batch `number`; none before enough have been seen.

        Args:
            number: The batch's; with `attempt` and the plan's seed it keys the draw, so that a run at degree 0 is
                repeated whatever the timing.
            count: How many.
            attempt: Another number gives other draws.

        Returns:
            <uint64>[count] keys and <float64>[count] probabilities, or both empty. None is older than `max_staleness`
            when the batch is trained.
        """
        plan = self._plan
        if plan is None or count == 0:
            return np.zeros(0, np.uint64), np.zeros(0)
        randomness = np.random.Generator(np.random.Philox(key=plan.seed, counter=[number, attempt, 0, 0]))
        while self.ready:
            rows, masses = self._tree.draw(randomness.random(count))
            # The cursor stops at the first that is young enough, behind which a slow actor's may lie; and it is as far
            # as the last commit, while this batch comes some later.
            stale = number - self._store.headers["version"][rows] > plan.max_staleness
            if not stale.any():
                return self._store.headers["key"][rows].copy(), masses / self.total
            self._tree.update(rows[stale], np.zeros(int(np.count_nonzero(stale))))
        return np.zeros(0, np.uint64), np.zeros(0)

    @property
    def _version(self) -> int:
        return int(self._store.session["version"][0])

    def _masses(self, priorities: NDArray[np.float64], versions: NDArray[np.int64]) -> NDArray[np.float64]:
        assert self._plan is not None
        masses = self._mass.masses(priorities, versions)
        masses[self._version - versions > self._plan.max_staleness] = 0.0
        return masses
