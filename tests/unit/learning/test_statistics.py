import time

import pytest

from penstock.learning.statistics import RunStatistics
from penstock.types.extents import Amounts, Extent, RunLimit
from penstock.types.run import ActorReport, Episode
from penstock.types.statistics import Timing
from penstock.types.status import Notice
from penstock.wire import run as wire


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
    statistics.begin("E-v0", version=3, extent=Extent(steps=10))
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
