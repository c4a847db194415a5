"""Tests batches from the draw to the commit."""

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import InvalidSegment, Overloaded
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.leases import MAX_LEASES
from penstock.replay.segments import Lease
from penstock.types.replay import CommitOutcome
from tests.support.segments.direct_buffer import Actor, append, commit, gather, make_buffer, take, train
from tests.support.segments.segments import PLAN, assert_same_columns, make_columns

FRESH_ONLY = replace(PLAN, batch_segments=2)


def test_a_stored_window_is_drawn_as_a_fresh_batch() -> None:
    buffer = make_buffer()
    Actor(buffer).send()
    batch = take(buffer, 0)
    assert batch.fresh_segments == 2
    assert batch.head.probabilities.tolist() == [1.0, 1.0]
    assert batch.priorities.tolist() == [0.0, 0.0]
    assert batch.head.versions.tolist() == [0, 0]
    assert_same_columns(batch.columns, make_columns([(0, 1, 1), (0, 1, 2)]))


def test_batches_are_ordered_by_environment_and_key_for_any_order_of_arrival() -> None:
    plan = replace(PLAN, fresh_segments=12, batch_segments=12)
    batches = []
    for order in ([0, 1, 2, 0, 1, 2], [2, 1, 0, 2, 0, 1], [1, 1, 0, 2, 2, 0]):
        buffer = make_buffer(plan)
        actors = [Actor(buffer, slot=slot) for slot in range(3)]
        for slot in order:
            actors[slot].send()
        batches.append(take(buffer, 0))
    by_environment = [(slot, 1, sequence) for slot in range(3) for sequence in (1, 3, 2, 4)]
    for batch in batches:
        assert_same_columns(batch.columns, make_columns(by_environment))


def test_a_leased_batch_is_returned_again_unchanged() -> None:
    buffer = make_buffer()
    Actor(buffer).send()
    assert take(buffer, 0).keys.tolist() == take(buffer, 0).keys.tolist() == [1, 2]
    assert buffer.counts().leased == 2


def test_a_batch_waits_for_enough_fresh_segments() -> None:
    buffer = make_buffer()
    actor = Actor(buffer, segments=1)
    assert buffer.training_waits_for() == "fresh segments"
    actor.send()
    assert buffer.leases.draw(0) is None
    actor.send()
    assert buffer.training_waits_for() == ""
    assert buffer.leases.draw(0) is not None


@pytest.mark.parametrize("number", [-1, 0, 2])
def test_a_batch_requested_out_of_order_is_refused(number: int) -> None:
    buffer = make_buffer()
    actor = Actor(buffer)
    train(buffer, actor, range(1))
    actor.send()
    with pytest.raises(InvalidSegment, match=f"batch {number} was requested, and 1 is next"):
        buffer.leases.draw(number)


def test_batches_are_leased_up_to_a_limit() -> None:
    buffer = make_buffer(replace(FRESH_ONLY, off_policy_degree=MAX_LEASES), rows=200)
    actor = Actor(buffer)
    for number in range(MAX_LEASES):
        actor.send(version=number)
        take(buffer, number)
    actor.send(version=MAX_LEASES)
    with pytest.raises(Overloaded, match=f"{MAX_LEASES} batches"):
        buffer.leases.draw(MAX_LEASES)


def test_late_segments_are_replayed_and_counted() -> None:
    buffer = make_buffer(replace(PLAN, next_batch=5))
    actor = Actor(buffer)
    actor.send(version=3)
    actor.send(version=4)
    batch = take(buffer, 5)
    assert batch.keys[:2].tolist() == [3, 4]
    assert set(batch.keys[2:].tolist()) <= {1, 2}
    assert batch.keys.size == 4
    # No segment was trained, so the largest priority is the default of 1.
    assert batch.priorities[2:].tolist() == [1.0, 1.0]
    counts = buffer.counts()
    assert (counts.late, counts.unseen, counts.leased) == (2, 0, 2)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_late_segment_gets_the_largest_priority_present(tmp_path: Path, restarted: bool) -> None:
    plan = replace(PLAN, batch_segments=22, half_life=1e6)
    buffer = make_buffer(plan, folder=tmp_path)
    actor = Actor(buffer)
    train(buffer, actor, range(5), priority=8.0)
    if restarted:
        buffer = make_buffer(plan, folder=tmp_path)
        actor = Actor(buffer)
    actor.send(version=0)
    assert buffer.leases.draw(5) is None
    actor.send(version=5)
    batch = take(buffer, 5)
    late = batch.priorities[np.isin(batch.keys, [11, 12])]
    assert late.size >= 2
    assert late == pytest.approx(8.0, rel=0.01)


