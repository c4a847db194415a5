"""`make stress-soak`: memory of the replay service over half an hour of full load.

An actor and a learner use the clients of user processes, for the first half over gRPC and for the second half through
memory shared with the service. `RssAnon` is the memory of the process without the store, which is shared memory or a
mapped file. The result is build/bench/soak.json and soak.png. The exit code is 1 if a bound is exceeded.
"""

import argparse
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from penstock.process import allocator
from stress.healthy_pair import HealthyPair, plan_of
from stress.replay_process import ReplayProcess, replay_process

matplotlib.use("agg")
import matplotlib.pyplot as plt

OUTPUT = Path(__file__).parent.parent / "build" / "bench"
CAPACITY_BYTES = 256 * 2**20
SPAN_S = 10.0
WARM_UP = 0.2
"""Share of each half before memory is measured, in which pools fill."""
MOST_BYTES = 200 * 2**20
MOST_GROWTH_BYTES = 4 * 2**20
MB = 2**20


@dataclass(frozen=True, slots=True)
class Half:
    """The measurements under one kind of load.

    Attributes:
        path: Path of the segments.
        at_s: <float64>[n] times of the measurements of memory, in seconds.
        anonymous_bytes: <float64>[n] anonymous memory at these times.
        batches_per_s: Mean batches per second.
        inserted_per_s: Mean inserted segments per second.
    """

    path: str
    at_s: NDArray[np.float64]
    anonymous_bytes: NDArray[np.float64]
    batches_per_s: float
    inserted_per_s: float

    @property
    def growth_bytes(self) -> float:
        """Growth after warming up, from a line fitted to the measurements."""
        chosen = self.at_s >= WARM_UP * self.at_s[-1]
        at_s, sizes = self.at_s[chosen], self.anonymous_bytes[chosen]
        return float(np.polyfit(at_s, sizes, 1)[0] * (at_s[-1] - at_s[0])) if at_s.size > 1 else 0.0


def endure(service: ReplayProcess, path: str, seconds: float, console: Console) -> Half:
    """Loads the service, and measures its memory."""
    pair = HealthyPair(service.address, plan_of(), window_segments=64, verify=False)
    at_s, sizes, batches, inserted, began = [], [], 0, 0, time.monotonic()
    while (spent := time.monotonic() - began) < seconds:
        served = pair.run(min(SPAN_S, seconds - spent))
        at_s.append(time.monotonic() - began)
        sizes.append(service.memory_bytes("RssAnon"))
        batches, inserted = batches + served.batches, inserted + served.inserted
        console.print(
            f"{path} {at_s[-1] / 60:5.1f} of {seconds / 60:.1f} min: {sizes[-1] / MB:6.1f} MB anonymous,"
            f" {served.batches_per_s:6.0f} batches/s"
        )
    spent = time.monotonic() - began
    pair.close()
    return Half(path, np.array(at_s), np.array(sizes, np.float64), batches / spent, inserted / spent)


def draw(halves: list[Half]) -> Path:
    """Plots anonymous memory over time."""
    figure, axes = plt.subplots(figsize=(8, 3.5), layout="constrained")
    start = 0.0
    for half in halves:
        axes.plot((start + half.at_s) / 60, half.anonymous_bytes / MB, label=half.path)
        start += half.at_s[-1]
    axes.axhline(MOST_BYTES / MB, color="grey", linestyle="--", linewidth=1)
    axes.set(xlabel="minutes of full load", ylabel="anonymous memory, MB", ylim=(0, 1.1 * MOST_BYTES / MB))
    axes.legend()
    figure.savefig(OUTPUT / "soak.png", dpi=120)
    return OUTPUT / "soak.png"


def main() -> int:
    """Measures, prints and writes everything; returns 1 if a bound was exceeded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    arguments = parser.parse_args()
    allocator.keep_freed_memory()
    console, halves = Console(), []
    with tempfile.TemporaryDirectory() as folder:
        for path, place in (("gRPC", None), ("shared memory", Path(folder))):
            with replay_process(CAPACITY_BYTES, folder=place) as service:
                halves.append(endure(service, path, 30.0 * arguments.minutes, console))
                torch, alive = service.has_loaded("torch"), service.alive
    largest = max(float(half.anonymous_bytes.max()) for half in halves)
    checks = {
        "the service is alive and has not loaded torch": alive and not torch,
        f"memory without the store is at most {MOST_BYTES / MB:.0f} MB, measured {largest / MB:.0f}": largest
        <= MOST_BYTES,
    }
    for half in halves:
        name = f"{half.path}: growth is at most {MOST_GROWTH_BYTES / MB:.0f} MB, measured {half.growth_bytes / MB:+.2f}"
        checks[name] = half.growth_bytes <= MOST_GROWTH_BYTES
    OUTPUT.mkdir(parents=True, exist_ok=True)
    for what, holds in checks.items():
        console.print(f"{'ok  ' if holds else 'FAIL'} {what}")
    result = {
        "minutes": arguments.minutes,
        "checks": checks,
        "halves": [
            {
                "path": half.path,
                "batches_per_s": half.batches_per_s,
                "inserted_per_s": half.inserted_per_s,
                "growth_bytes": half.growth_bytes,
                "anonymous_bytes": half.anonymous_bytes.tolist(),
            }
            for half in halves
        ],
    }
    (OUTPUT / "soak.json").write_text(json.dumps(result, indent=2) + "\n")
    console.print(f"written to {OUTPUT / 'soak.json'} and {draw(halves)}")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
