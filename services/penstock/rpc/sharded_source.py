"""The learner's batches from several replay services that behave as one buffer.

Batch k is made of a part from every shard, all of number k. Fresh segments come from each as it is allotted
(`sharding.allotment`), replayed ones by its share of the global mass (`sharding.shares`), and the parts are laid into
one batch (`sharding.parts`), at the cost of one copy. The masses come with the parts, so the shares of a batch are
those that were known when it was asked for; its probabilities are by these shares.

Once some part with fresh segments is there, no other is waited for longer than `timeout_s`: then its shard is *hurried*
and sends what it has. A shard that does not answer either is waited for as long once more, and then left out until it
has said something; its batches are passed over, and it takes part again when it answers. So a shard without actors
costs a round trip in each batch, one without a service nothing.

`penstock.apps.learner` calls `open_batch_source`. The training thread uses the source; its shards' streams live on the
loop thread, and one lock is between them. A batch of which every shard has sent its part is put together on the loop,
while the batch before it trains; one that goes without a shard is put together when it is taken.
"""

import asyncio
import functools
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigurationError, PenstockError
from penstock.rpc.batch_source import FAREWELL_S, ReplayBatchSource
from penstock.rpc.loop import LoopThread, off_loop
from penstock.sharding.allotment import Allotment, Arrival
from penstock.sharding.parts import join, place
from penstock.sharding.shares import rounded, shares_of_mass
from penstock.telemetry import metrics
from penstock.types import Batch, CommitOutcome, Mass, SamplingPlan, Schema, StoreCounts
from penstock.wire.block import PayloadPool

_ROUNDING_STREAM = 1
"""Third word of the counter that keys a batch's rounding; the shards' own draws have 0 there."""

_SEED_STEP = 0x9E3779B97F4A7C15
"""Seeds of shards are as many of these apart, so that their draws for a batch have nothing in common."""


_COUNTERS = ("inserted", "late", "refused", "refunded")
"""Of a store's numbers, those that only grow."""


@dataclass(slots=True)
class _Shard:
    """What is known of one shard."""

    source: ReplayBatchSource
    plan: SamplingPlan
    mass: Mass = field(default_factory=Mass)
    seen: int = 0
    counts: StoreCounts = field(default_factory=StoreCounts)
    silent_since: float = -math.inf
    """When it did not answer in time, though its stream was open."""

    @property
    def answers(self) -> bool:
        """Whether its stream is open and nothing was asked of it in vain since it said something."""
        return self.source.heard_at > self.silent_since


@dataclass(slots=True)
class _Awaited:
    """The batch that `next` waits for.

    Attributes:
        number: The batch's.
        since: When it was first waited for.
        first_at: When a part with fresh segments was there.
        here_after_s: How long each part was waited for; None while it is not there.
        hurried_at: When each shard was told to send what it has.
    """

    number: int
    since: float
    first_at: float | None
    here_after_s: list[float | None]
    hurried_at: list[float | None]


@dataclass(frozen=True, slots=True)
class _Draw:
    """How the replayed segments of a batch are spread over the shards."""

    shares: NDArray[np.float64]
    counts: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where a batch's segments of one shard came from, for its commit: their keys there, and their rows here."""

    keys: NDArray[np.uint64]
    rows: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Joined:
    """A batch that was put together, and where each shard's segments in it came from."""

    batch: Batch
    origins: list[_Origin]


_NOTHING = _Origin(np.zeros(0, np.uint64), np.zeros(0, np.int64))


