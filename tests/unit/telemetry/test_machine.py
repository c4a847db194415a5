from pathlib import Path

import pytest

from penstock.telemetry.machine import Machine

STAT = """cpu  1000 200 300 4000 50 6 7 80 900 10
cpu0 1000 200 300 4000 50 6 7 80 900 10
intr 12345 0 0
"""
MEMINFO = """MemTotal:        2048 kB
MemFree:          256 kB
MemAvailable:    1024 kB
HugePages_Total:     0
"""


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "stat").write_text(STAT)
    (tmp_path / "meminfo").write_text(MEMINFO)
    monkeypatch.setattr("os.sysconf", lambda name: {"SC_CLK_TCK": 100}[name])
    return tmp_path


def test_processor_time_is_counted_by_mode_and_guest_time_only_once(proc: Path) -> None:
    processors = next(metric for metric in Machine(proc).collect() if metric.name == "penstock_machine_cpu_seconds")
    seconds = {sample.labels["mode"]: sample.value for sample in processors.samples}
    assert seconds == pytest.approx({"user": 12.0, "system": 3.13, "idle": 40.0, "iowait": 0.5, "steal": 0.8})


def test_memory_is_in_bytes(proc: Path) -> None:
    values = {metric.name: metric.samples[0].value for metric in Machine(proc).collect()}
    assert values["penstock_machine_memory_bytes"] == 2 * 2**20
    assert values["penstock_machine_memory_available_bytes"] == 2**20


@pytest.mark.parametrize("missing", ["MemAvailable", "MemTotal"])
def test_memory_fields_missing_in_a_sandbox_are_omitted(proc: Path, missing: str) -> None:
    lines = [line for line in MEMINFO.splitlines() if not line.startswith(missing)]
    (proc / "meminfo").write_text("\n".join(["", *lines, ""]))
    names = {metric.name for metric in Machine(proc).collect()}
    assert len(names) == 2 and "penstock_machine_cpu_seconds" in names


def test_a_sandbox_without_meminfo_exports_processor_time(proc: Path) -> None:
    (proc / "meminfo").unlink()
    assert [metric.name for metric in Machine(proc).collect()] == ["penstock_machine_cpu_seconds"]


def test_a_machine_without_proc_exports_no_metrics(tmp_path: Path) -> None:
    assert list(Machine(tmp_path).collect()) == []
