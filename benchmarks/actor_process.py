"""`make bench-actor-process`: memory and start time of actor processes.

A run uses both cores, and actors join it one after another through `penstock actor`, first with the default and then
with torch (`actor.inference`). The benchmark fails if one of the first takes more than 100 MB, or more than 2 s from
its start to its first environment step. Runs with several actors of 8 environments follow, of which it notes the memory
of all processes (PSS, in which shared pages count once) and the time until all actors have joined. The result is
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
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from tests.support.results.provenance import of_this_run
from tests.support.services.ports import free_ports

OUTPUT = Path(__file__).parents[1] / "build" / "bench" / "actor_process.json"
MOST_MB, MOST_S = 100.0, 2.0
STEPPING_S = 3.0
"""Seconds that an actor steps before its memory is measured."""

_PATIENCE_S = 60.0
_PENSTOCK = (sys.executable, "-m", "penstock")


@dataclass(frozen=True, slots=True)
class WholeRun:
    """A run with several actors: megabytes of all its processes, and seconds until all actors had joined."""

    actors: int
    megabytes: float
    seconds: float


@contextlib.contextmanager
def training_run(name: str, folder: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a preset until the context is left. Yields the launcher's process when training has begun."""
    words = [f"--preset={name}", f"--run-dir={folder}", "--total-steps=1000000000", *options]
    words.append("--evaluation.interval-steps=1000000000000")
    run = subprocess.Popen([*_PENSTOCK, "train", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_until(lambda: (folder / "metrics.jsonl").exists(), run)
        yield run
    finally:
        run.terminate()
        run.wait(_PATIENCE_S)


def measure(folder: Path, learner: str, inference: str) -> tuple[float, float]:
    """Starts one more actor, and returns its megabytes of memory and the seconds until its first step."""
    port, metrics_port = free_ports(2)
    options = {
        "config": folder / "config.toml",
        "actor.learner-address": learner,
        "actor.listen": f"127.0.0.1:{port}",
        "actor.metrics-port": metrics_port,
        "actor.inference": inference,
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


def measure_run(actors: int, folder: Path) -> WholeRun:
    """Measures a run of the preset cartpole with this many actors of 8 environments."""
    started = time.perf_counter()
    with training_run("cartpole", folder, f"--actors={actors}", "--envs-per-actor=8") as run:
        logs = [folder / "logs" / f"actor-{actor}.log" for actor in range(actors)]
        _wait_until(lambda: all(log.exists() and '"joined"' in log.read_text() for log in logs), run)
        seconds = time.perf_counter() - started
        time.sleep(STEPPING_S)
        launcher = psutil.Process(run.pid)
        processes = [launcher, *launcher.children(recursive=True)]
        return WholeRun(actors, sum(process.memory_full_info().pss for process in processes) / 1e6, seconds)


def _wait_until(holds: Callable[[], bool], run: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not holds():
        if time.monotonic() > deadline or run.poll() is not None:
            raise SystemExit("the run did not start training")
        time.sleep(0.02)


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
    parser.add_argument("--whole-runs", nargs="*", type=int, default=[1, 8, 16])
    arguments = parser.parse_args()
    console, table, results, kept = Console(), Table("preset", "MB", "seconds to first step"), dict[str, object](), True
    for name in arguments.presets:
        with tempfile.TemporaryDirectory(prefix="penstock-actor-") as parent, console.status(name):
            folder = Path(parent) / "run"
            with training_run(name, folder):
                learner = json.loads((folder / "services.json").read_text())["learner"]
                taken = {
                    inference: [measure(folder, learner, inference) for _ in range(arguments.actors)]
                    for inference in ("auto", "torch")
                }
        for inference, readings in taken.items():
            megabytes, seconds = zip(*readings, strict=True)
            kept &= inference == "torch" or (max(megabytes) <= MOST_MB and max(seconds) <= MOST_S)
            results[f"{name}, {inference}"] = {"megabytes": megabytes, "seconds": seconds}
            table.add_row(
                f"{name}, actor.inference {inference}",
                f"{statistics.median(megabytes):.0f}, at most {max(megabytes):.0f}",
                f"{statistics.median(seconds):.1f}, at most {max(seconds):.1f}",
            )
    console.print(table)
    for actors in arguments.whole_runs:
        with tempfile.TemporaryDirectory(prefix="penstock-actors-") as parent, console.status(f"{actors} actors"):
            whole = measure_run(actors, Path(parent) / "run")
        results[f"{actors} actors"] = asdict(whole)
        console.print(f"{actors} actors: {whole.megabytes:.0f} MB in all, joined after {whole.seconds:.1f} s")
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps({"provenance": of_this_run(), **results}, indent=2) + "\n")
    console.print(f"written to {OUTPUT}")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
