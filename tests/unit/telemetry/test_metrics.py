import pytest

from penstock.telemetry import metrics
from penstock.telemetry.metrics import Total


def test_a_total_has_no_value_before_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    # A 0 before the first look would be a reset of a count that a store keeps.
    monkeypatch.setattr(metrics, "REGISTRY", metrics.CollectorRegistry())
    total = Total("penstock_test", "Things.")
    [family] = total.collect()
    assert (family.type, family.samples) == ("counter", [])
    total.set(1000)
    [family] = total.collect()
    assert [(sample.name, sample.value) for sample in family.samples] == [("penstock_test_total", 1000)]
