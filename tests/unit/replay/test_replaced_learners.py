"""Tests that the replacement of a learner makes no segment older or late."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from penstock.replay.admission import ActorKey, Gate
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.store.ring_store import RingStore
from penstock.sharding.shares import shares_of_mass
from penstock.types.replay import Mass, SamplingPlan
from tests.support.segments.direct_buffer import append, intake_of
from tests.support.segments.segments import PLAN, SCHEMA, capacity_bytes, make_window

AGEING = replace(PLAN, alpha=0.6, max_staleness=64)
"""Plan with two fresh segments per batch, whose masses halve every 3.3 versions."""


def make_buffer(plan: SamplingPlan | None = AGEING, *, rows: int = 60, folder: Path | None = None) -> ReplayBuffer:
    buffer = ReplayBuffer(RingStore(folder, capacity_bytes(rows)), Gate(10.0, max_actors=8))
    if plan is not None:
        buffer.adopt_plan(plan)
    return buffer


def join(buffer: ReplayBuffer, slot: int = 0, segments: int = 2) -> int:
    return buffer.intakes.open(ActorKey(slot, 1), SCHEMA, segments, 0.0).stored_sequence


def send(buffer: ReplayBuffer, version: int, *, slot: int = 0, segments: int = 2, first: int | None = None) -> bool:
    """Sends the actor's next window. Returns True if the actor had a grant."""
    buffer.intakes.issue_grants(0.0)
    last = buffer.store.watermark(slot, 1) if first is None else first - 1
    window = make_window(last + 1, segments=segments, slot=slot, version=version)
    return append(buffer, window, 0.0) is not None


def train(buffer: ReplayBuffer, number: int, session: int = PLAN.session) -> None:
    lease = buffer.leases.draw(number)
    assert lease is not None
    buffer.leases.commit(session, number, lease.keys, np.ones(lease.keys.size))


def trained(until: int, **options: object) -> ReplayBuffer:
    """Returns a buffer that was trained up to this version and stores the window of the next batch."""
    buffer = make_buffer(**options)  # type: ignore[arg-type]
    join(buffer)
    for number in range(until):
        assert send(buffer, number)
        train(buffer, number)
    assert send(buffer, until - 1)
    return buffer


def true_mass(buffer: ReplayBuffer, plan: SamplingPlan = AGEING) -> float:
    """Returns the sum of (p + epsilon)^alpha 2^(-age / half_life), with ages at the committed version."""
    mass = buffer.mass
    return mass.total * float(2.0 ** ((mass.reference - buffer.version) / plan.half_life))


def another(first: int, plan: SamplingPlan = AGEING, session: int = 8) -> SamplingPlan:
    return replace(plan, session=session, next_batch=first)


@pytest.mark.parametrize("jump", [0, 1, 3, 27, 64, 101, 1_000_000])
def test_a_jump_of_the_version_changes_no_mass_and_no_fresh_segment(jump: int) -> None:
    buffer = trained(until=20)
    before = true_mass(buffer)
    buffer.adopt_plan(another(20 + jump))
    assert true_mass(buffer) == pytest.approx(before, rel=1e-12)
    lease = buffer.leases.draw(20 + jump)
    assert lease is not None
    assert lease.fresh_segments == 2
    assert buffer.counts().late == 0
    assert buffer.leases.head(lease, 0).ages[:2].tolist() == [1, 1]


def test_ages_continue_after_a_restart() -> None:
    buffer = trained(until=20)
    buffer.adopt_plan(another(90))
    train(buffer, 90, session=8)
    join(buffer)
    for number in range(91, 95):
        assert send(buffer, number)
        train(buffer, number, session=8)
    assert send(buffer, 95)
    lease = buffer.leases.draw(95)
    assert lease is not None
    head = buffer.leases.head(lease, 0)
    expected = [95 - version if version >= 90 else 95 - 70 - version for version in head.versions.tolist()]
    assert head.ages.tolist() == expected
    # Ages count trained batches, so the oldest replayable segment has age 25.
    sampled, ages = buffer.sample_replayable()
    assert sampled.size > 0
    assert ages.max() == 25
    assert ages.min() == 1
    # All priorities are equal, so probabilities depend only on ages.
    replayed = slice(head.fresh_segments, None)
    weights, everything = (2.0 ** (-each / AGEING.half_life) for each in (head.ages[replayed], ages))
    np.testing.assert_allclose(head.probabilities[replayed], weights / everything.sum(), rtol=1e-9)


