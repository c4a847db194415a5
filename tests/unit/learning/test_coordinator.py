"""What the coordinator counts and takes means of, by hand-worked numbers."""

import math
from dataclasses import replace

import numpy as np
import pytest

from helpers.segments import PLAN
from helpers.statistics import TRAINING, counted_batch
from penstock.learning.coordinator import RECENT_BATCHES, Coordinator
from penstock.types import ActorReport, Ages, CommitOutcome, CoordinatorStatistics, Drops, StoreCounts, Wait


class Clock:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def begun(clock: Clock | None = None) -> Coordinator:
    coordinator = Coordinator(clock or Clock())
    coordinator.works_by(PLAN, chosen=False)
    return coordinator


def statistics_of(coordinator: Coordinator) -> CoordinatorStatistics:
    statistics = coordinator.statistics()
    assert statistics is not None
    return statistics


def report(env_steps: int, environment_s: float, policy_s: float, waiting_s: float, building_s: float) -> ActorReport:
    return ActorReport(env_steps, 0.0, (), environment_s, policy_s, waiting_s, building_s)


def test_without_a_plan_there_is_nothing_to_tell() -> None:
    assert Coordinator(Clock()).statistics() is None


def test_before_the_first_batch_no_value_is_made_up() -> None:
    statistics = statistics_of(begun())
    assert statistics == CoordinatorStatistics("asynchronous", 1)
    assert (statistics.lag, statistics.recent, statistics.times.batch_train_s) == (None, None, None)


@pytest.mark.parametrize(
    ("degree", "chosen", "mode"),
    [(0, False, "synchronous"), (2, False, "asynchronous"), (2, True, "chosen")],
)
def test_the_mode_follows_from_the_degree_and_who_chose_it(degree: int, chosen: bool, mode: str) -> None:
    coordinator = begun()
    coordinator.works_by(replace(PLAN, off_policy_degree=degree), chosen=chosen)
    statistics = statistics_of(coordinator)
    assert (statistics.mode, statistics.off_policy_degree) == (mode, degree)


def test_collected_batches_are_what_the_store_took_in_by_the_fresh_segments_of_one() -> None:
    coordinator = begun()
    # 100 were inserted in an earlier session, and 6 of them are still to be trained.
    counts = StoreCounts(inserted=100, unseen=4, leased=2, late=9, refused=1)
    coordinator.trained(counted_batch(counts), TRAINING, fresh_steps=20, train_s=0.1)
    assert statistics_of(coordinator).segments_collected == 6
    counts = replace(counts, inserted=109, late=12, refused=5, refunded=8)
    coordinator.trained(counted_batch(counts), TRAINING, fresh_steps=20, train_s=0.1)
    coordinator.committed(CommitOutcome(3, 1))
    statistics = statistics_of(coordinator)
    assert (statistics.segments_collected, statistics.batches_collected) == (15, 7.5)
    assert (statistics.batches_trained, statistics.segments_trained) == (2, 8)
    assert statistics.drops == Drops(3, 5, 8, 1)


def test_a_store_that_was_lost_takes_nothing_back() -> None:
    coordinator = begun()
    for inserted, late in ((50, 5), (60, 6), (4, 0), (8, 1)):
        counts = StoreCounts(inserted=inserted, late=late, leased=2)
        coordinator.trained(counted_batch(counts), TRAINING, fresh_steps=20, train_s=0.1)
    statistics = statistics_of(coordinator)
    assert statistics.segments_collected == 2 + 10 + 4
    assert statistics.drops.late_segments == 1 + 1


def test_ages_are_means_over_segments_not_over_batches() -> None:
    coordinator = begun()
    coordinator.trained(counted_batch(segments=2, fresh=2), TRAINING, fresh_steps=20, train_s=0.1)
    older = replace(TRAINING, staleness_mean=6.0, staleness_max=9, fresh_lag_mean=5.0, fresh_lag_max=6)
    coordinator.trained(counted_batch(segments=4, fresh=1), older, fresh_steps=10, train_s=0.1)
    coordinator.trained(counted_batch(segments=2, fresh=2), TRAINING, fresh_steps=20, train_s=0.1)
    statistics = statistics_of(coordinator)
    assert statistics.lag == Ages(1.0, (2 * 1.0 + 1 * 5.0 + 2 * 1.0) / 5, 6)
    assert statistics.staleness == Ages(3.0, (2 * 3.0 + 4 * 6.0 + 2 * 3.0) / 8, 9)


