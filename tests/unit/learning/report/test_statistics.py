import math
import time

import pytest
from prometheus_client import REGISTRY

from penstock.cli.commands.status import missing_lines
from penstock.learning.members.wanted_actors import MISSING_AFTER_S, ExpectedActors
from penstock.learning.report.statistics import RunStatistics
from penstock.types.extents import Amounts, Extent, RunLimit
from penstock.types.run import ActorReport, Episode
from penstock.types.statistics import Timing
from penstock.types.status import MissingActors, Notice
from penstock.wire import run as wire
from tests.support.segments.statistics import TRAINING, counted_batch


def make_statistics() -> RunStatistics:
    return RunStatistics(limits=Amounts(steps=100), earlier_s=0.0)


def test_notices_are_shown_in_order_with_numbers_that_increase() -> None:
    statistics = make_statistics()
    for text in ("first", "second", "third"):
        statistics.notice(text)
    notices = statistics.status().notices
    assert [notice.text for notice in notices] == ["first", "second", "third"]
    assert notices[0].number < notices[1].number < notices[2].number


def test_notices_of_a_restarted_learner_have_larger_numbers() -> None:
    before, after = make_statistics(), make_statistics()
    before.notice("of the first process")
    after.notice("of the second process")
    assert before.status().notices[0].number < after.status().notices[0].number


def test_only_the_newest_of_many_notices_are_kept() -> None:
    statistics = make_statistics()
    for number in range(1000):
        statistics.notice(str(number))
    texts = [notice.text for notice in statistics.status().notices]
    assert 1 < len(texts) < 100
    assert texts == [str(number) for number in range(1000 - len(texts), 1000)]


def test_the_status_contains_the_notices() -> None:
    statistics = make_statistics()
    statistics.notice("actor 3 was restarted")
    sent = statistics.status()
    received = wire.decode_status(wire.encode_status(sent))
    assert received.notices == sent.notices == (Notice(sent.notices[0].number, "actor 3 was restarted"),)


def report(*, env_steps: int = 0, first_step_at_s: float = 1.0) -> ActorReport:
    return ActorReport(env_steps, first_step_at_s, (), Timing())


@pytest.mark.parametrize("ahead_s", [-3600.0, -1.0, 0.0, 30.0, 3600.0])
def test_training_time_does_not_depend_on_the_clocks_of_actors(ahead_s: float) -> None:
    now = [100.0]
    statistics = RunStatistics(limits=Amounts(steps=1000), earlier_s=5.0, clock=lambda: now[0])
    statistics.report(report(first_step_at_s=0.0))
    now[0] = 110.0
    assert statistics.training_s == 5.0
    for now[0] in (120.0, 121.0):
        statistics.report(report(first_step_at_s=time.time() + ahead_s))
    now[0] = 150.0
    assert statistics.training_s == 35.0
    statistics.stood_still(10.0)
    assert statistics.training_s == 25.0


def test_the_clock_of_a_run_begins_with_a_step_and_includes_evaluations_and_earlier_sessions() -> None:
    now = [100.0]
    statistics = RunStatistics(
        limits=Amounts(minutes=2.0, steps=1000), earlier_s=5.0, earlier_clock_s=30.0, clock=lambda: now[0]
    )
    statistics.begin(version=3, extent=Extent(steps=10))
    now[0] = 110.0
    status = statistics.status()
    assert (statistics.clock_s, status.remaining_s) == (30.0, None)
    assert status.limit == RunLimit("minutes", 0.5, 2.0)
    statistics.report(report())
    now[0] = 125.0
    statistics.stood_still(10.0)
    assert (statistics.clock_s, statistics.training_s) == (45.0, 10.0)
    status = statistics.status()
    assert status.remaining_s == pytest.approx(75.0)
    assert wire.decode_status(wire.encode_status(status)).limit == status.limit == RunLimit("minutes", 0.75, 2.0)
    statistics.end_training()
    now[0] = 500.0
    assert statistics.clock_s == 45.0


def remaining_metric() -> float:
    value = REGISTRY.get_sample_value("penstock_learner_remaining_seconds")
    assert value is not None
    return value


def test_speed_and_remaining_time_are_those_of_the_present_while_no_batch_is_trained() -> None:
    now = [0.0]
    statistics = RunStatistics(limits=Amounts(steps=10_000), earlier_s=0.0, clock=lambda: now[0])
    statistics.begin(version=0, extent=Extent())

    def train(batches: int, every_s: float) -> None:
        done = statistics.status().version
        for number in range(done + 1, done + batches + 1):
            now[0] += every_s
            extent = Extent(steps=100 * number, updates=10 * number)
            statistics.trained(
                counted_batch(), TRAINING, version=number, extent=extent, samples_per_insert=1.0, train_s=0.1
            )

    def speed() -> tuple[float, float]:
        status = statistics.status()
        return status.env_steps_per_s, status.updates_per_s

    train(20, every_s=1.0)
    assert speed() == (100.0, 10.0)
    assert statistics.status().remaining_s == remaining_metric() == pytest.approx(80.0)
    # A batch under way is not late.
    now[0] += 1.0
    assert speed() == (100.0, 10.0)
    # Every actor was killed.
    now[0] += 5.0
    statistics.look()
    assert speed() == pytest.approx((100.0 * 10 / 15, 10.0 * 10 / 15))
    assert statistics.status().remaining_s == remaining_metric() == pytest.approx(120.0)
    now[0] += 300.0
    statistics.waits("actors")
    assert (speed(), statistics.status().remaining_s) == ((0.0, 0.0), None)
    assert math.isnan(remaining_metric())
    train(12, every_s=2.0)
    assert speed() == pytest.approx((50.0, 5.0))


