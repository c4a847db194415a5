from prometheus_client import CollectorRegistry

from penstock.telemetry.metrics import OfService, Total


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
