"""The learner's batches from several replay services that behave as one buffer.

Batch k consists of one part from every shard, each with number k. `sharding.allotment` divides the fresh segments among
the shards, and `sharding.shares` divides the replayed segments by each shard's share of the global mass. The masses
arrive with the parts, so a batch uses the shares known when it was requested. Its probabilities follow from these.

After the first part with fresh segments has arrived, the batch waits up to `timeout_s` for each other part. Then it
*hurries* the shard, which sends the fresh segments that it has. A shard that does not answer within `timeout_s` either
is left out, and its batches are passed over, until it sends a message again. A shard without actors therefore costs one
round trip per batch, and a shard without a service costs nothing.

The training thread uses the source, the shards' streams run on the loop thread, and one lock guards their shared state.
A batch with a part from every shard is joined on the loop while the previous batch trains, any other when it is taken.
"""

import asyncio
import functools
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigurationError, PenstockError
from penstock.gate_law import shards_conflict
from penstock.rpc.clients.batch_source import FAREWELL_S, ReplayBatchSource
from penstock.rpc.clients.connection import Peer
from penstock.rpc.loop import LoopThread, off_loop
from penstock.sharding.allotment import Allotment, Arrival
from penstock.sharding.parts import join, place
from penstock.sharding.shares import rounded, shares_of_mass
from penstock.telemetry import metrics
from penstock.types.block import Schema
from penstock.types.payloads import Memory, PayloadPool
from penstock.types.records import total
from penstock.types.replay import Batch, CommitOutcome, Mass, SamplingPlan, StoreCounts
from penstock.types.waits import WaitReason

_ROUNDING_STREAM = 1
"""Third word of the random generator's counter for a batch's rounding; the shards' own draws use 0."""

_SEED_STEP = 0x9E3779B97F4A7C15
"""Distance between the seeds of consecutive shards, which makes their draws for a batch unrelated."""


_COUNTERS = ("inserted", "late", "refused", "refunded")
"""Counts of a store that only grow."""


@dataclass(slots=True)
class _Shard:
    """State of one shard."""

    source: ReplayBatchSource
    plan: SamplingPlan
    mass: Mass = field(default_factory=Mass)
    counts: StoreCounts = field(default_factory=StoreCounts)
    silent_since: float = -math.inf
    """Time (`time.monotonic`) at which it last failed to answer in time although its stream was open."""

    @property
    def answers(self) -> bool:
        """Whether its stream is open and it has sent a message since it last failed to answer in time."""
        return self.source.heard_at > self.silent_since


@dataclass(slots=True)
class _Awaited:
    """The wait of `next` for a batch. Times are of `time.monotonic`.

    Attributes:
        here_after_s: Seconds waited for each part; None until it arrives.
        hurried_at: Time at which each shard was hurried; None if it was not.
        since: Time at which the wait began.
        first_at: Time at which a part with fresh segments had arrived; None before.
    """

    here_after_s: list[float | None]
    hurried_at: list[float | None]
    since: float = math.inf
    first_at: float | None = None


@dataclass(frozen=True, slots=True)
class _Draw:
    """Distribution of a batch's replayed segments over the shards."""

    shares: NDArray[np.float64]
    counts: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Origin:
    """Origin of one shard's segments in a batch, for the commit: their keys in the shard and indices in the batch."""

    keys: NDArray[np.uint64]
    rows: NDArray[np.int64]


_NOTHING = _Origin(np.zeros(0, np.uint64), np.zeros(0, np.int64))


