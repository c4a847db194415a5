"""Bounds of `make e2e`: a slow machine meets them, and a service that became slower does not. Limits of waits."""

from collections.abc import Iterator

import pytest

from tests.e2e.baselines import TRIES, Baseline, compare
from tests.e2e.recovery import RESTART_MULTIPLE
from tests.e2e.report import Report
from tests.support.machine import timing
from tests.support.machine.timing import wait_for


def report_of(starts: Iterator[float], restarts: Iterator[float]) -> Report:
    report, baseline = Report(), Baseline(lambda: next(starts))
    baseline.measure()
    compare(report, "a restart", lambda: next(restarts), baseline, multiple=RESTART_MULTIPLE)
    return report


@pytest.mark.parametrize("slowness", [1.0, 10.0, 100.0])
def test_a_slow_machine_meets_the_bounds(slowness: float) -> None:
    report = report_of(iter([2.0 * slowness]), iter([2.2 * slowness]))
    assert report.met
    assert report.lines[0].ratio == "1.10"


@pytest.mark.parametrize("restart_s", [17.2, 6.6], ids=["15 s more", "three times as long"])
def test_a_restart_slower_than_a_start_misses_the_bound(restart_s: float) -> None:
    report = report_of(iter([2.0, 2.1, 1.9, 2.2]), iter([restart_s] * TRIES))
    assert not report.met
    assert report.lines[0].measured.startswith(f"{restart_s} s, after tries of")


def test_load_during_a_restart_is_included_in_the_next_baseline() -> None:
    assert report_of(iter([2.0, 9.0]), iter([10.0])).met


def test_load_during_only_one_restart_is_tolerated_and_reported() -> None:
    report = report_of(iter([2.0, 2.0]), iter([10.0, 2.2]))
    assert report.met
    assert report.lines[0].measured == "2.2 s, after tries of 10.0 s"


def test_a_wait_measures_its_limit_only_after_the_least_one(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = list[float]()

    def longest_s() -> float:
        measured.append(0.05)
        return measured[-1]

    assert wait_for(lambda: "value", "nothing", longest_s=longest_s) == "value"
    assert measured == []
    monkeypatch.setattr(timing, "LEAST_PATIENCE_S", 0.01)
    with pytest.raises(AssertionError, match="the event: not within 0 s"):
        wait_for(lambda: None, "the event", poll_s=0.001, longest_s=longest_s)
    assert len(measured) == 1
    # An event after the least limit and before the measured one.
    happened = iter([None] * 20)
    assert wait_for(lambda: next(happened, True), "the event", poll_s=0.001, longest_s=lambda: timing.NEVER_S)


def test_a_given_limit_is_not_extended() -> None:
    with pytest.raises(AssertionError, match="the event: not within 0 s"):
        wait_for(lambda: None, "the event", 0.01, poll_s=0.001, longest_s=lambda: timing.NEVER_S)
