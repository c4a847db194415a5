"""Counts and means of a session, compared with manual calculations."""

import math
from dataclasses import replace

import numpy as np
import pytest
from prometheus_client import REGISTRY

from penstock.learning.report.session_totals import RECENT_BATCHES, SessionTotals
from penstock.types.evaluation import EvaluationSummary
from penstock.types.replay import CommitOutcome, StoreCounts
from penstock.types.run import ActorReport
from penstock.types.statistics import Ages, CoordinatorStatistics, Drops, Timing, Wait
from penstock.types.waits import Awaited, WaitReason
from tests.support.segments.segments import PLAN
from tests.support.segments.statistics import TRAINING, counted_batch, learnt

EVALUATION = EvaluationSummary(3, 100, episodes=5, return_mean=22.125, return_std=1.0)


class Clock:
    """A clock that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def begin_session(clock: Clock | None = None) -> SessionTotals:
    session = SessionTotals(clock or Clock())
    session.set_plan(PLAN)
    return session


def statistics_of(session: SessionTotals) -> CoordinatorStatistics:
    statistics = session.statistics()
    assert statistics is not None
    return statistics


def report(env_steps: int, environment_s: float, policy_s: float, waiting_s: float, building_s: float) -> ActorReport:
    return ActorReport(env_steps, 0.0, (), Timing(environment_s, policy_s, building_s, waiting_s))


def test_a_session_without_a_plan_has_no_statistics() -> None:
    assert SessionTotals(Clock()).statistics() is None


def test_values_are_absent_before_the_first_batch() -> None:
    statistics = statistics_of(begin_session())
    assert statistics == CoordinatorStatistics("asynchronous", 1, PLAN.alpha)
    assert (statistics.lag, statistics.recent, statistics.times.batch_train_s) == (None, None, None)


@pytest.mark.parametrize(("degree", "mode"), [(0, "synchronous"), (2, "asynchronous")])
def test_the_mode_follows_from_the_degree(degree: int, mode: str) -> None:
    session = begin_session()
    session.set_plan(replace(PLAN, off_policy_degree=degree))
    statistics = statistics_of(session)
    assert (statistics.mode, statistics.off_policy_degree) == (mode, degree)


def test_collected_batches_are_insertions_divided_by_fresh_segments_per_batch() -> None:
    session = begin_session()
    # 100 segments were inserted in an earlier session, and 6 of them are not trained yet.
    counts = StoreCounts(inserted=100, unseen=4, leased=2, late=9, refused=1)
    session.trained(counted_batch(counts), TRAINING, fresh_steps=20, train_s=0.1)
    assert statistics_of(session).segments_collected == 6
    counts = replace(counts, inserted=109, late=12, refused=5, refunded=8)
    session.trained(counted_batch(counts), TRAINING, fresh_steps=20, train_s=0.1)
    session.committed(CommitOutcome(3, 1))
    statistics = statistics_of(session)
    assert (statistics.segments_collected, statistics.batches_collected) == (15, 7.5)
    assert (statistics.batches_trained, statistics.segments_trained) == (2, 8)
    assert statistics.drops == Drops(3, 5, 8, 1)


def test_the_counts_of_a_lost_store_are_kept() -> None:
    session = begin_session()
    for inserted, late in ((50, 5), (60, 6), (4, 0), (8, 1)):
        counts = StoreCounts(inserted=inserted, late=late, leased=2)
        session.trained(counted_batch(counts), TRAINING, fresh_steps=20, train_s=0.1)
    statistics = statistics_of(session)
    assert statistics.segments_collected == 2 + 10 + 4
    assert statistics.drops.late_segments == 1 + 1


def test_ages_are_means_over_segments() -> None:
    session = begin_session()
    session.trained(counted_batch(segments=2, fresh=2), TRAINING, fresh_steps=20, train_s=0.1)
    older = replace(TRAINING, staleness_mean=6.0, staleness_max=9, fresh_lag_mean=5.0, fresh_lag_max=6)
    session.trained(counted_batch(segments=4, fresh=1), older, fresh_steps=10, train_s=0.1)
    session.trained(counted_batch(segments=2, fresh=2), TRAINING, fresh_steps=20, train_s=0.1)
    statistics = statistics_of(session)
    assert statistics.lag == Ages(1.0, (2 * 1.0 + 1 * 5.0 + 2 * 1.0) / 5, 6)
    assert statistics.staleness == Ages(3.0, (2 * 3.0 + 4 * 6.0 + 2 * 3.0) / 8, 9)


def test_replayed_segments_reach_the_statistics_and_the_metrics() -> None:
    session = begin_session()
    assert statistics_of(session).replayed is None
    batch = counted_batch(segments=4, fresh=2)
    priorities, versions = np.array([0.0, 0.0, 1.0, 1.0]), np.array([-1, -1, -2, -4])
    head = replace(batch.head, priorities=priorities, versions=versions)
    session.trained(replace(batch, head=head), TRAINING, fresh_steps=20, train_s=0.1)
    replayed = statistics_of(session).replayed
    assert replayed is not None
    assert replayed.age_mean == 3.0
    assert replayed.age_90 == pytest.approx(3.8)
    assert replayed.drawn_priority == pytest.approx(1.0)
    for name, value in (
        ("replayed_age_versions", replayed.age_mean),
        ("replayed_age_90_versions", replayed.age_90),
        ("drawn_priority_ratio", replayed.drawn_priority),
    ):
        assert REGISTRY.get_sample_value(f"penstock_learner_{name}") == value


def test_a_batch_without_fresh_segments_does_not_change_the_lag() -> None:
    session = begin_session()
    nothing = replace(TRAINING, fresh_lag_mean=math.nan, fresh_lag_max=0)
    session.trained(counted_batch(fresh=0), nothing, fresh_steps=0, train_s=0.1)
    session.trained(counted_batch(fresh=2), TRAINING, fresh_steps=20, train_s=0.1)
    assert statistics_of(session).lag == Ages(1.0, 1.0, 2)


def test_actor_times_are_scaled_to_the_fresh_steps_of_a_batch() -> None:
    session = begin_session()
    # Two actors took 100 steps, with 0.2 s in the environments. A batch has 25 fresh steps.
    session.report(report(60, 0.14, 0.03, 0.4, 0.01))
    session.report(report(40, 0.06, 0.05, 0.6, 0.03))
    session.trained(counted_batch(), TRAINING, fresh_steps=30, train_s=0.1)
    session.trained(counted_batch(), TRAINING, fresh_steps=20, train_s=0.3)
    session.evaluated(EVALUATION, 1.0)
    session.evaluated(EVALUATION, 2.0)
    times = statistics_of(session).times
    assert times.collect_environment_s == pytest.approx(0.05)
    assert times.collect_policy_s == pytest.approx(0.02)
    assert times.collect_build_s == pytest.approx(0.01)
    assert times.collect_busy_s == pytest.approx(0.08)
    assert times.collect_wait_s == pytest.approx(0.25)
    assert times.batch_train_s == pytest.approx(0.2)
    assert times.evaluation_s == 1.5
    assert statistics_of(session).evaluations == 2


def test_waits_are_shares_of_session_time_sorted_by_duration() -> None:
    clock = Clock()
    session = begin_session(clock)
    for reason, seconds in (("the replay service", 1.0), ("fresh segments", 3.0), ("the replay service", 1.0)):
        clock.now += seconds
        session.waited(WaitReason.parse(reason), seconds)
    clock.now += 5.0
    session.trained(counted_batch(), TRAINING, fresh_steps=20, train_s=5.0)
    # Time after training, in the last evaluation, is not a wait for a batch.
    clock.now += 100.0
    statistics = statistics_of(session)
    assert statistics.waits == (
        Wait(WaitReason.parse("fresh segments"), 3.0, 0.3),
        Wait(WaitReason.parse("the replay service"), 2.0, 0.2),
    )
    assert statistics.times.batch_wait_s == 5.0


def test_recent_numbers_are_means_over_the_last_batches() -> None:
    session = begin_session()
    for entropy in [9.0, 8.0, *np.linspace(1.0, 2.0, RECENT_BATCHES).tolist()]:
        session.trained(counted_batch(), learnt(entropy=entropy), fresh_steps=20, train_s=0.1)
    statistics = statistics_of(session)
    assert statistics.last is not None and statistics.recent is not None
    assert (statistics.first_entropy, statistics.last.entropy) == (9.0, 2.0)
    assert statistics.recent.entropy == pytest.approx(1.5)
    assert statistics.recent_batches == RECENT_BATCHES
    assert (statistics.recent.clipped_share, statistics.recent.fresh_effective_share) == pytest.approx((0.1, 0.9))


def test_a_statistic_that_is_not_finite_is_absent() -> None:
    session = begin_session()
    session.trained(counted_batch(), learnt(gradient_norm=None), fresh_steps=20, train_s=0.1)
    last = statistics_of(session).last
    assert last is not None
    assert (last.gradient_norm, last.entropy) == (None, 0.6)


def test_mean_times_since_earlier_totals_cover_only_that_interval() -> None:
    session = begin_session()
    session.report(report(10, 0.1, 0.1, 0.1, 0.0))
    session.trained(counted_batch(), TRAINING, fresh_steps=10, train_s=1.0)
    session.evaluated(EVALUATION, 9.0)
    earlier = session.totals()
    session.report(report(20, 0.6, 0.4, 0.0, 0.2))
    session.waited(WaitReason(Awaited.FRESH_SEGMENTS), 0.5)
    session.trained(counted_batch(), TRAINING, fresh_steps=10, train_s=3.0)
    times = session.totals().since(earlier).times
    assert times.collect_environment_s == pytest.approx(0.3)
    assert times.collect_policy_s == pytest.approx(0.2)
    assert (times.batch_train_s, times.batch_wait_s, times.evaluation_s) == (3.0, 0.5, None)
    assert earlier.batches == 1