def test_batches_that_take_minutes_have_a_speed_between_them() -> None:
    now = [0.0]
    statistics = RunStatistics(limits=Amounts(steps=400), earlier_s=0.0, clock=lambda: now[0])
    statistics.begin(version=0, extent=Extent())
    for number in range(1, 4):
        now[0] += 120.0
        extent = Extent(steps=100 * number)
        statistics.trained(
            counted_batch(), TRAINING, version=number, extent=extent, samples_per_insert=1.0, train_s=0.1
        )
    now[0] += 60.0
    assert (statistics.status().env_steps_per_s, statistics.status().remaining_s) == pytest.approx((100 / 120, 120.0))


def test_the_rate_does_not_fall_during_the_last_evaluations() -> None:
    now = [0.0]
    statistics = RunStatistics(limits=Amounts(steps=300), earlier_s=0.0, clock=lambda: now[0])
    for number in range(1, 4):
        now[0] += 2.0
        statistics.trained(
            counted_batch(),
            TRAINING,
            version=number,
            extent=Extent(steps=100 * number),
            samples_per_insert=1.0,
            train_s=0.1,
        )
    statistics.end_training()
    now[0] += 500.0
    assert statistics.status().env_steps_per_s == 50.0


def test_a_run_at_its_limit_has_no_time_left_although_nothing_is_trained() -> None:
    now = [0.0]
    statistics = RunStatistics(limits=Amounts(steps=100), earlier_s=0.0, clock=lambda: now[0])
    statistics.begin(version=9, extent=Extent(steps=100))
    now[0] = 500.0
    assert statistics.status().remaining_s == 0.0


def test_taken_steps_are_counted_separately_from_trained_steps() -> None:
    statistics = RunStatistics(limits=Amounts(steps=1000), earlier_s=0.0, earlier_steps_taken=500)
    for _ in range(3):
        statistics.report(report(env_steps=40))
    sent = statistics.status()
    assert (sent.env_steps, sent.env_steps_taken) == (0, 620)
    assert wire.decode_status(wire.encode_status(sent)).env_steps_taken == 620


def test_a_report_is_received_as_sent() -> None:
    sent = ActorReport(12, 1.7e9, (Episode(-3.5, 200, 1, truncated=True),), Timing(0.1, 0.2, 0.4, 0.3))
    assert wire.decode_report(wire.encode_report(sent)) == sent


def test_actors_that_an_engine_did_not_start_are_missing_after_a_minute() -> None:
    now, present = [100.0], [4]
    expected = ExpectedActors(6, "docker service ps penstock_actor")
    statistics = RunStatistics(limits=Amounts(steps=1), earlier_s=0.0, expected=expected, clock=lambda: now[0])
    statistics.connected_actors = lambda: present[0]

    def looked(at_s: float, actors: int) -> MissingActors | None:
        now[0], present[0] = at_s, actors
        statistics.look()
        sent = statistics.status()
        assert wire.decode_status(wire.encode_status(sent)).missing_actors == sent.missing_actors
        return sent.missing_actors

    assert looked(100.0, 4) is None
    assert looked(100.0 + MISSING_AFTER_S - 1.0, 5) is None
    assert looked(170.0, 5) == MissingActors(6, 70.0, "docker service ps penstock_actor")
    assert missing_lines(statistics.status()) == [
        "1 of 6 expected actors is missing, for 1:10 now; `docker service ps penstock_actor` shows why"
    ]
    present[0] = 4
    assert missing_lines(statistics.status())[0].startswith("2 of 6 expected actors are missing, for 1:10 now;")
    present[0] = 6
    assert missing_lines(statistics.status()) == []
    assert looked(180.0, 6) is None
    assert looked(190.0, 5) is None
    assert looked(190.0 + MISSING_AFTER_S, 5) == MissingActors(6, MISSING_AFTER_S, "docker service ps penstock_actor")


def test_as_many_actors_are_expected_as_are_wanted_where_something_starts_them() -> None:
    watch = ExpectedActors("wanted")
    assert not watch.observe(0.0, 0, None)
    assert watch.missing(1000.0) is None
    assert not watch.observe(1000.0, 2, 6)
    # Said once.
    assert [watch.observe(1000.0 + MISSING_AFTER_S + each, 2, 6) for each in range(3)] == [True, False, False]
    assert watch.missing(1000.0 + MISSING_AFTER_S) == MissingActors(6, MISSING_AFTER_S)
    assert not watch.observe(1100.0, 2, 2)
    assert watch.missing(1200.0) is None


def test_nothing_is_expected_by_default() -> None:
    watch = ExpectedActors(None)
    assert not any(watch.observe(time_s, 0, 6) for time_s in (0.0, 1000.0)) and watch.missing(1000.0) is None


def test_a_trained_episode_has_ended_even_if_its_report_has_not_arrived() -> None:
    statistics = make_statistics()

    def train(episodes: int) -> None:
        statistics.trained(
            counted_batch(), TRAINING, version=1, extent=Extent(episodes=episodes), samples_per_insert=1.0, train_s=0.1
        )

    train(episodes=3)
    assert statistics.status().episodes == 3
    ended = Episode(1.0, 5, environment=0, truncated=False)
    statistics.report(ActorReport(5, 1.0, (ended,) * 5, Timing()))
    assert statistics.status().episodes == 5
    train(episodes=4)
    assert statistics.status().episodes == 5
