"""The CPU time of the exchange between services."""

import time

import pytest
from prometheus_client import REGISTRY

from penstock.telemetry import exchange


def counted(activity: str) -> float:
    return REGISTRY.get_sample_value("penstock_exchange_cpu_seconds_total", {"activity": activity}) or 0.0


def test_the_cpu_time_of_the_thread_is_counted_and_its_waits_are_not() -> None:
    before, started = counted("sending"), time.thread_time()
    with exchange.measured("sending"):
        time.sleep(0.2)
        while time.thread_time() - started < 0.05:
            pass
    elapsed = time.thread_time() - started
    assert 0.04 < counted("sending") - before <= elapsed


def test_a_block_that_fails_is_counted() -> None:
    before = counted("loading")
    with pytest.raises(ValueError, match="torn"), exchange.measured("loading"):
        sum(range(100_000))
        raise ValueError("torn")
    assert counted("loading") > before
