"""`make bench-actor-process`: memory and start time of an actor process.

A run uses both cores, and actors join it one after another through `penstock actor`. The benchmark fails if an actor
takes more than 350 MB, or more than 5 s from its start to its first environment step. The result is
build/bench/actor_process.json.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.provenance import provenance
from penstock.local.ports import free_ports

OUTPUT = Path(__file__).parents[1] / "build" / "bench" / "actor_process.json"
MOST_MB, MOST_S = 350.0, 5.0
STEPPING_S = 3.0
"""Seconds that an actor steps before its memory is measured."""

_PATIENCE_S = 60.0
_PENSTOCK = (sys.executable, "-m", "penstock")


@contextlib.contextmanager
def training_run(name: str, folder: Path) -> Iterator[str]:
    """Runs a preset until the context is left, and yields the address of its learner."""
    options = {"preset": name, "run-dir": folder, "total-steps": 10**9, "evaluation.interval-steps": 10**12}
    words = [f"--{option}={value}" for option, value in options.items()]
    run = subprocess.Popen([*_PENSTOCK, "train", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while not (folder / "metrics.jsonl").exists():
            if time.monotonic() > deadline or run.poll() is not None:
                raise SystemExit("the run did not start training")
            time.sleep(0.1)
        yield json.loads((folder / "services.json").read_text())["learner"]
    finally:
        run.terminate()
        run.wait(_PATIENCE_S)


def measure(folder: Path, learner: str) -> tuple[float, float]:
    """Starts one more actor, and returns its megabytes of memory and the seconds until its first step."""
    port, metrics_port = free_ports(2)
    options = {
        "config": folder / "config.toml",
        "actor.learner-address": learner,
        "actor.listen": f"127.0.0.1:{port}",
        "actor.metrics-port": metrics_port,
    }
    words = [f"--{option}={value}" for option, value in options.items()]
    started = time.perf_counter()
    actor = subprocess.Popen([*_PENSTOCK, "actor", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not _has_begun(metrics_port):
            if time.perf_counter() - started > _PATIENCE_S or actor.poll() is not None:
                raise SystemExit("the actor did not take a step")
            time.sleep(0.02)
        seconds = time.perf_counter() - started
        time.sleep(STEPPING_S)
        return psutil.Process(actor.pid).memory_info().rss / 1e6, seconds
    finally:
        actor.terminate()
        actor.wait(_PATIENCE_S)


def _has_begun(metrics_port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=1.0) as answer:
            lines = answer.read().decode().splitlines()
    except (OSError, urllib.error.URLError):
        return False
    return any(line.startswith("penstock_actor_environment_steps_total ") and float(line.split()[1]) for line in lines)


def main() -> int:
    """Measures and prints every preset, and writes the result; returns 1 if a bound was exceeded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--presets", nargs="+", default=["cartpole_no_replay", "pendulum"])
    parser.add_argument("--actors", type=int, default=5)
    arguments = parser.parse_args()
    console, table, results, kept = Console(), Table("preset", "MB", "seconds to first step"), {}, True
    for name in arguments.presets:
        with tempfile.TemporaryDirectory(prefix="penstock-actor-") as parent, console.status(name):
            folder = Path(parent) / "run"
            with training_run(name, folder) as learner:
                taken = [measure(folder, learner) for _ in range(arguments.actors)]
        megabytes, seconds = zip(*taken, strict=True)
        kept &= max(megabytes) <= MOST_MB and max(seconds) <= MOST_S
        results[name] = {"megabytes": megabytes, "seconds": seconds}
        table.add_row(
            name,
            f"{statistics.median(megabytes):.0f}, at most {max(megabytes):.0f}",
            f"{statistics.median(seconds):.1f}, at most {max(seconds):.1f}",
        )
    console.print(table)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps({"provenance": provenance(), **results}, indent=2) + "\n")
    console.print(f"written to {OUTPUT}")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