class ShardedBatchSource:
    """The learner's batches; implements `learning.protocols.BatchSource`."""

    def __init__(
        self,
        thread: LoopThread,
        addresses: Sequence[str],
        schema: Schema,
        *,
        prefetch_batches: int,
        timeout_s: float,
        largest_window: Callable[[], int] = lambda: 1,
        stopping: Callable[[], bool] = lambda: False,
        arrived: Callable[[Batch], None] = lambda batch: None,
    ) -> None:
        """Args:
        thread: Where the streams live.
        addresses: host:port of each replay service.
        schema: Of the run's segments.
        prefetch_batches: Batches asked for ahead of the one that `next` hands out.
        timeout_s: How long a batch waits for a shard once another's part is there.
        largest_window: Segments in the largest window of any actor.
        stopping: When true, nobody waits for room for a commit.
        arrived: Called on the loop with each batch that has a part of every shard, before `next` hands out that very
            object; must not wait.
        """
        self._thread, self._arrived = thread, arrived
        self._schema, self._timeout_s, self._largest_window = schema, timeout_s, largest_window
        self._lock, self._pool = threading.Condition(), PayloadPool()
        self._sources = [
            ReplayBatchSource(
                thread,
                address,
                schema,
                prefetch_batches=prefetch_batches,
                stopping=stopping,
                replay_segments=functools.partial(self._replay_segments, index),
                changed=self._lock,
                arrived=lambda part: self._joinable.set(),
            )
            for index, address in enumerate(addresses)
        ]
        self._joinable = asyncio.Event()
        self._joining: asyncio.Task[None] | None = None
        self._joined: Future[_Joined] | None = None
        self._shards: list[_Shard] = []
        self._draws: dict[int, _Draw] = {}
        self._origins: dict[int, list[_Origin]] = {}
        self._taken_at = math.nan

    def open(self, plan: SamplingPlan) -> None:
        """Announces to every shard how batches are wanted, and asks for the first ones.

        Raises:
            ConfigurationError: The batch has no fresh segment for some shard.
        """
        if plan.fresh_segments < len(self._sources):
            raise ConfigurationError(
                f"the {plan.fresh_segments} fresh segments of a batch can't be spread over {len(self._sources)} replay"
                " services; raise sampling.batch_segments or sampling.fresh_fraction"
            )
        self._plan = plan
        self._allotment = Allotment(plan, len(self._sources), self._largest_window())
        self._shards = [_Shard(source, plan) for source in self._sources]
        self._awaited = self._await(plan.next_batch)
        self._allot()
        self._joining = self._thread.spawn(self._join_ahead())
        for shard in self._shards:
            shard.source.open(shard.plan)

    def adjust(self, plan: SamplingPlan) -> None:
        """Changes, while it runs, how batches are made up and how far collection may run ahead; the session stays."""
        with self._lock:
            self._plan = plan
            self._allotment.adopt(plan)
            self._allotment.review(self._largest_window())
            self._allot()
            for shard in self._shards:
                shard.source.adjust(shard.plan)

    @property
    def reads(self) -> str:
        """How the columns come."""
        return ", ".join(sorted({source.reads for source in self._sources}))

    @property
    def waiting_for(self) -> str:
        """What the next batch is waiting for, and of which shard."""
        with self._lock:
            for index, source in enumerate(self._sources):
                if reason := source.waiting_for:
                    return f"{reason} of shard {index}"
            return ""

    def next(self, timeout_s: float) -> Batch | None:
        """Waits for the next batch. Raises what ended a stream for good."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            while True:
                now = time.monotonic()
                parts = self._parts(now)
                due = [self._due(index, now) for index, part in enumerate(parts) if part is None]
                # A batch with all of its parts is always the one that the loop has put together.
                joined = bool(due) or (self._joined is not None and self._joined.done())
                if self._awaited.first_at is not None and all(at <= now for at in due) and joined:
                    break
                if now >= deadline:
                    return None
                self._lock.wait(min([deadline, *due]) - now)
            draw, whole, self._joined = self._draws.get(self._awaited.number), self._joined, None
            self._take(parts, time.monotonic())
        self._thread.call(self._joinable.set)
        if whole is not None:
            taken = whole.result()
        else:
            taken = self._join(parts, draw)
            # What a shard has counted stays counted while it is away: else it would all seem to come anew with it.
            grown = {name: sum(getattr(shard.counts, name) for shard in self._shards) for name in _COUNTERS}
            batch = taken.batch
            taken = replace(taken, batch=replace(batch, counts=replace(batch.counts, **grown)))
        self._origins[taken.batch.number] = taken.origins
        return taken.batch

    def commit(self, batch: Batch, priorities: NDArray[np.float64]) -> Future[CommitOutcome]:
        """Ends the leases of a batch at all shards at once; shards that it has nothing of pass over its number.

        As `ReplayBatchSource.commit`; the result, which counts all shards', comes when the last has answered.
        """
        origins = self._origins.pop(batch.number)
        return _together(
            [
                source.commit_keys(batch.number, origin.keys, priorities[origin.rows])
                for source, origin in zip(self._sources, origins, strict=True)
            ]
        )

    def finish(self) -> None:
        """Tells the services that the run is over."""
        deadline = time.monotonic() + FAREWELL_S
        for source in self._sources:
            source.finish(max(0.1, deadline - time.monotonic()))

    def close(self) -> None:
        """Waits a moment for what is committed to be answered, then ends the streams; leases stay with the session."""
        deadline = time.monotonic() + FAREWELL_S
        for source in self._sources:
            source.close(max(0.0, deadline - time.monotonic()))
        if self._joining is not None:
            self._thread.call(self._joining.cancel)

    async def _join_ahead(self) -> None:
        """Puts batches together as soon as all of their parts are there."""
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
                draw = self._draws.get(self._awaited.number)
            size = sum(part.keys.size for part in present) * self._schema.segment_bytes
            try:
                whole = await off_loop(size, self._join, parts, draw)
                self._arrived(whole.batch)
                joined.set_result(whole)
            except Exception as error:
                joined.set_exception(error)
            with self._lock:
                self._lock.notify_all()

    def _join(self, parts: Sequence[Batch | None], draw: _Draw | None) -> _Joined:
        """The batch of the parts that are there."""
        present = [index for index, part in enumerate(parts) if part is not None]
        chosen = [part for part in parts if part is not None]
        rows = place(chosen)
        origins = [_NOTHING] * len(parts)
        for index, part, places in zip(present, chosen, rows, strict=True):
            origins[index] = _Origin(part.keys, places)
        shares = [float(draw.shares[index]) if draw is not None else 0.0 for index in present]
        return _Joined(join(chosen, rows, shares, self._schema, self._pool), origins)

    # Under the lock

    def _parts(self, now: float) -> list[Batch | None]:
        """Each shard's part of the awaited batch, if it is there."""
        awaited, parts = self._awaited, [source.ready for source in self._sources]
        awaited.since = min(awaited.since, now)
        for index, part in enumerate(parts):
            if part is not None and awaited.here_after_s[index] is None:
                awaited.here_after_s[index] = now - awaited.since
            if part is not None and part.fresh_segments and awaited.first_at is None:
                awaited.first_at = now
        return parts

    def _due(self, index: int, now: float) -> float:
        """Until when the awaited batch waits for this shard's part. Hurries a shard whose time is over."""
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
        shard.plan = replace(shard.plan, hurried_below=self._awaited.number + 1)
        shard.source.adjust(shard.plan)

    def _take(self, parts: Sequence[Batch | None], now: float) -> None:
        """Takes the parts from their sources, and what they tell."""
        degree, segments = self._plan.off_policy_degree, self._plan.batch_segments
        arrivals: list[Arrival | None] = []
        for shard, part, waited_s in zip(self._shards, parts, self._awaited.here_after_s, strict=True):
            if part is None:
                arrivals.append(None)
                continue
            # Before any source asks for the next batch, so that all shards decide by the same.
            counts = shard.counts = part.counts
            shard.mass, shard.seen = part.mass, counts.stored - counts.unseen - counts.leased
            room = (counts.capacity - segments) // (degree + 1)
            arrivals.append(Arrival(waited_s or 0.0, counts.inserted, room))
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
        self._draws.pop(self._awaited.number, None)
        self._awaited = self._await(self._awaited.number + 1)

    def _await(self, number: int) -> _Awaited:
        shards = len(self._sources)
        return _Awaited(number, math.inf, None, [None] * shards, [None] * shards)

    def _allot(self) -> None:
        """Makes each shard's plan of the whole run's."""
        for index, (shard, fresh) in enumerate(zip(self._shards, self._allotment.fresh_segments, strict=True)):
            metrics.LEARNER_SHARD_FRESH.labels(str(index)).set(fresh)
            shard.plan = replace(
                self._plan,
                fresh_segments=fresh,
                # Whether enough has been trained to replay any is for all shards together to say (`_spread`).
                min_replay_segments=0,
                seed=(self._plan.seed + index * _SEED_STEP) % 2**64,
                hurried_below=shard.plan.hurried_below,
            )

    def _replay_segments(self, index: int, number: int) -> int:
        """How many segments of batch `number` are to be replayed from this shard. On the loop, without the lock."""
        with self._lock:
            if number not in self._draws:
                self._draws[number] = self._spread(number)
            return int(self._draws[number].counts[index])

    def _spread(self, number: int) -> _Draw:
        plan, shards = self._plan, self._shards
        masses = [shard.mass if shard.answers else Mass() for shard in shards]
        if sum(shard.seen for shard in shards) < max(1, plan.min_replay_segments):
            masses = [Mass()] * len(shards)
        shares = shares_of_mass(masses, plan.alpha, plan.half_life)
        for index, share in enumerate(shares.tolist()):
            metrics.LEARNER_SHARD_MASS.labels(str(index)).set(share)
        keyed = np.random.Generator(np.random.Philox(key=plan.seed, counter=[number, 0, _ROUNDING_STREAM, 0]))
        return _Draw(shares, rounded(shares, plan.replay_segments, keyed.random()))