class ShardedBatchSource:
    """Source of the learner's batches from several shards; implements `learning.protocols.BatchSource`.

    It owns the shards' plans, the draws of requested batches and the origins of uncommitted ones.
    """

    def __init__(
        self,
        thread: LoopThread,
        peers: Sequence[Peer],
        schema: Schema,
        *,
        prefetch_batches: int,
        timeout_s: float,
        largest_window: Callable[[], int] = lambda: 1,
        stopping: Callable[[], bool] = lambda: False,
        arrived: Callable[[Batch], None] = lambda batch: None,
        memory: Memory | None = None,
        key: bytes = b"",
    ) -> None:
        """Prepares a stream to each replay service, as `ReplayBatchSource` does; `open` starts the streams.

        A batch waits `timeout_s` for a shard after fresh segments of another have arrived. `largest_window` returns the
        segments in any actor's largest window. `arrived` receives each batch with all parts, the object `next` returns.
        `memory` and `key` are as for `ReplayBatchSource`; the memory is for whole batches.
        """
        self._thread, self._arrived = thread, arrived
        self._schema, self._timeout_s, self._largest_window = schema, timeout_s, largest_window
        self._lock, self._pool = threading.Condition(), PayloadPool(memory=memory)
        self._sources = [
            ReplayBatchSource(
                thread,
                peer,
                schema,
                prefetch_batches=prefetch_batches,
                stopping=stopping,
                replay_segments=functools.partial(self._replay_segments, index),
                changed=self._lock,
                arrived=lambda part: self._joinable.set(),
                key=key,
            )
            for index, peer in enumerate(peers)
        ]
        self._joinable = asyncio.Event()
        self._joining: asyncio.Task[None] | None = None
        self._joined: Future[Batch] | None = None
        self._shards: list[_Shard] = []
        self._draws: dict[int, _Draw] = {}
        self._origins: dict[int, list[_Origin]] = {}
        self._taken_at = math.nan

    def open(self, plan: SamplingPlan) -> None:
        """Starts the streams: sends every shard its plan and requests the first batches.

        Raises `ConfigurationError` if a batch has fewer fresh segments than there are shards.
        """
        if reason := shards_conflict(plan.fresh_segments, len(self._sources)):
            raise ConfigurationError(reason)
        self._plan = plan
        self._allotment = Allotment(plan, len(self._sources), self._largest_window())
        self._shards = [_Shard(source, plan) for source in self._sources]
        self._awaited = self._await()
        self._allot()
        self._joining = self._thread.spawn(self._join_ahead())
        for shard in self._shards:
            shard.source.open(shard.plan)

    def adjust(self, plan: SamplingPlan) -> None:
        """Replaces the plan within the session, which changes later batches and how far collection may run ahead."""
        with self._lock:
            self._plan = plan
            self._allotment.adopt(plan)
            self._allotment.review(self._largest_window())
            self._allot()
            for shard in self._shards:
                shard.source.adjust(shard.plan)

    @property
    def reads(self) -> str:
        """Transports of the columns: "mapped store", "messages" or both."""
        return ", ".join(sorted({source.reads for source in self._sources}))

    @property
    def waiting_for(self) -> WaitReason | None:
        """Reason why the next batch is not ready, with its shard; None if it is."""
        with self._lock:
            for index, source in enumerate(self._sources):
                if reason := source.waiting_for:
                    return replace(reason, shard=index)
            return None

    def next(self, timeout_s: float) -> Batch | None:
        """Waits for the next batch; None after `timeout_s`. Raises an error that ended a stream for good."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            while True:
                now = time.monotonic()
                parts = self._parts(now)
                due = [self._due(index, now) for index, part in enumerate(parts) if part is None]
                # A batch with all of its parts is always joined on the loop.
                joined = bool(due) or (self._joined is not None and self._joined.done())
                if self._awaited.first_at is not None and all(at <= now for at in due) and joined:
                    break
                if now >= deadline:
                    return None
                self._lock.wait(min([deadline, *due]) - now)
            draw, whole, self._joined = self._draws.pop(self._number, None), self._joined, None
            self._take(parts, time.monotonic())
        self._thread.call(self._joinable.set)
        if whole is not None:
            return whole.result()
        batch = self._join(parts, draw)
        # Includes the last counts of absent shards. Otherwise the sums would jump when these return.
        grown = {name: sum(getattr(shard.counts, name) for shard in self._shards) for name in _COUNTERS}
        return Batch(replace(batch.head, counts=replace(batch.counts, **grown)), batch.columns)

    def commit(self, batch: Batch, priorities: NDArray[np.float64]) -> Future[CommitOutcome]:
        """Ends the leases of a batch at all shards. Shards without a part in it pass over its number.

        As `ReplayBatchSource.commit`. The future yields the sum over the shards once the last one has answered.
        """
        origins = self._origins.pop(batch.number)
        return _together(
            [
                source.commit_keys(batch.number, origin.keys, priorities[origin.rows])
                for source, origin in zip(self._sources, origins, strict=True)
            ]
        )

    def finish(self) -> None:
        """Reports the end of the run to the services."""
        deadline = time.monotonic() + FAREWELL_S
        for source in self._sources:
            source.finish(max(0.1, deadline - time.monotonic()))

    def close(self) -> None:
        """Waits briefly for outstanding commits, then ends the streams. Leases stay with the session."""
        deadline = time.monotonic() + FAREWELL_S
        for source in self._sources:
            source.close(max(0.0, deadline - time.monotonic()))
        if self._joining is not None:
            self._thread.call(self._joining.cancel)

    async def _join_ahead(self) -> None:
        """Joins each batch as soon as all of its parts have arrived."""
        while True:
            await self._joinable.wait()
            self._joinable.clear()
            with self._lock:
                try:
                    parts = [source.ready for source in self._sources]
                except PenstockError:
                    # `next` raises it.
                    return
                present = [part for part in parts if part is not None]
                if self._joined is not None or len(present) < len(parts):
                    continue
                joined = self._joined = Future()
                draw = self._draws.get(self._number)
            size = sum(part.keys.size for part in present) * self._schema.segment_bytes
            try:
                batch = await off_loop(size, self._join, parts, draw)
                self._arrived(batch)
                joined.set_result(batch)
            except Exception as error:
                joined.set_exception(error)
            with self._lock:
                self._lock.notify_all()

    def _join(self, parts: Sequence[Batch | None], draw: _Draw | None) -> Batch:
        """Joins the parts that have arrived into a batch, and keeps their origins for its commit."""
        present = [index for index, part in enumerate(parts) if part is not None]
        chosen = [part for part in parts if part is not None]
        rows = place(chosen)
        shares = [float(draw.shares[index]) if draw is not None else 0.0 for index in present]
        batch = join(chosen, rows, shares, self._schema, self._pool)
        origins = [_NOTHING] * len(parts)
        for index, part, places in zip(present, chosen, rows, strict=True):
            origins[index] = _Origin(part.keys, places)
        self._origins[batch.number] = origins
        return batch

    # Under the lock

    @property
    def _number(self) -> int:
        """Number of the awaited batch, which all shards have."""
        return self._sources[0].next_number

    def _parts(self, now: float) -> list[Batch | None]:
        """Returns each shard's part of the awaited batch, None if it has not arrived. Records when parts arrived."""
        awaited, parts = self._awaited, [source.ready for source in self._sources]
        awaited.since = min(awaited.since, now)
        for index, part in enumerate(parts):
            if part is not None and awaited.here_after_s[index] is None:
                awaited.here_after_s[index] = now - awaited.since
            if part is not None and part.fresh_segments and awaited.first_at is None:
                awaited.first_at = now
        return parts

    def _due(self, index: int, now: float) -> float:
        """Returns the time until which the awaited batch waits for this shard's part. Hurries a shard that is late."""
        awaited, shard = self._awaited, self._shards[index]
        if awaited.first_at is None:
            return math.inf
        hurried_at = awaited.hurried_at[index]
        if hurried_at is None:
            due = awaited.first_at + (0.0 if self._allotment.is_slow(index) else self._timeout_s)
            if due > now:
                return due
            hurried_at = awaited.hurried_at[index] = now
            self._hurry(index)
        if not shard.answers:
            return now
        due = hurried_at + self._timeout_s
        if due <= now:
            shard.silent_since = now
        return due

    def _hurry(self, index: int) -> None:
        shard = self._shards[index]
        if not self._allotment.is_slow(index):
            metrics.LEARNER_SHARD_TIMEOUTS.labels(str(index)).inc()
            self._allotment.fell_behind(index)
        shard.plan = replace(shard.plan, hurried_below=self._number + 1)
        shard.source.adjust(shard.plan)

    def _take(self, parts: Sequence[Batch | None], now: float) -> None:
        """Takes the parts from their sources and records their masses, counts and delays."""
        degree, segments = self._plan.off_policy_degree, self._plan.batch_segments
        arrivals: list[Arrival | None] = []
        for shard, part, waited_s in zip(self._shards, parts, self._awaited.here_after_s, strict=True):
            if part is None:
                arrivals.append(None)
                continue
            # Recorded before any source requests the next batch, so that all its parts use the same masses.
            shard.mass, shard.counts = part.head.mass, part.counts
            room = (part.counts.capacity - segments) // (degree + 1)
            arrivals.append(Arrival(waited_s or 0.0, part.counts.inserted, room))
        for index, (shard, part) in enumerate(zip(self._shards, parts, strict=True)):
            if part is None:
                metrics.LEARNER_SHARD_ABSENCES.labels(str(index)).inc()
                shard.source.skip()
            else:
                shard.source.next(0.0)
        self._allotment.observe(arrivals, 0.0 if math.isnan(self._taken_at) else now - self._taken_at)
        self._taken_at = now
        if self._allotment.review(self._largest_window()):
            self._allot()
            for shard in self._shards:
                shard.source.adjust(shard.plan)
        self._awaited = self._await()

    def _await(self) -> _Awaited:
        return _Awaited([None] * len(self._sources), [None] * len(self._sources))

    def _allot(self) -> None:
        """Derives each shard's plan from the run's plan."""
        for index, (shard, fresh) in enumerate(zip(self._shards, self._allotment.fresh_segments, strict=True)):
            metrics.LEARNER_SHARD_FRESH.labels(str(index)).set(fresh)
            shard.plan = replace(
                self._plan,
                fresh_segments=fresh,
                # The limit holds for all shards together (`_spread`).
                min_replay_segments=0,
                seed=(self._plan.seed + index * _SEED_STEP) % 2**64,
                hurried_below=shard.plan.hurried_below,
            )

    def _replay_segments(self, index: int, number: int) -> int:
        """Returns the number of segments to replay from this shard in a batch. Called on the loop without the lock."""
        with self._lock:
            if number not in self._draws:
                self._draws[number] = self._spread(number)
            return int(self._draws[number].counts[index])

    def _spread(self, number: int) -> _Draw:
        plan, shards = self._plan, self._shards
        masses = [shard.mass if shard.answers else Mass() for shard in shards]
        if sum(shard.counts.seen for shard in shards) < max(1, plan.min_replay_segments):
            masses = [Mass()] * len(shards)
        shares = shares_of_mass(masses, plan.half_life)
        for index, share in enumerate(shares.tolist()):
            metrics.LEARNER_SHARD_MASS.labels(str(index)).set(share)
        keyed = np.random.Generator(np.random.Philox(key=plan.seed, counter=[number, 0, _ROUNDING_STREAM, 0]))
        return _Draw(shares, rounded(shares, plan.replay_segments, keyed.random()))


