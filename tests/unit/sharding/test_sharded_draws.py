"""Several stores draw like one store: real buffers in one process, and the batches assembled from their parts."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.replay.admission import ActorKey, Gate
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.leases import MAX_LEASES
from penstock.replay.segments import Lease
from penstock.replay.store.layout import State
from penstock.replay.store.ring_store import RingStore
from penstock.sharding.parts import join, place
from penstock.sharding.shares import rounded, shares_of_mass
from penstock.types.payloads import PayloadPool
from penstock.types.replay import Batch, BatchHead, Mass, StoreCounts
from tests.support.segments.direct_buffer import append, gather
from tests.support.segments.segments import PLAN, SCHEMA, assert_same_columns, capacity_bytes, make_columns, make_window

VERSION = 300
"""Version of the learner at the time of the draws."""

# Shares and rounding

masses = st.lists(st.tuples(st.floats(0.0, 1e300), st.integers(0, 400)), min_size=1, max_size=6)
weights = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6).filter(lambda values: sum(values) > 1e-3)


def test_a_share_is_the_mass_with_its_age_factor_over_the_sum() -> None:
    # 8 * 2^(0 / 4) = 8, 1 * 2^(16 / 4) = 16, and 2 * 2^(8 / 4) = 8.
    shares = shares_of_mass([Mass(8.0, 0), Mass(1.0, 16), Mass(2.0, 8), Mass(0.0, 99)], half_life=4.0)
    np.testing.assert_allclose(shares, [0.25, 0.5, 0.25, 0.0], rtol=1e-14)


def test_masses_whose_ratio_exceeds_a_double_are_compared() -> None:
    shares = shares_of_mass([Mass(1e300, 0), Mass(1e-300, 10_000)], half_life=1.0)
    np.testing.assert_array_equal(shares, [0.0, 1.0])


def test_shares_without_mass_are_zero() -> None:
    shares = shares_of_mass([Mass(), Mass(0.0, 7)], half_life=2.0)
    assert shares.tolist() == [0.0, 0.0]
    assert rounded(shares, 16, 0.3).tolist() == [0, 0]


@given(weights, st.integers(0, 500), st.floats(0.0, 1.0, exclude_max=True))
def test_rounded_shares_sum_to_the_count_and_differ_from_exact_ones_by_less_than_1(
    values: list[float], count: int, uniform: float
) -> None:
    shares = np.array(values) / sum(values)
    counts = rounded(shares, count, uniform)
    assert counts.sum() == count
    assert (np.abs(counts - shares * count) < 1.0 + 1e-6).all()
    assert (counts[shares == 0.0] == 0).all()


def test_a_last_shard_without_mass_gets_nothing_if_shares_sum_to_less_than_1() -> None:
    shares = np.array([*[0.1] * 10, 0.0])
    assert np.cumsum(shares)[-1] < 1.0
    counts = rounded(shares, 10, 0.0)
    assert (counts[-1], counts.sum()) == (0, 10)


@given(weights, st.integers(1, 40))
def test_rounded_shares_are_right_on_average(values: list[float], count: int) -> None:
    shares = np.array(values) / sum(values)
    grid = (np.arange(200) + 0.5) / 200
    mean = np.mean([rounded(shares, count, uniform) for uniform in grid], axis=0)
    # Each count jumps at one place in [0, 1), which the grid misses by less than its step.
    np.testing.assert_allclose(mean, shares * count, atol=2.0 / 200)


# Real stores


@dataclass
class Shard:
    """A store whose segments, ages and reference version differ from those of the other stores."""

    buffer: ReplayBuffer

    def lease(self, wanted: int) -> Lease:
        """Leases the next batch, without fresh segments. Batches are not committed, so the version is constant.

        Few batches may be open, so a new session with another seed begins when all are in use.
        """
        plan = self.buffer.gate.plan
        assert plan is not None
        if self.buffer.leases.next_number >= VERSION + MAX_LEASES:
            plan = replace(plan, session=plan.session + 100, seed=plan.seed + 100, next_batch=VERSION)
            self.buffer.adopt_plan(plan)
        lease = self.buffer.leases.draw(self.buffer.leases.next_number, wanted)
        assert lease is not None
        return lease

    def oracle(self) -> NDArray[np.float64]:
        """Returns <float64>[capacity], the masses of rows by their formula, without a reference version."""
        headers = self.buffer.store.headers
        seen = (headers["key"] != 0) & (headers["state"] == State.SEEN)
        age = VERSION - headers["version"]
        mass = (headers["priority"] + PLAN.epsilon) ** PLAN.alpha * 2.0 ** (-age / PLAN.half_life)
        return np.where(seen, mass, 0.0)


def make_shard(index: int, *, first_version: int, windows: int, priority: float) -> Shard:
    """Returns a store with masses relative to `first_version`. Its segments end one version before VERSION."""
    plan = replace(
        PLAN,
        session=index + 1,
        next_batch=first_version,
        seed=index,
        min_replay_segments=0,
        batch_segments=18,
        # Thousands of batches are drawn, and segments must not become too old for them.
        max_staleness=2**31,
    )
    buffer = ReplayBuffer(RingStore(None, capacity_bytes(40)), Gate(10.0, 8))
    key = ActorKey(index, 1)
    buffer.intakes.open(key, SCHEMA, 2, 0.0)
    buffer.adopt_plan(plan)
    random = np.random.default_rng(index)
    first = VERSION - windows
    buffer.leases.commit(plan.session, first - 1, np.zeros(0, np.uint64), np.zeros(0))
    for number in range(first, VERSION):
        buffer.intakes.issue_grants(0.0)
        append(buffer, make_window(1 + 2 * (number - first), slot=index, version=number), 0.0)
        lease = buffer.leases.draw(number, 0)
        assert lease is not None
        assert lease.fresh_segments == 2
        buffer.leases.commit(plan.session, number, lease.keys, priority * random.random(2))
    # No actor sends further segments, so the next batches must not wait for fresh ones.
    buffer.adjust_plan(replace(plan, hurried_below=10**9))
    return Shard(buffer)


def make_shards() -> list[Shard]:
    shards = [
        make_shard(0, first_version=0, windows=9, priority=1.0),
        make_shard(1, first_version=150, windows=6, priority=5.0),
        make_shard(2, first_version=280, windows=3, priority=0.5),
    ]
    assert len({shard.buffer.mass.reference for shard in shards}) == 3
    return shards


def draw(shards: list[Shard], step: int, count: int, uniform: float) -> Batch:
    """Draws one batch without fresh segments, as `ShardedBatchSource` does."""
    shares = shares_of_mass([shard.buffer.mass for shard in shards], PLAN.half_life)
    counts = rounded(shares, count, uniform)
    parts = []
    for shard, wanted in zip(shards, counts.tolist(), strict=True):
        lease = shard.lease(wanted)
        parts.append(changed(gather(shard.buffer, lease), number=step))
    return join(parts, place(parts), shares.tolist(), SCHEMA, PayloadPool())


def names(batch: Batch, known: dict[bytes, tuple[int, int]]) -> list[tuple[int, int]]:
    return [known[row.tobytes()] for row in batch.columns.arrays[0]]


def known_content(shards: list[Shard]) -> dict[bytes, tuple[int, int]]:
    """Returns (shard, key) by the bytes of the first column."""
    known = {}
    for index, shard in enumerate(shards):
        headers = shard.buffer.store.headers
        for key in headers["key"][headers["key"] != 0].tolist():
            known[make_columns([(index, 1, key)]).arrays[0][0].tobytes()] = (index, key)
    return known


def test_probabilities_equal_those_of_one_store_with_all_segments() -> None:
    shards = make_shards()
    known, oracle = known_content(shards), [shard.oracle() for shard in shards]
    total = sum(mass.sum() for mass in oracle)
    for step in range(20):
        batch = draw(shards, step, 16, uniform=step / 20)
        assert batch.keys.size == 16
        for (index, key), probability in zip(names(batch, known), batch.head.probabilities, strict=True):
            np.testing.assert_allclose(probability, oracle[index][key % oracle[index].size] / total, rtol=1e-12)


@pytest.mark.nightly
def test_segments_of_three_stores_are_drawn_in_proportion_to_their_global_mass() -> None:
    shards = make_shards()
    known, oracle = known_content(shards), [shard.oracle() for shard in shards]
    total = sum(mass.sum() for mass in oracle)
    expected = {(index, key): oracle[index][key % oracle[index].size] / total for index, key in known.values()}
    assert len(expected) == 36
    draws, uniform = 3_000, np.random.default_rng(11)
    counted = dict.fromkeys(expected, 0)
    # The draws of one batch depend on each other, and chi-square needs independent draws: one segment per batch.
    for step in range(draws):
        batch = draw(shards, step, 1, float(uniform.random()))
        (name,) = names(batch, known)
        counted[name] += 1
    statistic = sum((counted[name] - draws * p) ** 2 / (draws * p) for name, p in expected.items())
    freedom = len(expected) - 1
    # About the 0.01% and the 99.99% quantile of chi-square (Wilson & Hilferty 1931).
    low, high = (freedom * (1 - 2 / (9 * freedom) + z * (2 / (9 * freedom)) ** 0.5) ** 3 for z in (-3.72, 3.72))
    assert low < statistic < high


# Assembly of parts into one batch


def make_part(slot: int, environments: list[int], replayed: int, *, number: int = 3) -> Batch:
    fresh = len(environments)
    names = [(slot, 1, sequence) for sequence in range(1, 1 + fresh + replayed)]
    return Batch(
        BatchHead(
            number=number,
            fresh_segments=fresh,
            keys=np.arange(1, 1 + fresh + replayed, dtype=np.uint64),
            versions=np.full(fresh + replayed, slot, np.int64),
            priorities=np.concatenate([np.zeros(fresh), np.full(replayed, slot + 0.5)]),
            probabilities=np.concatenate([np.ones(fresh), np.full(replayed, 0.1)]),
            counts=StoreCounts(capacity=10 * (slot + 1), inserted=slot, stored=fresh + replayed),
            environments=np.array(environments, np.uint32),
            slots=np.full(fresh, slot, np.uint32),
        ),
        make_columns(names) if names else SCHEMA.empty(0),
    )


def test_fresh_segments_are_ordered_by_environment_and_followed_by_replayed_ones_by_shard() -> None:
    parts = [make_part(0, [0, 0, 5], 1), make_part(1, [2, 6], 2), make_part(2, [], 1)]
    rows = place(parts)
    assert [part.tolist() for part in rows] == [[0, 1, 3, 5], [2, 4, 6, 7], [8]]
    batch = join(parts, rows, [0.5, 0.3, 0.2], SCHEMA, PayloadPool())
    sequence = [(0, 1, 1), (0, 1, 2), (1, 1, 1), (0, 1, 3), (1, 1, 2), (0, 1, 4), (1, 1, 3), (1, 1, 4), (2, 1, 1)]
    assert_same_columns(batch.columns, make_columns(sequence))
    assert (batch.number, batch.fresh_segments) == (3, 5)
    assert batch.head.versions.tolist() == [name[0] for name in sequence]
    assert batch.head.environments.tolist() == [0, 0, 2, 5, 6]
    assert batch.head.slots.tolist() == [0, 0, 1, 0, 1]
    assert batch.priorities.tolist() == [0.0] * 5 + [0.5, 1.5, 1.5, 2.5]
    np.testing.assert_allclose(batch.head.probabilities, [1.0] * 5 + [0.05, 0.03, 0.03, 0.02])
    assert (batch.counts.capacity, batch.counts.inserted, batch.counts.stored) == (60, 3, 9)
    for part, places in zip(parts, rows, strict=True):
        np.testing.assert_array_equal(batch.keys[places], part.keys)


def changed(part: Batch, **values: Any) -> Batch:
    """Returns the part with other values in its head."""
    return Batch(replace(part.head, **values), part.columns)


def test_segments_without_environment_numbers_are_ordered_by_shard() -> None:
    parts = [make_part(0, [7, 8], 0), changed(make_part(1, [0, 1], 1), environments=np.zeros(0, np.uint32))]
    assert [part.tolist() for part in place(parts)] == [[0, 1], [2, 3, 4]]


def test_a_batch_contains_the_environments_and_slots_of_its_fresh_segments() -> None:
    buffer = ReplayBuffer(RingStore(None, capacity_bytes(40)), Gate(10.0, 8))
    buffer.intakes.open(ActorKey(3, 1), SCHEMA, 2, 0.0)
    buffer.adopt_plan(replace(PLAN, fresh_segments=4))
    for sequence in (1, 3):
        buffer.intakes.issue_grants(0.0)
        append(buffer, make_window(sequence, slot=3), 0.0)
    lease = buffer.leases.draw(0)
    assert lease is not None
    assert gather(buffer, lease).head.environments.tolist() == [6, 6, 7, 7]
    assert gather(buffer, lease).head.slots.tolist() == [3, 3, 3, 3]


def test_each_segment_keeps_the_skipped_versions_of_its_own_shard() -> None:
    parts = [make_part(0, [0, 5], 1), changed(make_part(1, [2], 1), skipped=np.array([7, 9]))]
    batch = join(parts, place(parts), [0.5, 0.5], SCHEMA, PayloadPool())
    assert batch.head.skipped.tolist() == [0, 7, 0, 0, 9]
    assert join(parts[:1], place(parts[:1]), [1.0], SCHEMA, PayloadPool()).head.skipped.size == 0


def test_interleaved_environments_of_three_shards_are_in_the_order_of_one_store() -> None:
    environments = [[1, 4], [2, 5], [0, 3]]
    parts = [make_part(shard, numbers, 0) for shard, numbers in enumerate(environments)]
    rows = place(parts)
    assert [part.tolist() for part in rows] == environments
    assert join(parts, rows, [0.0] * 3, SCHEMA, PayloadPool()).head.environments.tolist() == list(range(6))