def test_staleness_still_ends_replay_after_a_jump() -> None:
    plan = replace(AGEING, max_staleness=5)
    buffer = trained(until=20, plan=plan)
    buffer.adopt_plan(another(100, plan))
    before = true_mass(buffer, plan)
    assert before > 0.0
    for number in range(100, 110):
        train(buffer, number, session=8)
        join(buffer)
        assert send(buffer, number)
        lease = buffer.leases.draw(number + 1)
        assert lease is not None
        assert buffer.leases.head(lease, 0).ages.max() <= 5
    assert buffer.leases.draw(110).versions.min() >= 100  # type: ignore[union-attr]


def test_an_uncommitted_version_is_not_older_than_those_before_it() -> None:
    buffer = trained(until=20)
    join(buffer)
    # The learner was killed after it trained batch 20 and published version 21. Its commit did not arrive.
    assert buffer.leases.draw(20) is not None
    assert send(buffer, 21)
    buffer.adopt_plan(another(22))
    for number in (22, 23):
        lease = buffer.leases.draw(number)
        assert lease is not None
        ages = buffer.leases.head(lease, 0).ages[: lease.fresh_segments]
        assert (ages >= 0).all()
        assert (ages <= 1).all()
    assert buffer.counts().late == 0


def test_windows_collected_while_the_learner_is_replaced_are_not_late() -> None:
    plan = replace(AGEING, off_policy_degree=0, batch_segments=4, fresh_segments=4)
    buffer = make_buffer(plan)
    join(buffer, 0), join(buffer, 1)
    for number in range(5):
        assert send(buffer, number, slot=0)
        assert send(buffer, number, slot=1)
        train(buffer, number)
    assert send(buffer, 5, slot=0)
    # The learner is killed while the second actor collects with version 5. That grant stays, and no other is issued.
    buffer.adopt_plan(another(6, plan))
    granted = buffer.intakes.issue_grants(0.0)
    assert granted == []
    assert send(buffer, 5, slot=1)
    lease = buffer.leases.draw(6)
    assert lease is not None
    assert buffer.counts().late == 0
    assert sorted(buffer.store.headers["slot"][buffer.store.rows(lease.keys)].tolist()) == [0, 0, 1, 1]


def test_the_clock_survives_a_restart(tmp_path: Path) -> None:
    buffer = trained(until=20, folder=tmp_path)
    before = true_mass(buffer)
    buffer.adopt_plan(another(80))
    del buffer
    again = make_buffer(None, folder=tmp_path)
    again.adopt_plan(another(80))
    assert true_mass(again) == pytest.approx(before, rel=1e-12)
    lease = again.leases.draw(80)
    assert lease is not None
    assert again.counts().late == 0
    again.leases.commit(8, 80, lease.keys, np.ones(lease.keys.size))
    # A third learner connects.
    after = true_mass(again)
    again.adopt_plan(another(300, session=9))
    assert true_mass(again) == pytest.approx(after, rel=1e-12)


def test_a_learner_killed_while_it_connects_leaves_no_gap(tmp_path: Path) -> None:
    buffer = trained(until=20, folder=tmp_path)
    before = true_mass(buffer)
    # State after a kill between the writes of the gap and of the session record.
    buffer._segments.ages.skip(20, 400)
    del buffer
    again = make_buffer(None, folder=tmp_path)
    again.adopt_plan(another(30))
    assert true_mass(again) == pytest.approx(before, rel=1e-12)
    train(again, 30, session=8)
    join(again)
    for number in range(31, 40):
        assert send(again, number)
        train(again, number, session=8)
    _, ages = again.sample_replayable()
    assert ages.max() == 40 - 10


def test_a_first_learner_above_version_0_makes_no_gap() -> None:
    buffer = make_buffer(another(500))
    join(buffer)
    # A store in memory was lost, so segments collected long before are late.
    assert send(buffer, 400)
    assert send(buffer, 500)
    lease = buffer.leases.draw(500)
    assert lease is not None
    assert (lease.versions.tolist(), buffer.counts().late) == ([500, 500], 2)