def test_a_batch_without_fresh_segments_says_nothing_about_the_lag() -> None:
    coordinator = begun()
    nothing = replace(TRAINING, fresh_lag_mean=math.nan, fresh_lag_max=0)
    coordinator.trained(counted_batch(fresh=0), nothing, fresh_steps=0, train_s=0.1)
    coordinator.trained(counted_batch(fresh=2), TRAINING, fresh_steps=20, train_s=0.1)
    assert statistics_of(coordinator).lag == Ages(1.0, 1.0, 2)


def test_actors_times_are_those_of_a_batchs_fresh_steps() -> None:
    coordinator = begun()
    # Two actors, which are three batches ahead: 0.2 s in the environments for 100 steps, and a batch has 25 of them.
    coordinator.report(report(60, 0.14, 0.03, 0.4, 0.01))
    coordinator.report(report(40, 0.06, 0.05, 0.6, 0.03))
    coordinator.trained(counted_batch(), TRAINING, fresh_steps=30, train_s=0.1)
    coordinator.trained(counted_batch(), TRAINING, fresh_steps=20, train_s=0.3)
    coordinator.evaluated(1.0)
    coordinator.evaluated(2.0)
    times = statistics_of(coordinator).times
    assert times.collect_environment_s == pytest.approx(0.05)
    assert times.collect_policy_s == pytest.approx(0.02)
    assert times.collect_build_s == pytest.approx(0.01)
    assert times.collect_busy_s == pytest.approx(0.08)
    assert times.collect_wait_s == pytest.approx(0.25)
    assert times.batch_train_s == pytest.approx(0.2)
    assert times.evaluation_s == 1.5
    assert statistics_of(coordinator).evaluations == 2


def test_waits_are_shares_of_the_sessions_time_by_reason_the_longest_first() -> None:
    clock = Clock()
    coordinator = begun(clock)
    for reason, seconds in (("the replay service", 1.0), ("fresh segments", 3.0), ("the replay service", 1.0)):
        clock.now += seconds
        coordinator.waited(reason, seconds)
    clock.now += 5.0
    coordinator.trained(counted_batch(), TRAINING, fresh_steps=20, train_s=5.0)
    # What comes after training, the last evaluation, is nobody's wait.
    clock.now += 100.0
    statistics = statistics_of(coordinator)
    assert statistics.waits == (Wait("fresh segments", 3.0, 0.3), Wait("the replay service", 2.0, 0.2))
    assert statistics.times.batch_wait_s == 5.0


def test_training_numbers_are_means_over_the_last_batches_only() -> None:
    coordinator = begun()
    for entropy in [9.0, 8.0, *np.linspace(1.0, 2.0, RECENT_BATCHES).tolist()]:
        coordinator.trained(counted_batch(), replace(TRAINING, entropy=entropy), fresh_steps=20, train_s=0.1)
    statistics = statistics_of(coordinator)
    assert statistics.last is not None and statistics.recent is not None
    assert (statistics.first_entropy, statistics.last.entropy) == (9.0, 2.0)
    assert statistics.recent.entropy == pytest.approx(1.5)
    assert statistics.recent_batches == RECENT_BATCHES
    assert (statistics.recent.clipped_share, statistics.recent.fresh_effective_share) == pytest.approx((0.1, 0.9))


def test_what_is_no_finite_number_is_not_told_as_one() -> None:
    coordinator = begun()
    coordinator.trained(counted_batch(), replace(TRAINING, gradient_norm=math.nan), fresh_steps=20, train_s=0.1)
    last = statistics_of(coordinator).last
    assert last is not None
    assert (last.gradient_norm, last.entropy) == (None, 0.6)


def test_what_came_since_an_earlier_look_has_means_of_its_own() -> None:
    coordinator = begun()
    coordinator.report(report(10, 0.1, 0.1, 0.1, 0.0))
    coordinator.trained(counted_batch(), TRAINING, fresh_steps=10, train_s=1.0)
    coordinator.evaluated(9.0)
    earlier = coordinator.totals()
    coordinator.report(report(20, 0.6, 0.4, 0.0, 0.2))
    coordinator.waited("fresh segments", 0.5)
    coordinator.trained(counted_batch(), TRAINING, fresh_steps=10, train_s=3.0)
    times = coordinator.totals().since(earlier).times
    assert times.collect_environment_s == pytest.approx(0.3)
    assert times.collect_policy_s == pytest.approx(0.2)
    assert (times.batch_train_s, times.batch_wait_s, times.evaluation_s) == (3.0, 0.5, None)
    assert earlier.batches == 1
