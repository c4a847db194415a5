"""A learner that trains nothing: takes batches, checks every byte and every probability, commits priorities."""

import threading
from collections import deque
from concurrent.futures import Future
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import PenstockError
from penstock.replay.masses import MassFunction
from penstock.rpc.clients.batch_source import ReplayBatchSource
from penstock.rpc.loop import LoopThread
from penstock.types.block import Schema
from penstock.types.replay import Batch, CommitOutcome, SamplingPlan
from tests.support.machine.timing import PATIENCE_S
from tests.support.torture.content import first_wrong, parts_of
from tests.support.torture.ledger import Ledger
from tests.support.torture.proportions import BINS, Proportions

_LEVELS, _JITTER = (0.25, 1.25), (0.5, 1.5)
"""Priorities: from the first bin's to the last one's, times a random factor."""

MAX_UNCOMMITTED = 9
"""Largest number of trained batches whose commits may not have arrived when a learner dies."""

_BATCH_WAIT_S = 0.1
_PAUSES, _PAUSE_S = 0.05, 0.1


class TortureLearner:
    """One session, in a thread with a separate event loop, which can be cut off like a dead process."""

    def __init__(
        self,
        address: str,
        schema: Schema,
        plan: SamplingPlan,
        ledger: Ledger,
        proportions: Proportions,
        windows: dict[int, int],
        *,
        prefetch: int,
        oldest: int,
    ) -> None:
        """Opens the session.

        Args:
            address: Address of the service.
            schema: Schema of the segments.
            plan: Sampling plan.
            ledger: Record of sent and committed segments.
            proportions: Test of the draws.
            windows: Segments per window, by slot.
            prefetch: Batches requested ahead.
            oldest: Largest age of a segment in the ring.
        """
        self.plan, self.version, self._oldest = plan, plan.next_batch, oldest
        ledger.begins_at(plan.next_batch)
        self._ledger, self._proportions, self._windows = ledger, proportions, windows
        self._random = np.random.default_rng(plan.seed)
        self._prefetch, self._dead = prefetch, False
        self._loop = LoopThread()
        self._source = ReplayBatchSource(self._loop, address, schema, prefetch_batches=prefetch)
        # Commits that were answered when each batch was requested, which is `prefetch` batches before it arrives.
        self._answered: deque[int] = deque([ledger.resolved], maxlen=prefetch + 2)
        self._outcomes: deque[tuple[Future[CommitOutcome], int]] = deque()
        self._stop = threading.Event()
        with ledger.lock:
            # The service looks for late segments on behalf of requested batches, even if they are never delivered.
            ledger.highest_leased = max(ledger.highest_leased, plan.next_batch + prefetch)
        self._source.open(plan)
        self._thread = threading.Thread(target=self._run, name="learner", daemon=True)
        self._thread.start()

    @property
    def published(self) -> int:
        """Version of the actors' weights."""
        return self.plan.publish_interval * (self.version // self.plan.publish_interval)

    def die(self) -> None:
        """Ends at once, so that it is unknown which of its commits arrived."""
        if not self._dead:
            self._dead = True
            self._stop.set()
            self._join()
            # The connection of a dead process ends with it, but this process continues.
            self._loop.run(self._source._stream.channel.close())
            self._loop.close()
            self._collect_outcomes()
            self._ledger.abandoned()

    def leave(self) -> None:
        """Ends after its commits were answered."""
        self._stop.set()
        self._join()
        self._source.close(PATIENCE_S)
        self._collect_outcomes()
        if self._outcomes:
            self._ledger.violated(f"{len(self._outcomes)} commits were not answered")
        self.die()

    def _join(self) -> None:
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            self._ledger.violated("the learner hangs")

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                batch = self._source.next(_BATCH_WAIT_S)
                self._collect_outcomes()
                if batch is not None:
                    self._check(batch)
                    # Slow from time to time, so that batches are leased ahead of it and actors reach the gate's limit.
                    if self._random.random() < _PAUSES:
                        self._stop.wait(_PAUSE_S)
                    self._commit(batch)
        except PenstockError as error:
            self._ledger.violated(f"the learner failed with {error!r} in batch {self.version}")
        except Exception as error:
            self._ledger.violated(f"the learner failed with {error!r} in batch {self.version}")
            raise

    def _collect_outcomes(self) -> None:
        while self._outcomes and self._outcomes[0][0].done():
            future, keys = self._outcomes.popleft()
            if future.exception() is not None:
                return
            outcome = future.result()
            self._ledger.commit_answered()
            self._ledger.events["repeated commits" if outcome.repeated else "priorities stored"] += (
                1 if outcome.repeated else outcome.updated
            )
            self._ledger.events["priorities of overwritten segments"] += outcome.overwritten
            if not outcome.repeated and outcome.updated + outcome.overwritten != keys:
                self._ledger.violated(f"a commit of {keys} priorities was answered with {outcome}")

    def _check(self, batch: Batch) -> None:
        ledger, fresh = self._ledger, batch.fresh_segments
        if batch.number != self.version:
            ledger.violated(f"batch {batch.number} arrived, expected {self.version}")
        wrong = first_wrong(batch.columns)
        names: NDArray[Any] = batch.columns.arrays[0][:, 0]
        if wrong is not None:
            ledger.violated(
                f"batch {batch.number} ({self._source.reads}): the segment of key {batch.keys[wrong]} has the name"
                f" {parts_of(int(names[wrong]))} and other content"
            )
            return
        if (batch.columns.arrays[1][:, 0] != batch.head.versions).any():
            ledger.violated(f"batch {batch.number} has versions that are not those of its segments")
        with ledger.lock:
            for key, name in zip(batch.keys.tolist(), names.tolist(), strict=True):
                ledger.record_key(key, name)
            for name in names[:fresh].tolist():
                ledger.handed_out_fresh(name, batch.number)
            # The service has looked for late segments for all requested batches.
            ledger.highest_leased = max(ledger.highest_leased, batch.number + 1 + self._prefetch)
        self._check_ages(batch)
        self._check_fresh(batch, names[:fresh])
        self._check_replayed(batch)
        ledger.events[f"batches by {self._source.reads}"] += 1
        ledger.events["segments sampled"] += batch.keys.size

    def _check_ages(self, batch: Batch) -> None:
        """Checks ages: the batches trained since, except those whose commits were lost with their learners."""
        ages, trained = batch.ages, self._ledger.trained_since(batch.head.versions, batch.number)
        if (ages < 0).any() or (ages > trained).any():
            self._ledger.violated(
                f"batch {batch.number} has ages {ages}, but only {trained} batches were trained since"
            )
        if (ages < trained - MAX_UNCOMMITTED * self._ledger.sessions_since(batch.head.versions)).any():
            self._ledger.violated(f"batch {batch.number} has ages {ages}, but {trained} batches were trained since")

    def _check_fresh(self, batch: Batch, names: NDArray[np.int64]) -> None:
        fresh, plan, ledger = batch.fresh_segments, self.plan, self._ledger
        if fresh != plan.fresh_segments:
            ledger.events["batches cut by a kill"] += 1
        if fresh > plan.fresh_segments or (batch.head.probabilities[:fresh] != 1.0).any():
            ledger.violated(f"batch {batch.number} has {fresh} fresh segments, with {batch.head.probabilities[:fresh]}")
        if batch.priorities[:fresh].any():
            ledger.violated(f"batch {batch.number} has fresh segments with priorities {batch.priorities[:fresh]}")
        if (batch.ages[:fresh] > plan.largest_lag).any():
            ledger.violated(f"batch {batch.number} has fresh segments of the ages {batch.ages[:fresh]}")
        slots, sequences = names >> 52, names & 0xFFFFFFFF
        windows = np.array([self._windows[slot] for slot in slots.tolist()], np.int64)
        places = list(
            zip(
                slots.tolist(),
                ((sequences - 1) % np.maximum(windows, 1)).tolist(),
                batch.keys[:fresh].tolist(),
                strict=True,
            )
        )
        if places != sorted(places):
            ledger.violated(f"batch {batch.number}: fresh segments are not ordered by environment and time: {places}")
        counts = batch.counts
        if counts.granted + counts.unseen + counts.leased > plan.outstanding_limit:
            ledger.violated(f"batch {batch.number}: {counts} exceed the gate's {plan.outstanding_limit}")

    def _check_replayed(self, batch: Batch) -> None:
        """Checks that priorities were committed, and that probabilities and draws follow from them."""
        replayed, plan, ledger = slice(batch.fresh_segments, None), self.plan, self._ledger
        keys, priorities = batch.keys[replayed], batch.priorities[replayed]
        if keys.size == 0:
            return
        late = batch.ages[replayed] + (ledger.highest_leased - batch.number) > plan.largest_lag
        for key, priority, may_be_late in zip(keys.tolist(), priorities.tolist(), late.tolist(), strict=True):
            if not ledger.is_possible(key, priority, self._answered[0], may_be_late):
                ledger.violated(
                    f"batch {batch.number}: key {key} has priority {priority};"
                    f" committed were {ledger.priorities_of(key)}"
                )
        function = MassFunction(plan.alpha, plan.epsilon, plan.half_life, batch.head.mass.reference)
        expected = function.masses(priorities, batch.number - batch.ages[replayed]) / batch.head.mass.total
        oldest = np.array([batch.number - self._oldest])
        smallest = float(function.masses(np.array([_LEVELS[0] * _JITTER[0]]), oldest)[0] / batch.head.mass.total)
        try:
            self._proportions.add(keys, batch.head.probabilities[replayed], expected, smallest)
        except AssertionError as error:
            ledger.violated(f"batch {batch.number}: {error}")

    def _commit(self, batch: Batch) -> None:
        # The priority depends on the key, so that draws that ignore priorities are detected (`Proportions`).
        levels = np.linspace(*_LEVELS, BINS)[(batch.keys % np.uint64(BINS)).astype(np.int64)]
        priorities = levels * self._random.uniform(*_JITTER, batch.keys.size)
        fresh: NDArray[Any] = batch.columns.arrays[0][: batch.fresh_segments, 0].copy()
        self._ledger.committing(batch.number, fresh, dict(zip(batch.keys.tolist(), priorities.tolist(), strict=True)))
        self._answered.append(self._ledger.resolved)
        self.version = batch.number + 1
        with self._ledger.lock:
            # With this commit, the source requests one more batch.
            self._ledger.highest_leased = max(self._ledger.highest_leased, batch.number + 2 + self._prefetch)
        outcome = self._source.commit(batch, priorities)
        self._outcomes.append((outcome, batch.keys.size))
