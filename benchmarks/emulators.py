"""`make bench-emulators`: steps per second and memory of emulators in worker processes, beside two other libraries.

Airstriker of stable-retro, with a skip of four frames and pictures of 84 x 84, is stepped with fixed actions by
Penstock's worker processes, by `SubprocVecEnv` of Stable-Baselines3 and by `Multiprocessing` of PufferLib. Each
measurement is a process of its own, and the systems take turns. The result is build/bench/emulators.json.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import numpy as np

from benchmarks.peers.environment import peer_python
from benchmarks.peers.pufferlib_environment import pufferlib_python
from benchmarks.peers.retro_game import GAME, measure
from penstock.acting.environments.frames import with_frames
from penstock.machine.files import write_json
from tests.support.environments.made import make_environments
from tests.support.results.provenance import of_this_run

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / "build" / "bench" / "emulators.json"
COUNTS = (1, 4, 8, 16)
CORES = 2
PROGRAMS = {
    "Penstock": "benchmarks.emulators",
    "Stable-Baselines3": "benchmarks.peers.sb3_emulators",
    "PufferLib": "benchmarks.peers.pufferlib_emulators",
}


def measure_penstock(count: int, seconds: float) -> dict[str, float]:
    """Returns the measurement of emulators in Penstock's worker processes, with four stacked frames."""
    kwargs = {"use_restricted_actions": "MULTI_DISCRETE", "most_noops": 0}
    made = make_environments(f"retro/{GAME}", count, kwargs=kwargs, vectorization="process", workers=count)
    action = (np.zeros((count, 3), np.int64),)
    with closing(with_frames(made, 4)) as environments:
        environments.reset(range(count))
        measure(lambda: environments.step(action), count, 0.5)
        return measure(lambda: environments.step(action), count, seconds)


def measure_all(rounds: int, seconds: float, pythons: Mapping[str, Path]) -> list[dict[str, object]]:
    """Returns the medians of each system and number of emulators, and prints them."""
    found = defaultdict[tuple[str, int], list[dict[str, float]]](list)
    for _ in range(rounds):
        for count in COUNTS:
            for system, python in pythons.items():
                command = [str(python), "-m", PROGRAMS[system], str(count), str(seconds)]
                done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True)
                found[system, count].append(json.loads(done.stdout.splitlines()[-1]))
    results = list[dict[str, object]]()
    for (system, count), readings in found.items():
        medians = {name: statistics.median(each[name] for each in readings) for name in readings[0]}
        results.append({"system": system, "emulators": count, **medians})
        mib = (medians["own_bytes"] + medians["children_bytes"]) / 2**20
        print(f"{system}, {count} emulators: {medians['steps_per_s']:,.0f} steps/s, {mib:,.0f} MiB", flush=True)
    return results


def main() -> int:
    """Measures all systems; with a number of emulators and seconds, as a child process, Penstock alone."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("emulators", type=int, nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("measured_s", type=float, nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    if arguments.emulators is not None:
        print(json.dumps(measure_penstock(arguments.emulators, arguments.measured_s)))
        return 0
    # Child processes inherit it.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    pythons = {
        "Penstock": Path(sys.executable),
        "Stable-Baselines3": peer_python("sb3"),
        "PufferLib": pufferlib_python(),
    }
    readings = measure_all(arguments.rounds, arguments.seconds, pythons)
    # PufferLib links its pictures into the working directory.
    (ROOT / "resources").unlink(missing_ok=True)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    settings = {"rounds": arguments.rounds, "seconds": arguments.seconds, "cores": CORES}
    write_json(OUTPUT, {"provenance": of_this_run(), **settings, "readings": readings})
    print(f"written to {OUTPUT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
