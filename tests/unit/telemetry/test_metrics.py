import time

import pytest
from prometheus_client import REGISTRY, CollectorRegistry

from penstock.telemetry.metrics import OfService, Total, exchange_cpu_time


def test_a_total_has_no_value_before_it_is_known() -> None:
    # A 0 before the first look would be a reset of a count that a store keeps.
    total = Total("penstock_test", "Things.", CollectorRegistry())
    [family] = total.collect()
    assert (family.type, family.samples) == ("counter", [])
    total.set(1000)
    [family] = total.collect()
    assert [(sample.name, sample.value) for sample in family.samples] == [("penstock_test_total", 1000)]


def test_metrics_of_a_service_can_be_asked_by_name() -> None:
    [family] = OfService("learner").restricted_registry(["penstock_learner_actors"]).collect()
    assert family.name == "penstock_learner_actors"


def counted(activity: str) -> float:
    return REGISTRY.get_sample_value("penstock_exchange_cpu_seconds_total", {"activity": activity}) or 0.0


def test_the_cpu_time_of_the_exchange_is_counted_and_its_waits_are_not() -> None:
    before, started = counted("sending"), time.thread_time()
    with exchange_cpu_time("sending"):
        time.sleep(0.2)
        while time.thread_time() - started < 0.05:
            pass
    elapsed = time.thread_time() - started
    assert 0.04 < counted("sending") - before <= elapsed


def test_an_exchange_that_fails_is_counted() -> None:
    before = counted("loading")
    with pytest.raises(ValueError, match="torn"), exchange_cpu_time("loading"):
        sum(range(100_000))
        raise ValueError("torn")
    assert counted("loading") > before
