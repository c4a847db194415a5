import pytest
from prometheus_client import REGISTRY

from penstock.process.run_info import show_run


def test_the_metric_names_the_run_its_environment_preset_and_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_PRESET", "pendulum")
    monkeypatch.setenv("PENSTOCK_COMMIT", "1a2b3c4")
    show_run("second", "Pendulum-v1")
    labels = {"run": "second", "environment": "Pendulum-v1", "preset": "pendulum", "commit": "1a2b3c4"}
    assert REGISTRY.get_sample_value("penstock_run_info", labels) == 1.0
