"""Compares the age clock with an oracle that counts batch numbers one by one."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.replay.store.ages import Ages
from penstock.replay.store.layout import MAX_GAPS, RECORDS_BYTES, ages_copies
from penstock.replay.store.records import make_record
from tests.support.segments.segments import PLAN

NEWEST = 400

GAPS = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 30)), max_size=8)
"""Pairs of the number of batches that a session trains and the number of batches skipped after it."""


def records() -> np.ndarray:
    memory = np.zeros(RECORDS_BYTES, np.uint8)
    make_record(ages_copies(memory))
    return memory


def make(sessions: list[tuple[int, int]], memory: np.ndarray | None = None) -> tuple[Ages, set[int], int]:
    """Returns a clock, all batch numbers in its gaps and the version after the last gap."""
    ages, version, skipped = Ages(records() if memory is None else memory, 0), 0, set[int]()
    for trained, jump in sessions:
        ages.skip(version + trained, version + trained + jump)
        skipped |= set(range(version + trained, version + trained + jump))
        version += trained + jump
    return ages, skipped, version


def counted(skipped: set[int], until: int) -> np.ndarray:
    """Returns <int64>[until + 1], the number of batches below each version that were not skipped."""
    return np.cumsum([0, *(number not in skipped for number in range(until))])


@given(GAPS)
def test_ages_do_not_count_skipped_numbers(sessions: list[tuple[int, int]]) -> None:
    ages, skipped, _ = make(sessions)
    versions = np.arange(NEWEST)
    *expected, newest = counted(skipped, NEWEST).tolist()
    assert ages.clock(versions).tolist() == expected
    assert [ages.at(version) for version in versions.tolist()] == expected
    between = ages.between(versions, NEWEST)
    age = NEWEST - versions - (between if between.size else 0)
    assert age.tolist() == [newest - clock for clock in expected]
    assert ages.skipped == len(skipped)


@given(GAPS, st.integers(0, 60), st.integers(0, NEWEST))
def test_the_oldest_version_of_an_age_bounds_all_younger_versions(
    sessions: list[tuple[int, int]], age: int, number: int
) -> None:
    ages, skipped, _ = make(sessions)
    oldest = ages.oldest(number, age)
    versions = np.arange(-100, NEWEST)
    clocks = np.where(versions < 0, versions, ages.clock(np.maximum(versions, 0)))
    young = counted(skipped, number)[-1] - clocks <= age
    np.testing.assert_array_equal(young, versions >= oldest)


@given(GAPS)
def test_another_process_reads_the_same_clock(sessions: list[tuple[int, int]]) -> None:
    memory = records()
    ages, _, version = make(sessions, memory)
    versions = np.arange(NEWEST)
    assert Ages(memory, version).clock(versions).tolist() == ages.clock(versions).tolist()


def test_a_worked_example() -> None:
    ages, _, _ = make([(10, 5)])
    # Batches 0 to 9 were trained, and the next is 15. Versions 10 to 14 were published but not committed, or unused.
    assert ages.clock(np.array([0, 9, 10, 12, 15, 16])).tolist() == [0, 9, 10, 10, 10, 11]
    assert ages.between(np.array([9, 12, 15]), 16).tolist() == [5, 3, 0]
    assert ages.between(np.array([15, 16]), 16).size == 0
    assert ages.ends[-1] == 15
    assert (ages.oldest(16, 1), ages.oldest(16, 2), ages.oldest(15, 0)) == (10, 9, 10)


def test_a_session_that_did_not_begin_leaves_no_gap() -> None:
    memory = records()
    ages = Ages(memory, 0)
    ages.skip(3, 5)
    ages.skip(10, 200)
    # The process was killed before the store's version changed. The next session begins at another version.
    again = Ages(memory, 10)
    assert again.skipped == 2
    # Nor does it return when the version has grown past it.
    assert Ages(memory, 300).skipped == 2
    again.skip(10, 11)
    assert Ages(memory, 11).skipped == 3


def test_the_oldest_gaps_are_joined_when_there_are_too_many() -> None:
    memory = records()
    ages, skipped, version = make([(3, 2)] * (MAX_GAPS + 20), memory)
    assert Ages(memory, version).skipped == ages.skipped == len(skipped)
    versions = np.arange(version)
    exact = counted(skipped, version)[:-1]
    # Versions newer than the joined gaps or older than all gaps have exact ages. The others count as younger.
    recent = versions >= 5 * 21
    assert (ages.clock(versions)[recent] == exact[recent]).all()
    assert (ages.clock(versions)[:3] == exact[:3]).all()
    assert (ages.clock(versions) >= exact).all()


@pytest.mark.parametrize("session", [(0, 1), (4, 0)])
def test_sessions_that_train_or_skip_nothing_add_no_gap(session: tuple[int, int]) -> None:
    ages, skipped, version = make([(3, 2), (4, 1), *[session] * MAX_GAPS])
    assert ages.clock(np.arange(version + 3)).tolist() == counted(skipped, version + 2).tolist()


@pytest.mark.parametrize("copy", [0, 1])
@pytest.mark.parametrize("bit", [0, 70, 130, 600, 5_000])
def test_a_damaged_copy_leaves_the_other_intact(bit: int, copy: int) -> None:
    memory = records()
    ages = Ages(memory, 0)
    ages.skip(3, 5)
    ages.skip(8, 9)
    ages_copies(memory)[copy : copy + 1].view(np.uint8)[bit // 8] ^= 1 << bit % 8
    assert Ages(memory, 9).skipped == 3


def test_a_window_granted_under_a_higher_degree_may_be_as_old_as_that_degree_allows() -> None:
    memory = records()
    ages = Ages(memory, 0)
    ages.work_by(replace(PLAN, off_policy_degree=3), 10)
    assert ages.oldest_fresh(12) == 9
    ages.work_by(replace(PLAN, off_policy_degree=1), 10)
    for clock in (ages, Ages(memory, 10)):
        assert [clock.oldest_fresh(number) for number in (12, 13, 14)] == [9, 10, 13]


def test_a_degree_lowered_twice_keeps_the_bounds_of_both() -> None:
    ages = Ages(records(), 0)
    for degree, next_batch in ((5, 0), (4, 10), (2, 12)):
        ages.work_by(replace(PLAN, off_policy_degree=degree), next_batch)
    assert [ages.oldest_fresh(number) for number in (15, 16, 17)] == [10, 11, 15]
    # Much later, only the previous degree counts.
    ages.work_by(replace(PLAN, off_policy_degree=1), 100)
    assert [ages.oldest_fresh(number) for number in (102, 103)] == [100, 102]


def test_a_raised_degree_applies_at_once() -> None:
    ages = Ages(records(), 0)
    ages.work_by(PLAN, 0)
    ages.work_by(replace(PLAN, off_policy_degree=4), 3)
    assert ages.oldest_fresh(10) == 6
