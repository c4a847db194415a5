"""Penstock's side of the loop benchmark: `penstock train` with shipped presets, observed from outside."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import psutil

from penstock.summary import Summary

SERVICES = ("actor", "learner", "replay", "evaluator")
_INTERVAL_S = 0.1
_LINES_OF_FAILURE = 20


@dataclass(frozen=True, slots=True)
class Pace:
    """The pace of a run.

    Attributes:
        env_steps_per_s: Environment steps per second, over the counted part of the run.
        cpu_s_per_million: CPU seconds per million environment steps, by service.
        path_share: Share of those CPU seconds spent between actors and learner: in the replay service, and in all
            threads of the other services except the main one. Those threads belong to gRPC and metrics.
    """

    env_steps_per_s: float
    cpu_s_per_million: dict[str, float]
    path_share: float


@dataclass(frozen=True, slots=True)
class _Reading:
    seconds: float
    env_steps: int
    cpu_s: dict[str, float]
    path_s: float


Watch = Callable[["subprocess.Popen[bytes]", Path], None]
"""Called with a run that has started, and its folder, in which files may be missing if the run fails."""


def train(options: Mapping[str, object], watch: Watch = lambda run, folder: None) -> Summary:
    """Runs `penstock train` with these options to its end.

    Raises:
        subprocess.CalledProcessError: The run failed; its last output is on stderr.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-loop-") as parent:
        folder = Path(parent) / "run"
        words = [f"--{name}={value}" for name, value in {**options, "run-dir": folder}.items()]
        command = [sys.executable, "-m", "penstock", "train", *words]
        # A file takes any amount of output while nothing reads it.
        with tempfile.TemporaryFile("w+", dir=parent) as output:
            with subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as run:
                watch(run, folder)
            output.seek(0)
            last_lines = output.readlines()[-_LINES_OF_FAILURE:]
        if run.returncode:
            sys.stderr.writelines(last_lines)
            raise subprocess.CalledProcessError(run.returncode, command)
        return Summary.read(folder / "summary.json")


def _readings(run: "subprocess.Popen[bytes]", journal: Path) -> Iterator[_Reading]:
    """Reads the run whenever it has made progress, until it ends."""
    env_steps = 0
    while run.poll() is None:
        time.sleep(_INTERVAL_S)
        reading = _read(psutil.Process(run.pid), journal)
        if reading is not None and reading.env_steps > env_steps:
            env_steps = reading.env_steps
            yield reading


def _read(launcher: psutil.Process, journal: Path) -> _Reading | None:
    """Reads the progress of the run and the CPU time of its processes; None unless it trains."""
    try:
        env_steps = json.loads(journal.read_text().splitlines()[-1])["env_steps"]
        cpu_s, path_s = dict.fromkeys(SERVICES, 0.0), 0.0
        for child in launcher.children(recursive=True):
            service = next((word for word in child.cmdline() if word in SERVICES), None)
            if service is not None:
                times = child.cpu_times()
                cpu_s[service] += times.user + times.system
                beside = [thread for thread in child.threads() if service == "replay" or thread.id != child.pid]
                path_s += sum(thread.user_time + thread.system_time for thread in beside)
    except (OSError, IndexError, ValueError, psutil.Error):
        return None
    return _Reading(time.perf_counter(), env_steps, cpu_s, path_s)


def _pace(readings: Sequence[_Reading]) -> Pace:
    # The first quarter is the warm-up. When the last step is trained, some processes have already ended.
    first, last = readings[len(readings) // 4], readings[-2]
    steps = last.env_steps - first.env_steps
    return Pace(
        steps / (last.seconds - first.seconds),
        {service: (last.cpu_s[service] - first.cpu_s[service]) / steps * 1e6 for service in SERVICES},
        (last.path_s - first.path_s) / (sum(last.cpu_s.values()) - sum(first.cpu_s.values())),
    )


def throughput(name: str, total_steps: int, seed: int, changes: Mapping[str, object] = MappingProxyType({})) -> Pace:
    """Measures the pace of a preset, with changed settings, over this number of steps and without evaluations."""
    never = {"evaluation.interval-steps": 10**12}
    options = {"preset": name, "seed": seed, "total-steps": total_steps, **never, **changes}
    readings: list[_Reading] = []
    train(options, lambda run, folder: readings.extend(_readings(run, folder / "metrics.jsonl")))
    return _pace(readings)


def cpu_readings(run: "subprocess.Popen[bytes]", journal: Path) -> list[tuple[int, float]]:
    """Watches a run to its end; returns environment steps and the CPU seconds until then of all but the evaluator.

    CPU seconds are counted from the first reading.
    """
    readings = [
        (each.env_steps, sum(cpu_s for service, cpu_s in each.cpu_s.items() if service != "evaluator"))
        for each in _readings(run, journal)
    ]
    return [(env_steps, cpu_s - readings[0][1]) for env_steps, cpu_s in readings]


def reach(name: str, interval_steps: int, seed: int) -> Summary:
    """Runs a preset to its end; training waits for its evaluations."""
    return train(
        {
            "preset": name,
            "seed": seed,
            "evaluation.mode": "synchronous",
            "evaluation.interval-steps": interval_steps,
        }
    )
