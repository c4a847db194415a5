"""Several replay services on loopback behave as one buffer, also while one of them is slow, empty or absent."""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.errors import ConfigurationError, PenstockError
from penstock.rpc.clients.batch_source import FAREWELL_S
from penstock.rpc.clients.segment_sink import ReplaySegmentSink
from penstock.rpc.clients.sharded_source import ShardedBatchSource
from penstock.types.payloads import Memory
from penstock.types.replay import Batch, SamplingPlan
from tests.support.machine.timing import PATIENCE_S
from tests.support.segments.segments import SCHEMA
from tests.support.services.servers import Actor, LiveReplay, Loopback, Name, Recorder, plan_with, until

TIMEOUT_S = 0.3
"""Timeout of a shard in seconds, in tests with an absent one."""

PLAN = {"batch_segments": 16, "fresh_segments": 8, "off_policy_degree": 2, "min_replay_segments": 16}


class Training:
    """A learner over several shards, with actors in the given slots."""

    def __init__(
        self,
        loopback: Loopback,
        servers: list[LiveReplay],
        plan: SamplingPlan,
        *,
        timeout_s: float = PATIENCE_S,
        opened: bool = True,
        arrived: Callable[[Batch], None] = lambda batch: None,
        memory: Memory | None = None,
    ) -> None:
        self._loopback, self.plan, self.recorder = loopback, plan, Recorder()
        addresses = [server.address for server in servers]
        self.source = ShardedBatchSource(
            loopback.thread,
            addresses,
            SCHEMA,
            prefetch_batches=1,
            timeout_s=timeout_s,
            largest_window=lambda: 2,
            arrived=arrived,
            memory=memory,
        )
        loopback._client(self.source)
        self.version, self.fresh, self.replayed = plan.next_batch, Counter[Name](), Counter[Name]()
        self._actors: dict[int, tuple[Actor, ReplaySegmentSink]] = {}
        if opened:
            self.source.open(plan)

    def join(self, slot: int, server: LiveReplay, *, incarnation: int = 1) -> None:
        sink = self._loopback.sink(slot, server, incarnation=incarnation)
        actor = Actor(sink, self.recorder, lambda: self.version, slot=slot, incarnation=incarnation)
        self._actors[slot] = actor, sink

    def leave(self, slot: int) -> None:
        """Stops the actor of a slot permanently, and ignores its error."""
        actor, sink = self._actors.pop(slot)
        sink.close()
        with contextlib.suppress(PenstockError):
            actor.end()

    def train(self, batches: int) -> Iterator[Batch]:
        for _ in range(batches):
            batch = until(lambda: self.source.next(0.5), f"batch {self.version} ({self.source.waiting_for})")
            assert batch.number == self.version
            names = self.recorder.names(batch)
            self.fresh.update(names[: batch.fresh_segments])
            self.replayed.update(names[batch.fresh_segments :])
            self.version += 1
            self.source.commit(batch, np.linspace(0.1, 1.0, batch.keys.size))
            yield batch

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Trains until the condition is true."""

        def is_so() -> bool:
            for _ in self.train(1):
                pass
            return condition()

        until(is_so, what)

    def end(self) -> None:
        for actor, _ in self._actors.values():
            actor.end()
        assert max(self.fresh.values()) == 1, "a segment was fresh twice"


def by_slot(names: Counter[Name]) -> Counter[int]:
    counts = Counter[int]()
    for (slot, _, _), count in names.items():
        counts[slot] += count
    return counts


def test_batches_of_two_shards_equal_those_of_one_buffer(loopback: Loopback) -> None:
    servers = [loopback.replay(), loopback.replay()]
    training = Training(loopback, servers, plan_with(**PLAN))
    for slot in range(4):
        training.join(slot, servers[slot % 2])
    for batch in training.train(60):
        # Counts differ by a segment while one shard's part has changed and another's has not.
        assert abs(batch.fresh_segments - 8) <= 1
        # A shard's trained segments are known from its next batch on, so replay begins slightly later.
        assert abs(batch.keys.size - 16) <= 1 or batch.number < 8
        assert batch.counts.capacity == sum(server.store.capacity for server in servers)
    training.end()
    fresh, replayed = by_slot(training.fresh), by_slot(training.replayed)
    assert set(fresh) == set(replayed) == {0, 1, 2, 3}
    assert abs(sum(fresh.values()) - 480) <= 8
    # Shards of equal speed contribute about equally, and have about half of the mass each.
    assert 0.3 < (fresh[0] + fresh[2]) / sum(fresh.values()) < 0.7
    assert 0.3 < (replayed[0] + replayed[2]) / sum(replayed.values()) < 0.7


def test_each_batch_of_two_shards_arrives_on_the_loop_before_next_returns_it(loopback: Loopback) -> None:
    arrived: list[tuple[Batch, str]] = []
    servers = [loopback.replay(), loopback.replay()]
    training = Training(
        loopback,
        servers,
        plan_with(**PLAN),
        arrived=lambda batch: arrived.append((batch, threading.current_thread().name)),
    )
    for slot in range(4):
        training.join(slot, servers[slot % 2])

    def is_known(index: int) -> bool:
        return len(arrived) > index

    for index, batch in enumerate(training.train(20)):
        came, thread = arrived[index]
        # The same object: the feed that copies batches to the device identifies them by identity.
        assert came is batch
        assert thread == "grpc"
        if index < 19:
            # Arrives while this one trains, without a request.
            until(partial(is_known, index + 1), f"the batch after {index}")
    training.end()


def test_whole_batches_lie_where_the_device_reads_them(loopback: Loopback) -> None:
    pages: list[NDArray[np.uint8]] = []

    def allocate(size: int) -> memoryview:
        pages.append(np.zeros(size, np.uint8))
        return pages[-1].data

    servers = [loopback.replay(), loopback.replay()]
    training = Training(loopback, servers, plan_with(**PLAN), memory=allocate)
    for slot in range(4):
        training.join(slot, servers[slot % 2])
    for batch in training.train(6):
        for array in batch.columns.arrays:
            assert any(np.shares_memory(array, page) for page in pages)
    training.end()


def test_probabilities_refer_to_the_global_mass(loopback: Loopback) -> None:
    # No row is overwritten, because a replacement would be drawn later, from a larger mass.
    servers = [loopback.replay(), loopback.replay(rows=200)]
    training = Training(loopback, servers, plan_with(**PLAN, half_life=1e9))
    for slot in range(4):
        training.join(slot, servers[slot % 2])
    for _ in training.train(30):
        pass
    batch = next(training.train(1))
    replayed = slice(batch.fresh_segments, None)
    priorities, probabilities = batch.priorities[replayed], batch.head.probabilities[replayed]
    masses = (priorities + training.plan.epsilon) ** training.plan.alpha
    # One normaliser for the whole batch, except for commits between the two shards' draws.
    normalisers = probabilities / masses
    assert normalisers.size == 8
    assert normalisers.max() / normalisers.min() < 1.2
    training.end()


def median_batch_s(loopback: Loopback) -> float:
    """Returns the median seconds per batch while all shards have actors: the baseline of timeouts."""
    servers = [loopback.replay(), loopback.replay()]
    training = Training(loopback, servers, plan_with(**PLAN))
    for slot in range(2):
        training.join(slot, servers[slot])
    began = [time.monotonic() for _ in training.train(21)]
    training.end()
    return float(np.median(np.diff(began)))


def test_a_shard_without_actors_delays_only_one_batch(loopback: Loopback) -> None:
    timeout_s = max(1.0, 20.0 * median_batch_s(loopback))
    servers = [loopback.replay(), loopback.replay()]
    training = Training(loopback, servers, plan_with(**PLAN), timeout_s=timeout_s)
    for slot in (0, 2):
        training.join(slot, servers[0])
    for _ in training.train(5):
        pass
    began = [time.monotonic() for _ in training.train(41)]
    # If each batch waited for the timeout, all would take that long.
    assert np.median(np.diff(began)) < 0.5 * timeout_s
    # A new actor joins there, and the shard gets a part again.
    training.join(1, servers[1])
    training.until(lambda: by_slot(training.fresh)[1] > 40, "a part for the shard")
    training.end()


@pytest.mark.parametrize("lost", [False, True])
def test_training_continues_while_a_shard_is_absent_and_includes_it_after_its_return(
    loopback: Loopback, tmp_path_factory: pytest.TempPathFactory, lost: bool
) -> None:
    folders = [tmp_path_factory.mktemp("shard") for _ in range(2)]
    servers = [loopback.replay(folder=folder) for folder in folders]
    training = Training(loopback, servers, plan_with(**PLAN), timeout_s=TIMEOUT_S)
    for slot in range(4):
        training.join(slot, servers[slot % 2])
    for _ in training.train(20):
        pass
    servers[1].kill()
    inserted = [batch.counts.inserted for batch in training.train(30)]
    # The segments that the shard had accepted remain known.
    assert inserted == sorted(inserted)
    assert training.version == 50
    # It returns with its store, or as a new one whose actors start again.
    folder = tmp_path_factory.mktemp("shard") if lost else folders[1]
    servers[1] = loopback.replay(folder=folder, port=servers[1].port)
    if lost:
        for slot in (1, 3):
            training.leave(slot)
            training.join(slot, servers[1], incarnation=2)
    before = by_slot(training.fresh)

    def least_of_a_slot() -> int:
        after = by_slot(training.fresh)
        return min(after[slot] - before[slot] for slot in range(4))

    training.until(lambda: least_of_a_slot() > 20, "fresh segments of every actor")
    training.end()


def test_commits_that_no_shard_answers_delay_the_end_by_one_farewell(loopback: Loopback) -> None:
    servers = [loopback.replay(), loopback.replay()]
    training = Training(loopback, servers, plan_with(**PLAN))
    for slot in range(4):
        training.join(slot, servers[slot % 2])
    batch = until(lambda: training.source.next(0.5), "a batch")
    for server in servers:
        server.kill()
    training.source.commit(batch, np.ones(batch.keys.size))
    began = time.monotonic()
    training.source.close()
    assert FAREWELL_S <= time.monotonic() - began < 1.9 * FAREWELL_S
    for slot in range(4):
        training.leave(slot)


def test_a_batch_too_small_for_its_shards_is_refused(loopback: Loopback) -> None:
    servers = [loopback.replay() for _ in range(3)]
    with pytest.raises(ConfigurationError, match="can't be spread over 3 replay services"):
        Training(loopback, servers, plan_with(batch_segments=4, fresh_segments=2))


def test_with_degree_0_every_batch_has_one_window_of_each_actor_and_the_previous_version(loopback: Loopback) -> None:
    servers = [loopback.replay(), loopback.replay()]
    training = Training(loopback, servers, plan_with(**{**PLAN, "off_policy_degree": 0}), opened=False)
    for slot in range(4):
        training.join(slot, servers[slot % 2])
    until(lambda: all(loopback.replay_status(server).actors == 2 for server in servers), "both actors connect")
    training.source.open(training.plan)
    for batch in training.train(20):
        assert batch.head.environments.tolist() == list(range(8))
        assert (batch.head.versions[:8] == batch.number).all()
    training.end()
    assert by_slot(training.fresh) == dict.fromkeys(range(4), 40)
