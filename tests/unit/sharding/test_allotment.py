"""Parts of a batch follow the speeds of their shards, sum to the whole, and do not wait for slow shards."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sharding.allotment import Allotment, Arrival, apportion
from tests.support.segments.segments import PLAN

WHOLE = replace(PLAN, fresh_segments=24, batch_segments=32, off_policy_degree=2)


def train(allotment: Allotment, batches: int, speeds: list[float], *, window: int = 2, interval_s: float = 0.1) -> None:
    """Trains batches for each of which a shard takes the time part / speed. A shard with speed 0 delivers nothing."""
    inserted = [0] * len(speeds)
    for _ in range(batches):
        parts = allotment.fresh_segments
        waits = [part / speed if speed else 0.0 for part, speed in zip(parts, speeds, strict=True)]
        longest = max(waits)
        for shard, speed in enumerate(speeds):
            inserted[shard] += parts[shard] if speed else 0
        arrivals = [
            Arrival(interval_s * wait / longest, count, 10**6) for wait, count in zip(waits, inserted, strict=True)
        ]
        allotment.observe(arrivals, interval_s)
        allotment.review(window)
        assert sum(allotment.fresh_segments) == WHOLE.fresh_segments


@given(
    st.integers(0, 500),
    st.lists(st.tuples(st.floats(1e-3, 1e3), st.integers(1, 200)), min_size=1, max_size=6),
    st.integers(1, 20),
)
def test_parts_respect_their_bounds_and_sum_to_the_total(
    total: int, shards: list[tuple[float, int]], smallest: int
) -> None:
    weights, largest = np.array([weight for weight, _ in shards]), np.array([most for _, most in shards])
    parts = apportion(total, weights, smallest, largest)
    ceilings = np.maximum(largest, smallest)
    assert (parts >= smallest).all() and (parts <= ceilings).all()
    if smallest * len(shards) <= total <= ceilings.sum():
        assert parts.sum() == total


def test_unbounded_parts_are_proportional_to_the_weights() -> None:
    most = np.full(3, 100)
    assert apportion(60, np.array([1.0, 2.0, 3.0]), 1, most).tolist() == [10, 20, 30]
    assert apportion(10, np.ones(3), 1, most).tolist() in ([4, 3, 3], [3, 4, 3], [3, 3, 4])
    assert apportion(60, np.array([1.0, 2.0, 3.0]), 16, most).tolist()[0] == 16
    assert apportion(60, np.array([1.0, 2.0, 3.0]), 1, np.array([100, 100, 20])).sum() == 60


def test_the_first_parts_are_equal() -> None:
    assert Allotment(WHOLE, 3, 2).fresh_segments == [8, 8, 8]
    assert sorted(Allotment(WHOLE, 5, 2).fresh_segments) == [4, 5, 5, 5, 5]


def test_parts_follow_the_speeds() -> None:
    allotment = Allotment(WHOLE, 2, 2)
    train(allotment, 400, [1.0, 3.0])
    assert allotment.fresh_segments == pytest.approx([6, 18], abs=1)
    train(allotment, 400, [1.0, 1.0])
    assert allotment.fresh_segments == pytest.approx([12, 12], abs=1)


def test_parts_follow_the_shares_of_their_slots() -> None:
    # Slots 0, 2, ... of the first shard have the weight 3, and the others 1.
    allotment = Allotment(replace(WHOLE, slot_weights=(3.0, 1.0), least_share=0.2), 2, 2)
    assert allotment.fresh_segments == [18, 6]
    train_in_time = [18.0, 6.0]
    train(allotment, 400, train_in_time)
    assert allotment.fresh_segments == [18, 6]
    # A shard that can't keep up with its share gets less.
    train(allotment, 400, [1.0, 1.0])
    assert allotment.fresh_segments == pytest.approx([12, 12], abs=1)
    allotment.adopt(WHOLE)
    train(allotment, 400, [1.0, 1.0])
    assert allotment.fresh_segments == pytest.approx([12, 12], abs=1)


def test_a_shard_with_slots_of_all_weights_has_an_equal_part() -> None:
    plan = replace(WHOLE, slot_weights=(3.0, 1.0, 1.0), least_share=0.2)
    assert Allotment(plan, 2, 2).fresh_segments == [12, 12]
    assert Allotment(replace(plan, off_policy_degree=0), 3, 2).fresh_segments == [8, 8, 8]
    assert Allotment(plan, 3, 2).fresh_segments == pytest.approx([14.4, 4.8, 4.8], abs=1)


def test_every_part_has_room_for_the_largest_window() -> None:
    allotment = Allotment(WHOLE, 2, 8)
    train(allotment, 400, [1.0, 1000.0], window=8)
    # With degree 2, a part of 4 admits windows of 8 segments.
    assert min(allotment.fresh_segments) == 4


def test_a_part_is_at_most_as_large_as_the_room_in_its_store() -> None:
    allotment = Allotment(WHOLE, 2, 2)
    for batch in range(40):
        allotment.observe([Arrival(0.0, 12 * batch, 5), Arrival(0.0, 12 * batch, 10**6)], 0.1)
        allotment.review(2)
    assert allotment.fresh_segments == [5, 19]


def test_with_degree_0_the_first_parts_are_kept() -> None:
    allotment = Allotment(replace(WHOLE, off_policy_degree=0), 2, 2)
    train(allotment, 100, [1.0, 5.0])
    assert allotment.fresh_segments == [12, 12]


def test_the_others_fill_the_batch_while_a_shard_is_slow() -> None:
    allotment = Allotment(WHOLE, 2, 2)
    allotment.fell_behind(1)
    assert allotment.review(2)
    assert allotment.is_slow(1) and allotment.fresh_segments == [24, 1]
    inserted = 0
    for batch in range(1, 5):
        assert allotment.is_slow(1)
        inserted += 1
        allotment.observe([Arrival(0.0, 24 * batch, 100), Arrival(0.0, inserted, 100)], 0.1)
    # The first count of a shard is the origin, so four full parts take five batches.
    allotment.observe([Arrival(0.0, 120, 100), Arrival(0.0, inserted + 1, 100)], 0.1)
    assert not allotment.is_slow(1)
    assert allotment.review(2)
    assert sum(allotment.fresh_segments) == 24 and allotment.fresh_segments[1] > 1


def test_a_shard_without_new_segments_stays_slow() -> None:
    allotment = Allotment(WHOLE, 2, 2)
    allotment.fell_behind(1)
    for batch in range(50):
        allotment.observe([Arrival(0.0, 24 * batch, 100), Arrival(0.0, 0, 100)], 0.1)
    assert allotment.is_slow(1)


def test_a_replaced_store_that_counts_from_0_does_not_affect_the_allotment() -> None:
    allotment = Allotment(WHOLE, 2, 2)
    for inserted in (1_000, 1_012, 12, 24):
        allotment.observe([Arrival(0.0, inserted, 100), Arrival(0.0, inserted, 100)], 0.1)
    assert allotment.review(2) is False
    assert allotment.fresh_segments == [12, 12]


def test_a_slow_shard_recovers_after_its_store_was_replaced() -> None:
    allotment = Allotment(WHOLE, 2, 2)
    allotment.fell_behind(1)
    assert allotment.review(2)
    for batch, inserted in enumerate((1_000, 0, 1, 2, 3, 4), start=1):
        assert allotment.is_slow(1)
        allotment.observe([Arrival(0.0, 24 * batch, 100), Arrival(0.0, inserted, 100)], 0.1)
    assert not allotment.is_slow(1)


@pytest.mark.parametrize(
    ("waited_s", "parts"),
    [
        # The first shard took 0.75 s for its part and the second 1 s. Parts tend to 4 : 3, smoothed over 16 batches.
        ((0.25, 0.5), [13, 11]),
        # The first part was ready at once, which counts as a quarter of the second's time.
        ((0.0, 1.0), [18, 6]),
    ],
)
def test_a_shard_whose_part_arrives_early_gets_a_larger_one(waited_s: tuple[float, float], parts: list[int]) -> None:
    allotment = Allotment(WHOLE, 2, 2)
    for batch in range(16):
        allotment.observe([Arrival(waited, 12 * batch, 100) for waited in waited_s], 1.0)
    assert allotment.review(2)
    assert allotment.fresh_segments == parts


def test_a_shard_that_was_slow_regains_its_former_part() -> None:
    allotment = Allotment(WHOLE, 3, 2)
    allotment.fell_behind(2)
    assert allotment.review(2)
    for batch in range(50):
        allotment.observe([Arrival(0.1, 12 * batch, 100), Arrival(0.1, 12 * batch, 100), None], 0.1)
        allotment.review(2)
    assert allotment.fresh_segments == [12, 12, 1]
    for inserted in range(5):
        allotment.observe([None, None, Arrival(0.1, inserted, 100)], 0.1)
    assert allotment.review(2)
    assert allotment.fresh_segments == [8, 8, 8]


def test_a_batch_without_arrivals_changes_no_speed() -> None:
    allotment = Allotment(WHOLE, 2, 2)
    for _ in range(16):
        allotment.observe([None, None], 1.0)
    assert not allotment.review(2)


def test_another_plan_is_apportioned_at_the_next_review() -> None:
    allotment = Allotment(WHOLE, 2, 2)
    allotment.adopt(replace(WHOLE, fresh_segments=48))
    assert allotment.fresh_segments == [12, 12]
    assert allotment.review(2)
    assert allotment.fresh_segments == [24, 24]


def test_the_smallest_part_is_rounded_up_to_fit_the_window() -> None:
    # With degree 2, a part of 2 admits only windows of up to 4 segments.
    assert apportion(24, np.array([1.0, 1e6]), 3, np.full(2, 100)).tolist() == [3, 21]
    allotment = Allotment(WHOLE, 2, 5)
    train(allotment, 400, [1.0, 1000.0], window=5)
    assert min(allotment.fresh_segments) == 3
