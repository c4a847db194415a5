from collections.abc import Iterator

import pytest
import torch
from prometheus_client import REGISTRY

from penstock.learning.step.devices import export_gpu_metrics
from penstock.telemetry import metrics

GPU = torch.device("cuda:3")


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replaces the functions of torch that query the driver of a GPU."""
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (300, 1000))
    monkeypatch.setattr("torch.cuda.memory_reserved", lambda device: 500)
    monkeypatch.setattr("torch.cuda.memory_allocated", lambda device: 400)
    monkeypatch.setattr("torch.cuda.utilization", lambda device: 25)
    yield
    for metric in (metrics.GPU_MEMORY, metrics.GPU_MEMORY_USED, metrics.GPU_UTILISATION):
        metric.clear()


def value(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, {"device": "3", **labels})


def test_memory_and_utilisation_of_a_gpu_are_read_at_each_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    assert export_gpu_metrics(GPU) == ""
    used = {kind: value("penstock_gpu_memory_used_bytes", kind=kind) for kind in ("all", "reserved", "tensors")}
    assert (value("penstock_gpu_memory_bytes"), used) == (1000, {"all": 700, "reserved": 500, "tensors": 400})
    assert value("penstock_gpu_utilisation_ratio") == 0.25
    monkeypatch.setattr("torch.cuda.utilization", lambda device: 100)
    assert value("penstock_gpu_utilisation_ratio") == 1.0


def test_without_the_driver_library_only_memory_is_exported_and_the_reason_is_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(device: torch.device) -> int:
        raise ModuleNotFoundError("no library")

    monkeypatch.setattr("torch.cuda.utilization", missing)
    assert export_gpu_metrics(GPU) == "no library"
    assert value("penstock_gpu_memory_bytes") == 1000
    assert value("penstock_gpu_utilisation_ratio") is None


def test_a_cpu_device_exports_no_gpu_metrics() -> None:
    assert export_gpu_metrics(torch.device("cpu")) == ""
    assert value("penstock_gpu_memory_bytes") is None