def _together(commits: Sequence[Future[CommitOutcome]]) -> Future[CommitOutcome]:
    """The sum of all outcomes once the last is there, or the first error."""
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
        updated, overwritten = (sum(getattr(each, name) for each in outcomes) for name in ("updated", "overwritten"))
        whole.set_result(CommitOutcome(updated, overwritten, repeated=all(each.repeated for each in outcomes)))

    for commit in commits:
        commit.add_done_callback(settle)
    return whole


def open_batch_source(
    thread: LoopThread,
    addresses: Sequence[str],
    schema: Schema,
    *,
    prefetch_batches: int,
    shard_timeout_s: float,
    largest_window: Callable[[], int],
    stopping: Callable[[], bool],
    arrived: Callable[[Batch], None],
) -> "ReplayBatchSource | ShardedBatchSource":
    """Batches from one replay service, or from several; arguments as for their sources."""
    if len(addresses) == 1:
        return ReplayBatchSource(
            thread, addresses[0], schema, prefetch_batches=prefetch_batches, stopping=stopping, arrived=arrived
        )
    return ShardedBatchSource(
        thread,
        addresses,
        schema,
        prefetch_batches=prefetch_batches,
        timeout_s=shard_timeout_s,
        largest_window=largest_window,
        stopping=stopping,
        arrived=arrived,
    )
