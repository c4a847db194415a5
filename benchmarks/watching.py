"""`make bench-watching`: the pace of a run that is watched, beside one that is not.

Both are `penstock train --preset pendulum`. The watched one films every hundredth evaluation, sends its records to W&B
offline, and its page, from `penstock report --serve`, is read every few seconds. Both write event files. They take
turns; each pace is over the last nine tenths of a run. One run varies by 5%, so the ratio is a mean of logarithms
over many rounds, with Student's t interval. The CPU time of the processes that watch is over whole runs, with the
imports at their starts. The result is build/bench/watching.json.
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil

from penstock.comparing.statistics import t_interval
from penstock.machine.files import write_json
from tests.support.results.provenance import of_this_run

OUTPUT = Path(__file__).parents[1] / "build" / "bench" / "watching.json"
PENSTOCK = (sys.executable, "-m", "penstock")
FORMS = "plain", "watched"
REPORT_EVERY_S, SAMPLED_EVERY_S = 5.0, 1.0

WATCHERS = {
    "films": r" penstock evaluate .*--episodes=0",
    "encoders of films": r"ffmpeg",
    "tracker": r" penstock track |wandb-core",
    "page": r" penstock report ",
}
"""The kinds of processes that watch, and what their command lines match."""
TRAINING = "training"
"""All other processes of a run."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run.

    Attributes:
        form, seed: What was run.
        steps_per_s: Environment steps per second after the first tenth of the run.
        seconds: Seconds of the command.
        cpu_s: CPU seconds of each kind of process.
        processes: Number of processes of each kind.
        pages: How often the page was read.
    """

    form: str
    seed: int
    steps_per_s: float
    seconds: float
    cpu_s: dict[str, float]
    processes: dict[str, int]
    pages: int


class CpuTimes(threading.Thread):
    """Samples the CPU times of this process's descendants. What a process uses after its last sample is lost."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._found, self._stopped = dict[tuple[int, float], tuple[str, float]](), threading.Event()

    def run(self) -> None:
        """Samples until `stop`."""
        while not self._stopped.wait(SAMPLED_EVERY_S):
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error), process.oneshot():
                    times, kind = process.cpu_times(), kind_of(process.cmdline())
                    self._found[process.pid, process.create_time()] = kind, times.user + times.system

    def stop(self) -> dict[str, list[float]]:
        """Returns the CPU seconds of each process, by its kind."""
        self._stopped.set()
        self.join()
        return {name: [cpu_s for kind, cpu_s in self._found.values() if kind == name] for name in (TRAINING, *WATCHERS)}


def kind_of(command: Sequence[str]) -> str:
    """Returns the kind of a process with this command line."""
    words = " ".join(command)
    return next((kind for kind, pattern in WATCHERS.items() if re.search(pattern, words)), TRAINING)


def trained(form: str, seed: int, steps: int, film_every: int) -> Run:
    """Trains a run of this form."""
    cpu_times, began = CpuTimes(), time.monotonic()
    cpu_times.start()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        run = Path(folder, "run")
        command = [*PENSTOCK, "train", "--preset=pendulum", f"--dir={run}"]
        command += [f"--total-steps={steps}", f"--seed={seed}"]
        if form == "watched":
            command += [f"--evaluation.film-every={film_every}", "--tracker=wandb"]
        environment = {**os.environ, "WANDB_MODE": "offline"}
        training = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        stack.enter_context(training)
        journal = run / "metrics.jsonl"
        while not (journal.exists() and b"\n" in journal.read_bytes()) and training.poll() is None:
            time.sleep(0.1)
        pages = _read_pages(run, training) if form == "watched" else 0
        if code := training.wait():
            raise SystemExit(f"the run ended with code {code}")
        seconds = time.monotonic() - began
        if form == "watched" and not (run / "videos").is_dir():
            raise SystemExit("the run was not filmed")
        lines = map(json.loads, journal.read_text().splitlines())
        records = [each for each in lines if each["kind"] == "training"]
    found = cpu_times.stop()
    first, last = next(each for each in records if each["progress_share"] >= 0.1), records[-1]
    return Run(
        form,
        seed,
        (last["env_steps"] - first["env_steps"]) / (last["training_s"] - first["training_s"]),
        seconds,
        {kind: sum(each) for kind, each in found.items()},
        {kind: len(each) for kind, each in found.items()},
        pages,
    )


def _read_pages(run: Path, training: "subprocess.Popen[bytes]") -> int:
    """Reads the page of a run until the run ends; returns how often."""
    pages = 0
    with subprocess.Popen(
        ["nice", *PENSTOCK, "report", "--serve", str(run)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        address = next(found for line in server.stdout if (found := re.search(r"http://\S+", line)))[0]
        while training.poll() is None:
            with urllib.request.urlopen(address, timeout=30.0) as page:
                pages += bool(page.read())
            with contextlib.suppress(subprocess.TimeoutExpired):
                training.wait(REPORT_EVERY_S)
        server.terminate()  # A command in the background of a shell ignores SIGINT.
    return pages


def main() -> int:
    """Measures and prints both forms, and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--steps", type=int, default=4_000_000)
    parser.add_argument("--film-every", type=int, default=100, help="evaluations per film")
    arguments = parser.parse_args()
    origin, runs = of_this_run(), list[Run]()
    for number in range(arguments.rounds):
        # The second of a pair may find a warmer machine.
        for form in FORMS[:: 1 if number % 2 else -1]:
            run = trained(form, number, arguments.steps, arguments.film_every)
            runs.append(run)
            costs = ", ".join(f"{kind} {cpu_s:.1f} CPU s" for kind, cpu_s in run.cpu_s.items() if cpu_s)
            print(
                f"round {number + 1}, {form}: {run.steps_per_s:,.0f} steps/s, {run.seconds:.0f} s, {costs}", flush=True
            )
    watched, plain = ([each.steps_per_s for each in runs if each.form == form] for form in ("watched", "plain"))
    ratio = t_interval(np.log(np.divide(watched, plain))).exponential()
    print(f"watched over plain: {ratio.mean:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] ({arguments.rounds} rounds)")
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    write_json(
        OUTPUT,
        {
            "provenance": origin,
            **vars(arguments),
            "ratio": asdict(ratio),
            "runs": [asdict(each) for each in runs],
        },
    )
    print(f"written to {OUTPUT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
