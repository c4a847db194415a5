"""Metrics of the machine that a service runs on: processor time and memory.

They are read from Linux's /proc at each scrape and cost nothing in between. A container reports its host's values.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

_MODES = ("user", "user", "system", "idle", "iowait", "system", "system", "steal")
"""Mode of each column of /proc/stat: user, nice, system, idle, iowait, irq, softirq and steal (proc(5))."""

_MEMORY = (
    ("MemTotal", "penstock_machine_memory_bytes", "Memory of the machine, in bytes."),
    ("MemAvailable", "penstock_machine_memory_available_bytes", "Memory available to new processes, in bytes."),
)
"""Fields of /proc/meminfo, with the names and help texts of their metrics."""


class Machine(Collector):
    """Collector of processor and memory metrics, as far as /proc provides them."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        """Reads the files below `proc` at each collection."""
        self._proc = proc

    def collect(self) -> Iterator[Metric]:
        """Yields the current metrics."""
        if not (self._proc / "stat").exists():
            return
        processors = CounterMetricFamily(
            "penstock_machine_cpu_seconds", "Time of all processors, in seconds, by mode.", labels=("mode",)
        )
        for mode, seconds in self._processor_seconds().items():
            processors.add_metric((mode,), seconds)
        yield processors
        memory = self._memory_bytes()
        for field, name, meaning in _MEMORY:
            # Sandboxes provide only some of Linux's fields.
            if field in memory:
                yield GaugeMetricFamily(name, meaning, memory[field])

    def _processor_seconds(self) -> dict[str, float]:
        with (self._proc / "stat").open() as file:
            ticks = file.readline().split()[1:]
        seconds = dict.fromkeys(_MODES, 0.0)
        # Columns after the eighth are of guests, which the user column already includes.
        for mode, count in zip(_MODES, ticks, strict=False):
            seconds[mode] += int(count) / os.sysconf("SC_CLK_TCK")
        return seconds

    def _memory_bytes(self) -> dict[str, int]:
        path = self._proc / "meminfo"
        lines = (line.split() for line in path.read_text().splitlines()) if path.exists() else ()
        return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words[-1:] == ["kB"]}