def _together(commits: Sequence[Future[CommitOutcome]]) -> Future[CommitOutcome]:
    """Returns a future that yields the sum of all outcomes, or the first error, once the last commit is done."""
    whole: Future[CommitOutcome] = Future()
    lock, waiting = threading.Lock(), len(commits)

    def settle(_: Future[CommitOutcome]) -> None:
        nonlocal waiting
        with lock:
            waiting -= 1
            if waiting:
                return
        if error := next((error for commit in commits if (error := commit.exception())), None):
            whole.set_exception(error)
            return
        outcomes = [commit.result() for commit in commits]
        whole.set_result(replace(total(outcomes), repeated=all(each.repeated for each in outcomes)))

    for commit in commits:
        commit.add_done_callback(settle)
    return whole


def open_batch_source(
    thread: LoopThread,
    peers: Sequence[Peer],
    schema: Schema,
    *,
    shard_timeout_s: float,
    largest_window: Callable[[], int],
    **options: Any,
) -> "ReplayBatchSource | ShardedBatchSource":
    """Creates the source for one replay service or for several, with `options` that both have."""
    if len(peers) == 1:
        return ReplayBatchSource(thread, peers[0], schema, **options)
    return ShardedBatchSource(
        thread, peers, schema, timeout_s=shard_timeout_s, largest_window=largest_window, **options
    )
