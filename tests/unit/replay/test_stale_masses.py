"""Tests the mass of a store without draws. A draw would remove the masses of segments that are too old."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from penstock.replay.admission import ActorKey, Gate
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.priority_index import PriorityIndex
from penstock.replay.store.ages import Ages
from penstock.replay.store.ring_store import RingStore
from penstock.types.replay import SamplingPlan
from tests.support.segments.direct_buffer import append
from tests.support.segments.segments import PLAN, SCHEMA, capacity_bytes, make_window

FRESH_ONLY = replace(PLAN, batch_segments=2, half_life=1e9, max_staleness=3)
"""Plan without replay, whose masses hardly depend on age."""

ONE_MASS = (1.0 + PLAN.epsilon) ** PLAN.alpha


def make_store(folder: Path | None = None) -> RingStore:
    return RingStore(folder, capacity_bytes(2_100))


def make_buffer(store: RingStore, plan: SamplingPlan) -> ReplayBuffer:
    buffer = ReplayBuffer(store, Gate(10.0, max_actors=8))
    buffer.intakes.open(ActorKey(0, 1), SCHEMA, 2, 0.0)
    buffer.adopt_plan(plan)
    return buffer


def train(buffer: ReplayBuffer, batches: range, priority: float = 1.0) -> None:
    """Inserts one window and trains one batch per number. Replayed segments are drawn if the plan has any."""
    for number in batches:
        buffer.intakes.issue_grants(0.0)
        assert append(buffer, make_window(1 + 2 * number, version=number), 0.0) == 2 + 2 * number
        lease = buffer.leases.draw(number)
        assert lease is not None
        buffer.leases.commit(PLAN.session, number, lease.keys, np.full(lease.keys.size, priority))


def test_the_mass_of_a_store_excludes_segments_that_are_too_old() -> None:
    buffer = make_buffer(make_store(), FRESH_ONLY)
    sums = []
    for number in range(12):
        train(buffer, range(number, number + 1))
        sums.append(buffer.mass.total / ONE_MASS)
    # Each version has two segments. At version k, the segments of versions k - 3 to k - 1 have mass.
    assert sums == pytest.approx([2.0, 4.0, 6.0] + [6.0] * 9)


def test_segments_of_an_earlier_process_lose_their_mass_with_age(tmp_path: Path) -> None:
    train(make_buffer(make_store(tmp_path), FRESH_ONLY), range(6))
    again = make_buffer(make_store(tmp_path), FRESH_ONLY)
    assert again.mass.total / ONE_MASS == pytest.approx(6.0)
    for number in range(6, 10):
        train(again, range(number, number + 1))
        assert again.mass.total / ONE_MASS == pytest.approx(6.0)


def test_changes_of_max_staleness_add_and_remove_the_mass_of_old_segments() -> None:
    buffer = make_buffer(make_store(), FRESH_ONLY)
    train(buffer, range(10))
    buffer.adjust_plan(replace(FRESH_ONLY, max_staleness=100))
    assert buffer.mass.total / ONE_MASS == pytest.approx(20.0)
    train(buffer, range(10, 12))
    assert buffer.mass.total / ONE_MASS == pytest.approx(24.0)
    buffer.adjust_plan(FRESH_ONLY)
    train(buffer, range(12, 14))
    assert buffer.mass.total / ONE_MASS == pytest.approx(6.0)


@pytest.mark.parametrize("version", [30, 31, 300, 100_000])
def test_a_new_session_keeps_the_masses_that_a_first_plan_would_compute(version: int, tmp_path: Path) -> None:
    plan = replace(PLAN, batch_segments=4, half_life=3.0, max_staleness=9)
    buffer = make_buffer(make_store(tmp_path), plan)
    train(buffer, range(20), priority=2.0)
    train(buffer, range(20, 30), priority=0.5)
    buffer.adopt_plan(replace(plan, session=PLAN.session + 1, next_batch=version))
    index = PriorityIndex(buffer.store, Ages(buffer.store.records, version))
    index.adopt(plan)
    kept = buffer._segments.priorities
    assert kept.mass.total > 0.0
    shares = [each._tree.masses / each._tree.total for each in (kept, index)]
    np.testing.assert_allclose(shares[0], shares[1], rtol=1e-9)
    # Masses are comparable between stores, whatever their reference is.
    sums = [each.mass.total * 2.0 ** ((each.mass.reference - version) / 3.0) for each in (kept, index)]
    assert sums[0] == pytest.approx(sums[1])


def test_a_plan_that_changes_no_mass_costs_the_same_for_any_store(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = make_buffer(make_store(), FRESH_ONLY)
    train(buffer, range(10))
    monkeypatch.setattr(PriorityIndex, "_compute", None)
    buffer.adjust_plan(replace(FRESH_ONLY, off_policy_degree=3))
    buffer.adopt_plan(replace(FRESH_ONLY, off_policy_degree=3))
    buffer.adopt_plan(replace(FRESH_ONLY, session=PLAN.session + 1, next_batch=12, seed=9))
    assert buffer.mass.total / ONE_MASS == pytest.approx(6.0)


def test_the_effect_of_an_outlier_on_late_segments_decays() -> None:
    buffer = make_buffer(make_store(), replace(FRESH_ONLY, off_policy_degree=2))
    train(buffer, range(1), priority=1e6)
    train(buffer, range(1, 201))
    buffer.intakes.issue_grants(0.0)
    append(buffer, make_window(403, version=0), 0.0)
    assert buffer.leases.draw(201) is None
    assert buffer.counts().late == 2
    priorities, _ = buffer.sample_replayable()
    assert np.unique(priorities) == pytest.approx([1.0, 1e6 * 0.999**200, 1e6], rel=1e-9)


def test_a_segment_trained_again_is_counted_once() -> None:
    # Each batch has 2 fresh and 2 replayed segments.
    buffer = make_buffer(make_store(), replace(PLAN, half_life=1e9))
    train(buffer, range(20))
    sizes = []
    for least in (40, 41):
        buffer.adjust_plan(replace(PLAN, half_life=1e9, min_replay_segments=least))
        buffer.intakes.issue_grants(0.0)
        number = buffer.version
        append(buffer, make_window(1 + 2 * number, version=number), 0.0)
        lease = buffer.leases.draw(number)
        assert lease is not None
        sizes.append(lease.keys.size)
        buffer.leases.commit(PLAN.session, number, np.zeros(0, np.uint64), np.zeros(0))
    assert sizes == [4, 2]


def test_draws_depend_only_on_the_batch_number_and_the_attempt() -> None:
    store = make_store()
    train(make_buffer(store, FRESH_ONLY), range(40))
    index = PriorityIndex(store, Ages(store.records, 40))
    index.adopt(replace(PLAN, half_life=1e9))
    drawn = [index.draw(number, 16, attempt)[0].tolist() for number, attempt in ((5, 0), (5, 0), (5, 1), (6, 0))]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2] and drawn[0] != drawn[3]


def test_a_segment_of_an_uncommitted_version_has_the_mass_of_the_newest() -> None:
    plan = replace(FRESH_ONLY, half_life=1.0)
    buffer = make_buffer(make_store(), plan)
    buffer.intakes.issue_grants(0.0)
    # The learner continued without this service for many versions.
    buffer.adjust_plan(replace(plan, next_batch=50))
    append(buffer, make_window(1, version=50), 0.0)
    lease = buffer.leases.draw(0)
    assert lease is not None
    buffer.leases.commit(PLAN.session, 0, lease.keys, np.ones(2))
    # Masses are relative to version 0, and the newest committed version is 1.
    assert buffer.mass.total == pytest.approx(2.0 * ONE_MASS * 2.0)
