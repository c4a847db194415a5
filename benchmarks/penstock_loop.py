"""Penstock's side of the loop benchmark: `penstock train` with shipped presets, observed from outside."""

import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import psutil

from penstock.runs.summary import Summary

SERVICES = ("actor", "learner", "replay", "evaluator")
LAUNCHER = "launcher"
_INTERVAL_S = 0.1
_PACE_INTERVAL_S = 1.0
"""Seconds between readings that include the services' metrics, which cost the services milliseconds of CPU time."""
_LINES_OF_FAILURE = 20
_EXCHANGE = re.compile(
    r'^penstock_exchange_cpu_seconds_total\{activity="(?P<activity>\w+)"\} (?P<seconds>\S+)$', re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Pace:
    """The pace of a run.

    Attributes:
        env_steps_per_s: Environment steps per second, over the counted part of the run.
        cpu_s_per_million: CPU seconds per million environment steps, by process; the launcher's include its template.
        path_cpu_s_per_million: The part of them that is spent between actors and learner, by activity: `replay`, all of
            the replay service; `threads`, all threads of actor and learner but the main ones, which belong to gRPC and
            the metrics' server; and those activities of the main threads that the services count themselves.
        path_share: Share of the path in all CPU seconds.
    """

    env_steps_per_s: float
    cpu_s_per_million: dict[str, float]
    path_cpu_s_per_million: dict[str, float]
    path_share: float


@dataclass(frozen=True, slots=True)
class _Reading:
    seconds: float
    env_steps: int
    cpu_s: dict[str, float]
    path_s: dict[str, float]


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


def _readings(
    run: "subprocess.Popen[bytes]", journal: Path, read: Callable[[psutil.Process, int], _Reading], interval_s: float
) -> Iterator[_Reading]:
    """Reads the run, at these intervals, whenever it has made progress, until it ends."""
    env_steps = 0
    while run.poll() is None:
        time.sleep(interval_s)
        with contextlib.suppress(OSError, IndexError, ValueError, psutil.Error):
            reached = json.loads(journal.read_text().splitlines()[-1])["env_steps"]
            if reached > env_steps:
                yield read(psutil.Process(run.pid), reached)
                env_steps = reached


def _cpu_times(launcher: psutil.Process, env_steps: int) -> _Reading:
    """Reads the CPU time of the run's processes. Raises `psutil.Error` if one has ended."""
    cpu_s = dict.fromkeys((*SERVICES, LAUNCHER), 0.0)
    for process in [launcher, *launcher.children(recursive=True)]:
        times = process.cpu_times()
        cpu_s[_service_of(process)] += times.user + times.system
    return _Reading(time.perf_counter(), env_steps, cpu_s, {})


def _path_times(launcher: psutil.Process, env_steps: int) -> _Reading:
    """Reads also what is spent between actors and learner.

    Raises `psutil.Error`, `OSError` or `ValueError` if a process has ended or has no metrics.
    """
    path_s = {"threads": 0.0}
    for process in launcher.children(recursive=True):
        if _service_of(process) in ("actor", "learner"):
            # First, so that the metrics' server does not count its answer.
            beside = [thread for thread in process.threads() if thread.id != process.pid]
            path_s["threads"] += sum(thread.user_time + thread.system_time for thread in beside)
            for activity, seconds in _exchange_s(process).items():
                path_s[activity] = path_s.get(activity, 0.0) + seconds
    reading = _cpu_times(launcher, env_steps)
    return replace(reading, path_s={**path_s, "replay": reading.cpu_s["replay"]})


def _service_of(process: psutil.Process) -> str:
    return next((word for word in process.cmdline() if word in SERVICES), LAUNCHER)


def _exchange_s(process: psutil.Process) -> dict[str, float]:
    """Reads a service's own count of the exchange from its metrics, the only port that it listens on.

    Raises `psutil.Error` if the process has ended, `OSError` if they can't be read, and `ValueError` if there are none.
    """
    listening = [each.laddr.port for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
    if not listening:
        raise ValueError("the process listens on no port")
    port = listening[0]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=1.0) as answer:
        return exchange_of(answer.read().decode())


def exchange_of(text: str) -> dict[str, float]:
    """Returns the CPU seconds of the exchange by activity from a service's metrics. Raises `ValueError` without any."""
    found = {match["activity"]: float(match["seconds"]) for match in _EXCHANGE.finditer(text)}
    if not found:
        raise ValueError("the metrics have no penstock_exchange_cpu_seconds_total")
    return found


def _pace(readings: Sequence[_Reading]) -> Pace:
    # The first quarter is the warm-up. When the last step is trained, some processes have already ended.
    first, last = readings[len(readings) // 4], readings[-2]
    steps = last.env_steps - first.env_steps
    cpu_s = {name: last.cpu_s[name] - first.cpu_s[name] for name in last.cpu_s}
    path_s = {name: seconds - first.path_s.get(name, 0.0) for name, seconds in last.path_s.items()}
    return Pace(
        steps / (last.seconds - first.seconds),
        {name: seconds / steps * 1e6 for name, seconds in cpu_s.items()},
        {name: seconds / steps * 1e6 for name, seconds in path_s.items()},
        sum(path_s.values()) / sum(cpu_s.values()),
    )


def throughput(name: str, total_steps: int, seed: int, changes: Mapping[str, object] = MappingProxyType({})) -> Pace:
    """Measures the pace of a preset, with changed settings, over this number of steps and without evaluations."""
    never = {"evaluation.interval-steps": 10**12}
    options = {"preset": name, "seed": seed, "total-steps": total_steps, **never, **changes}
    readings: list[_Reading] = []

    def watch(run: "subprocess.Popen[bytes]", folder: Path) -> None:
        readings.extend(_readings(run, folder / "metrics.jsonl", _path_times, _PACE_INTERVAL_S))

    train(options, watch)
    return _pace(readings)


def cpu_readings(run: "subprocess.Popen[bytes]", journal: Path) -> list[tuple[int, float]]:
    """Watches a run to its end; returns environment steps and the CPU seconds until then of all but the evaluator.

    CPU seconds are counted from the first reading.
    """
    readings = [
        (
            each.env_steps,
            sum(cpu_s for service, cpu_s in each.cpu_s.items() if service in ("actor", "learner", "replay")),
        )
        for each in _readings(run, journal, _cpu_times, _INTERVAL_S)
    ]
    return [(env_steps, cpu_s - readings[0][1]) for env_steps, cpu_s in readings]