def test_replay_begins_after_enough_segments_were_trained() -> None:
    buffer = make_buffer(replace(PLAN, min_replay_segments=6))
    actor, sizes = Actor(buffer), []
    for number in range(5):
        actor.send(version=number)
        batch = take(buffer, number)
        sizes.append(batch.keys.size)
        commit(buffer, batch)
    assert sizes == [2, 2, 2, 4, 4]


def test_overwritten_segments_do_not_count_as_trained() -> None:
    buffer = make_buffer(replace(PLAN, min_replay_segments=5), rows=8)
    actor = Actor(buffer)
    train(buffer, actor, range(3))
    actor.send(version=3)
    # Segments 9 and 10 overwrite 1 and 2, so 4 of the 6 trained segments remain.
    actor.send(version=3)
    assert take(buffer, 3).keys.tolist() == [7, 8]


def test_nothing_is_replayed_with_a_fresh_fraction_of_one() -> None:
    buffer = make_buffer(FRESH_ONLY)
    actor = Actor(buffer)
    train(buffer, actor, range(5))
    actor.send(version=5)
    assert take(buffer, 5).keys.tolist() == [11, 12]


def test_replayed_draws_are_proportional_to_mass() -> None:
    plan = replace(PLAN, batch_segments=402, alpha=0.7, half_life=3.0)
    buffer = make_buffer(plan, rows=500)
    actor, priorities = Actor(buffer), np.random.default_rng(7).exponential(1.0, 12)
    for number in range(6):
        actor.send(version=number)
        batch = take(buffer, number)
        commit(buffer, batch, priorities[batch.keys.astype(np.int64) - 1])
    actor.send(version=6)
    batch = take(buffer, 6)

    ages = 6 - np.repeat(np.arange(6), 2)
    masses = (priorities + plan.epsilon) ** plan.alpha * 2.0 ** (-ages / plan.half_life)
    share, replayed = masses / masses.sum(), batch.keys[2:].astype(np.int64) - 1
    assert np.abs(np.bincount(replayed, minlength=12) - 400 * share).max() <= 2.0
    np.testing.assert_allclose(batch.head.probabilities[2:], share[replayed], rtol=1e-9)
    np.testing.assert_array_equal(batch.priorities[2:], priorities[replayed])
    np.testing.assert_array_equal(batch.head.versions[2:], replayed // 2)
    assert_same_columns(batch.columns, make_columns([(0, 1, int(key)) for key in batch.keys]))


@pytest.mark.parametrize("changed", [{"alpha": 1.5}, {"epsilon": 5.0}, {"half_life": 9.0}])
def test_an_adjusted_plan_changes_the_masses_of_trained_segments(changed: dict[str, float]) -> None:
    plan = replace(PLAN, batch_segments=12)
    buffer = make_buffer(plan)
    actor = Actor(buffer)
    for number in range(6):
        actor.send(version=number)
        batch = take(buffer, number)
        commit(buffer, batch, batch.keys.astype(np.float64))
    actor.send(version=6)
    plan = replace(plan, **changed)  # type: ignore[arg-type]
    buffer.adjust_plan(plan)
    batch = take(buffer, 6)
    assert np.unique(batch.keys[2:]).size > 3
    masses = (batch.priorities[2:] + plan.epsilon) ** plan.alpha * 2.0 ** (batch.head.versions[2:] / plan.half_life)
    np.testing.assert_allclose(
        batch.head.probabilities[2:] / masses, batch.head.probabilities[2] / masses[0], rtol=1e-9
    )


def test_masses_stay_exact_over_many_versions() -> None:
    # The age factor grows by 2^50 per version. It would overflow after 20 versions, and the reference moves every 6.
    plan = replace(PLAN, batch_segments=52, alpha=1.0, half_life=0.02, max_staleness=2**31)
    buffer = make_buffer(plan, rows=100)
    actor = Actor(buffer)
    train(buffer, actor, range(60))
    actor.send(version=60)
    batch = take(buffer, 60)
    assert set(batch.keys[2:].tolist()) == {119, 120}
    np.testing.assert_allclose(batch.head.probabilities[2:], 0.5, rtol=1e-9)


def test_an_unpublished_version_has_the_mass_of_the_newest() -> None:
    plan = replace(PLAN, batch_segments=52, alpha=1.0, epsilon=0.0, half_life=1.0)
    buffer = make_buffer(plan, rows=100)
    actor = Actor(buffer)
    train(buffer, actor, range(10))
    # The learner continued without this service for many versions.
    buffer.adjust_plan(replace(plan, next_batch=900))
    actor.send(version=900)
    commit(buffer, take(buffer, 10))
    actor.send(version=11)
    batch = take(buffer, 11)
    ahead = batch.head.versions[2:] == 900
    # Two segments have age 0, and two segments have each age from 2 to 11.
    assert 0 < np.count_nonzero(ahead) < ahead.size
    np.testing.assert_allclose(batch.head.probabilities[2:][ahead], 1 / 3, rtol=1e-3)


def test_the_draws_of_a_batch_follow_from_seed_and_number() -> None:
    drawn = []
    for seed in (3, 3, 4):
        buffer = make_buffer(replace(PLAN, seed=seed, batch_segments=12))
        actor = Actor(buffer)
        train(buffer, actor, range(10))
        actor.send(version=10)
        drawn.append(take(buffer, 10).keys.tolist())
    assert drawn[0] == drawn[1] != drawn[2]


def replayed_ages(buffer: ReplayBuffer, actor: Actor, batches: range, session: int = PLAN.session) -> list[int]:
    ages: list[int] = []
    for number in batches:
        actor.send(version=number)
        batch = take(buffer, number)
        ages.extend((number - batch.head.versions[batch.fresh_segments :]).tolist())
        commit(buffer, batch, session=session)
    return ages


def test_too_old_segments_lose_their_mass() -> None:
    buffer = make_buffer(replace(PLAN, max_staleness=9, half_life=1e6), rows=150)
    ages = replayed_ages(buffer, Actor(buffer), range(70))
    assert set(ages) == set(range(1, 10))


def test_segments_of_a_slow_actor_expire_at_the_same_age() -> None:
    buffer = make_buffer(replace(PLAN, max_staleness=15, half_life=1e6), rows=400)
    actor = Actor(buffer)
    train(buffer, actor, range(10))
    actor.send(version=0)
    ages = replayed_ages(buffer, actor, range(10, 60))
    assert max(ages) == 15


def test_a_batch_drawn_ahead_has_no_segment_too_old_for_its_training() -> None:
    plan = replace(PLAN, max_staleness=5, half_life=1e6, off_policy_degree=3)
    buffer = make_buffer(plan, rows=400)
    actor = Actor(buffer)
    train(buffer, actor, range(20))
    for number in (20, 21, 22):
        actor.send(version=20)
        lease = buffer.leases.draw(number)
        assert lease is not None
        assert lease.keys.size > 2
        assert number - lease.versions.min() <= 5


def test_nothing_is_replayed_when_all_segments_are_too_old() -> None:
    buffer = make_buffer(replace(PLAN, max_staleness=0))
    actor = Actor(buffer)
    train(buffer, actor, range(3))
    actor.send(version=3)
    assert take(buffer, 3).keys.size == 2


def test_a_larger_max_staleness_makes_old_segments_replayable_again() -> None:
    plan = replace(PLAN, max_staleness=1, half_life=1e6)
    buffer = make_buffer(plan, rows=300)
    actor = Actor(buffer)
    assert max(replayed_ages(buffer, actor, range(40))) == 1
    buffer.adopt_plan(replace(plan, session=8, next_batch=40, max_staleness=50))
    assert 40 < max(replayed_ages(buffer, actor, range(40, 100), session=8)) <= 50


def make_buffer_that_draws_1_and_2() -> tuple[ReplayBuffer, Actor, Lease]:
    """Returns a buffer, its actor and a lease with keys 1 and 2, which the next window overwrites."""
    buffer = make_buffer(rows=8)
    actor = Actor(buffer)
    train(buffer, actor, range(1), priority=1e30)
    for number in (1, 2):
        actor.send(version=number)
        batch = take(buffer, number)
        commit(buffer, batch, np.where(batch.keys <= 2, 1e30, 1.0))
    actor.send(version=3)
    lease = buffer.leases.draw(3)
    assert lease is not None
    assert lease.keys.tolist() == [7, 8, 1, 2]
    return buffer, actor, lease


def test_priorities_of_overwritten_segments_are_ignored_and_counted() -> None:
    buffer, actor, lease = make_buffer_that_draws_1_and_2()
    batch = gather(buffer, lease)
    actor.send(version=3)
    assert commit(buffer, batch, 5.0) == CommitOutcome(updated=2, overwritten=2)
    assert buffer.leases.ignored_priorities == 2
    following = take(buffer, 4)
    assert following.keys[:2].tolist() == [9, 10]
    assert following.priorities[:2].tolist() == [0.0, 0.0]
    assert set(following.keys[2:].tolist()) <= set(range(3, 9))


def test_segments_overwritten_before_the_copy_are_drawn_again() -> None:
    buffer, actor, lease = make_buffer_that_draws_1_and_2()
    actor.send(version=3)
    batch = gather(buffer, lease)
    assert batch.keys[:2].tolist() == [7, 8]
    replayed = batch.keys[2:].astype(np.int64)
    assert set(replayed.tolist()) <= {3, 4, 5, 6}
    assert batch.head.versions[2:].tolist() == ((replayed - 1) // 2).tolist()
    assert batch.priorities[2:].tolist() == [1.0, 1.0]
    # Priorities are equal. The newer two are one version younger and have 2^(1 / half_life) times the mass.
    older = 0.5 / (1.0 + 2.0 ** (1.0 / PLAN.half_life))
    expected = np.where(replayed <= 4, older, 0.5 - older)
    np.testing.assert_allclose(batch.head.probabilities[2:], expected, rtol=1e-9)
    assert_same_columns(batch.columns, make_columns([(0, 1, int(key)) for key in batch.keys]))


def test_a_redraw_does_not_change_an_earlier_copy_of_the_batch() -> None:
    buffer, actor, lease = make_buffer_that_draws_1_and_2()
    first = gather(buffer, lease)
    actor.send(version=3)
    second = gather(buffer, lease)
    assert first.keys.tolist() == [7, 8, 1, 2]
    assert not set(second.keys.tolist()) & {1, 2}
    for batch in (first, second):
        assert_same_columns(batch.columns, make_columns([(0, 1, int(key)) for key in batch.keys]))


def test_batches_copied_while_rows_are_overwritten_are_never_torn() -> None:
    buffer, batches = make_buffer(rows=8), 400
    actor, failures = Actor(buffer), list[Exception]()

    def collect() -> None:
        try:
            while buffer.version < batches:
                buffer.intakes.issue_grants(0.0)
                if append(buffer, actor.next_window(buffer.version), 0.0) is not None:
                    actor.sent += 2
        except Exception as error:
            failures.append(error)

    collecting = threading.Thread(target=collect)
    collecting.start()
    number = 0
    while number < batches and collecting.is_alive():
        if (lease := buffer.leases.draw(number)) is not None:
            batch = gather(buffer, lease)
            assert_same_columns(batch.columns, make_columns([(0, 1, int(key)) for key in batch.keys]))
            commit(buffer, batch)
            number += 1
    collecting.join()
    assert (number, failures) == (batches, [])


def test_a_repeated_commit_changes_nothing() -> None:
    buffer = make_buffer()
    actor = Actor(buffer)
    actor.send()
    batch = take(buffer, 0)
    assert commit(buffer, batch, 2.0) == CommitOutcome(updated=2, overwritten=0)
    assert commit(buffer, batch, 9.0) == CommitOutcome(updated=0, overwritten=0, repeated=True)
    assert buffer.version == 1
    actor.send()
    assert take(buffer, 1).priorities.tolist() == [0.0, 0.0, 2.0, 2.0]


def test_a_segment_drawn_twice_keeps_one_priority() -> None:
    buffer = make_buffer(replace(PLAN, batch_segments=10))
    actor = Actor(buffer)
    train(buffer, actor, range(1))
    actor.send(version=1)
    batch = take(buffer, 1)
    assert batch.keys.tolist() == [3, 4, 1, 1, 1, 1, 2, 2, 2, 2]
    assert commit(buffer, batch, np.arange(10.0)).updated == 10
    actor.send(version=2)
    drawn = take(buffer, 2)
    assert set(zip(drawn.keys[2:].tolist(), drawn.priorities[2:].tolist(), strict=True)) <= {
        (1, 5.0), (2, 9.0), (3, 0.0), (4, 1.0)
    }  # fmt: skip
    assert buffer.counts().stored == 6


def test_segments_missing_from_a_commit_are_fresh_in_the_next_batch() -> None:
    buffer = make_buffer(replace(PLAN, fresh_segments=3, batch_segments=3))
    actor = Actor(buffer, segments=3)
    actor.send(version=0)
    actor.send(version=0)
    batch = take(buffer, 0)
    buffer.leases.commit(PLAN.session, 0, batch.keys[1:2], np.ones(1))
    counts = buffer.counts()
    assert (counts.unseen, counts.leased) == (5, 0)
    assert sorted(take(buffer, 1).keys.tolist()) == [1, 3, 4]


def test_segments_missing_from_a_commit_keep_their_order_of_arrival() -> None:
    plan = replace(PLAN, fresh_segments=3, batch_segments=3)
    buffer = make_buffer(plan)
    Actor(buffer, segments=3).send(version=0)
    batch = take(buffer, 0)
    buffer.leases.commit(PLAN.session, 0, batch.keys[1:2], np.ones(1))
    buffer.adjust_plan(replace(plan, fresh_segments=1, batch_segments=1))
    assert [take(buffer, number).keys.tolist() for number in (1, 2)] == [[1], [3]]


@pytest.mark.parametrize("priorities", [[1.0, np.nan], [1.0, np.inf], [-1e-9, 1.0], [1.0]])
def test_bad_priorities_are_refused_and_the_lease_stays_open(priorities: list[float]) -> None:
    buffer = make_buffer()
    Actor(buffer).send()
    batch = take(buffer, 0)
    with pytest.raises(InvalidSegment, match="priorities must be finite"):
        buffer.leases.commit(PLAN.session, 0, batch.keys, np.array(priorities))
    assert commit(buffer, batch).updated == 2


def test_commits_out_of_order_are_refused() -> None:
    buffer = make_buffer()
    actor = Actor(buffer)
    actor.send()
    actor.send()
    first, second = take(buffer, 0), take(buffer, 1)
    with pytest.raises(InvalidSegment, match="0 is the next to commit"):
        commit(buffer, second)
    commit(buffer, first)
    commit(buffer, second)


def test_a_batch_that_was_never_leased_cannot_be_committed() -> None:
    buffer = make_buffer()
    Actor(buffer).send()
    with pytest.raises(InvalidSegment):
        buffer.leases.commit(PLAN.session, 0, np.array([1, 2], np.uint64), np.ones(2))
    assert buffer.counts().unseen == 2


@pytest.mark.parametrize("key", [3, 5])
def test_a_commit_of_untrained_segments_of_another_batch_is_refused(key: int) -> None:
    buffer = make_buffer(replace(PLAN, off_policy_degree=2))
    actor = Actor(buffer)
    for _ in range(3):
        actor.send()
    take(buffer, 0), take(buffer, 1)
    with pytest.raises(InvalidSegment, match="batch 0"):
        buffer.leases.commit(PLAN.session, 0, np.array([1, 2, key], np.uint64), np.ones(3))
    counts = buffer.counts()
    assert (counts.unseen, counts.leased) == (2, 4)


def test_a_commit_of_key_zero_gives_no_mass_to_an_empty_row() -> None:
    buffer = make_buffer()
    actor = Actor(buffer)
    actor.send()
    take(buffer, 0)
    outcome = buffer.leases.commit(PLAN.session, 0, np.array([1, 2, 0], np.uint64), np.array([0.0, 0.0, 1e9]))
    assert outcome == CommitOutcome(updated=2, overwritten=1)
    actor.send()
    assert take(buffer, 1).keys.tolist() == [3, 4, 1, 2]