def test_stores_with_different_gaps_have_comparable_masses() -> None:
    together, apart = trained(until=20), trained(until=20)
    together.adopt_plan(another(21))
    apart.adopt_plan(another(21))
    for number in (21, 22):
        for buffer in (together, apart):
            join(buffer)
            train(buffer, number, session=8)
            assert send(buffer, number)
    # One store was disconnected during one replacement of the learner.
    together.adopt_plan(another(60, session=9))
    apart.adopt_plan(another(40, session=9))
    apart.adopt_plan(another(60, session=10))
    shares = shares_of_mass([together.mass, apart.mass], AGEING.half_life)
    assert shares.tolist() == pytest.approx([0.5, 0.5], rel=1e-9)
    assert shares_of_mass([together.mass, Mass()], 2.0).tolist() == [1.0, 0.0]


# Changes of the degree


def test_windows_granted_under_a_higher_degree_are_not_late_under_a_lower_one() -> None:
    plan = replace(AGEING, off_policy_degree=3)
    buffer = make_buffer(plan)
    join(buffer)
    for _ in range(4):
        assert send(buffer, 0)
    buffer.adjust_plan(replace(plan, off_policy_degree=2))
    for number in range(4):
        train(buffer, number)
    assert buffer.counts().late == 0


def test_a_new_learner_with_a_lower_degree_makes_no_segment_late() -> None:
    plan = replace(AGEING, off_policy_degree=3)
    buffer = make_buffer(plan)
    join(buffer)
    for _ in range(4):
        assert send(buffer, 0)
    lower = another(50, replace(plan, off_policy_degree=1))
    buffer.adopt_plan(lower)
    for number in range(50, 54):
        train(buffer, number, session=8)
    assert buffer.counts().late == 0


def test_the_lower_degree_applies_after_the_windows_granted_before() -> None:
    plan = replace(AGEING, off_policy_degree=3)
    buffer = make_buffer(plan)
    join(buffer)
    for _ in range(4):
        assert send(buffer, 0)
    buffer.adjust_plan(replace(plan, off_policy_degree=1))
    for number in range(4):
        train(buffer, number)
    assert send(buffer, 2)
    assert send(buffer, 4)
    train(buffer, 4)
    assert buffer.counts().late == 2


def test_a_degree_is_not_lowered_below_the_need_of_a_connected_window() -> None:
    plan = replace(AGEING, batch_segments=8, fresh_segments=8, off_policy_degree=3)
    buffer = make_buffer(plan)
    join(buffer, 0, segments=4)
    join(buffer, 1, segments=20)
    buffer.adjust_plan(replace(plan, off_policy_degree=2))
    assert buffer.gate.plan is not None
    assert buffer.gate.plan.off_policy_degree == 3
    assert buffer.intakes.issue_grants(0.0)


# Staleness


def test_mass_is_0_without_a_draw_when_all_seen_segments_are_too_old() -> None:
    # The plan has no replay, because a draw removes the masses of segments that are too old.
    plan = replace(AGEING, batch_segments=2, max_staleness=3, off_policy_degree=9)
    buffer = make_buffer(plan)
    join(buffer, 0), join(buffer, 1)
    buffer.intakes.issue_grants(0.0)
    # One window arrives slowly. Later windows are trained in the meantime and become too old.
    buffer.adjust_plan(replace(plan, next_batch=5))
    head = make_window(1, slot=1, version=5).head
    intake = intake_of(buffer, head)
    assert intake.reserve(head, 0.0)
    for number in range(5):
        assert send(buffer, 0)
        train(buffer, number)
    intake.seal(0.0)
    train(buffer, 5)
    assert buffer.mass.total > 0.0
    for number in range(6, 10):
        assert send(buffer, 1)
        train(buffer, number)
    # The newest seen segments are of version 5, which is five versions old.
    assert buffer.version == 10
    assert buffer.mass.total == 0.0


def test_an_old_segment_behind_a_young_one_loses_its_mass_at_a_commit() -> None:
    plan = replace(AGEING, max_staleness=2, off_policy_degree=5)
    buffer = make_buffer(plan)
    join(buffer)
    buffer.adjust_plan(replace(plan, next_batch=3))
    for version in (3, 0, 3):
        assert send(buffer, version)
    train(buffer, 0)
    train(buffer, 1)
    masses = buffer._segments.priorities._tree.masses
    assert np.count_nonzero(masses) == 4
    train(buffer, 2)
    # The windows are of versions 3, 0 and 3. Version 0 is now three versions old.
    assert np.count_nonzero(masses) == 4
    assert (masses[buffer.store.rows(np.array([3, 4], np.uint64))] == 0.0).all()
