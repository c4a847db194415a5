"""`make bench-gpu`: tests and figures of a machine with a GPU, in ten minutes, each step with a time limit.

The output of each step appears as it comes, and is kept in build/bench/gpu with the results and a summary, also of a
step that fails or takes too long; the next one follows in any case. `--only machine tests` selects steps, `--long` adds
those that decide between executions and precisions. Every step runs with this Python.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

ROOT = Path(__file__).parents[2]
OUTPUT = ROOT / "build" / "bench" / "gpu"
_PENSTOCK = (sys.executable, "-m", "penstock")
_FAREWELL_S = 5.0
"""Seconds from the request to end to the kill."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the list.

    Attributes:
        name: Name of the step and of its files.
        limit_s: Seconds after which it is ended.
        command: Command, from the root of the sources.
        beside: Command that runs beside it; empty: none.
    """

    name: str
    limit_s: float
    command: tuple[str, ...]
    beside: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a step: its exit code (None if it took too long) and its duration in seconds."""

    name: str
    code: int | None
    seconds: float


def _module(name: str, *options: str) -> tuple[str, ...]:
    return (sys.executable, "-m", f"benchmarks.gpu.{name}", *options)


def _scaling(device: str) -> tuple[str, ...]:
    return _module(
        "actor_scaling", "--preset", "cartpole", "--counts", "1", "8", "14", "--steps", "150000", "--device", device
    )


_VERSIONS = (
    "import torch, numpy; print(torch.__version__, torch.version.cuda, numpy.__version__, torch.cuda.device_count())"
)

SHORT = (
    Step("machine", 20.0, (sys.executable, "-c", _VERSIONS), ("nvidia-smi",)),
    Step("doctor", 40.0, (*_PENSTOCK, "doctor", "--preset", "cartpole")),
    Step("train", 90.0, (*_PENSTOCK, "train", "--preset", "cartpole")),
    Step("tests", 150.0, (sys.executable, "-m", "pytest", "-m", "gpu and not slow", "tests/gpu", "-q", "-n", "0")),
    Step("learner", 160.0, _module("learner_throughput", "--executions", "eager", "graphed", "--batches", "30")),
    Step("profile", 60.0, _module("profile_batch")),
    Step("errors", 40.0, _module("precision_errors")),
    Step("actors_cpu", 70.0, _scaling("cpu")),
    Step("actors_cuda", 70.0, _scaling("cuda")),
    Step(
        "pong",
        100.0,
        (
            *(*_PENSTOCK, "train", "--preset", "pong", "--actors", "8", "--sampling.off-policy-degree", "8"),
            *("--run.total-minutes", "0.5", "--evaluation.episodes", "1"),
        ),
        ("nvidia-smi", "dmon", "-s", "u", "-c", "90"),
    ),
)
"""What to run first. Ten minutes are enough where nothing takes too long."""

LONG = (
    Step(
        "compiled",
        300.0,
        _module("learner_throughput", "--executions", "compiled", "--batches", "30", "--output", "compiled.json"),
    ),
    Step(
        "compiled_again",
        120.0,
        _module("learner_throughput", "--executions", "compiled", "--batches", "30", "--output", "compiled_again.json"),
    ),
    Step("returns", 300.0, _module("precision_returns", "--preset", "cartpole", "--seeds", "3", "--device", "cuda")),
)
"""What decides between executions, with a cold and a warm cache, and between precisions."""


def run(step: Step, folder: Path) -> Result:
    """Runs a step to its end or its limit. Its processes have ended afterwards."""
    started, environment = time.monotonic(), os.environ | {"PYTHONUNBUFFERED": "1"}
    with (folder / f"{step.name}.txt").open("wb") as file, contextlib.ExitStack() as stack:
        commands = [each for each in (step.command, step.beside) if each]
        processes = []
        for command in commands:
            try:
                process = subprocess.Popen(
                    command,
                    cwd=ROOT,
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                _show(file, f"{command[0]}: {error.strerror}\n".encode())
                continue
            stack.callback(_end, process)
            processes.append(process)
            thread = threading.Thread(target=_copy, args=(process, file), daemon=True)
            thread.start()
            stack.callback(thread.join, _FAREWELL_S)
        code: int | None = 127
        if processes and processes[0].args == step.command:
            try:
                code = processes[0].wait(step.limit_s)
            except subprocess.TimeoutExpired:
                code = None
    return Result(step.name, code, round(time.monotonic() - started, 1))


def _copy(process: "subprocess.Popen[bytes]", file: BinaryIO) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        _show(file, line)


def _show(file: BinaryIO, line: bytes) -> None:
    file.write(line)
    file.flush()
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Ends a process with its group: politely, because services save a checkpoint, and then for good."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_FAREWELL_S)


def run_all(steps: Sequence[Step], folder: Path) -> list[Result]:
    """Runs the steps, and writes the summary after each of them."""
    folder.mkdir(parents=True, exist_ok=True)
    results: list[Result] = []
    for step in steps:
        print(f"\n== {step.name}, at most {step.limit_s:.0f} s", flush=True)
        results.append(run(step, folder))
        (folder / "summary.json").write_text(json.dumps([asdict(each) for each in results], indent=2) + "\n")
    return results


def main() -> int:
    """Runs the chosen steps; returns 1 if one of them failed or took too long."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    steps = {step.name: step for step in (*SHORT, *LONG)}
    parser.add_argument("--only", nargs="+", choices=list(steps), help="the steps to run")
    parser.add_argument("--long", action="store_true", help="also run the steps that take more than ten minutes")
    arguments = parser.parse_args()
    chosen = [steps[name] for name in arguments.only] if arguments.only else [*SHORT, *(LONG if arguments.long else ())]
    results = run_all(chosen, OUTPUT)
    print()
    for each in results:
        ended = "took too long" if each.code is None else "ok" if each.code == 0 else f"failed with code {each.code}"
        print(f"{each.name:16} {each.seconds:6.1f} s  {ended}")
    print(f"written to {OUTPUT}")
    return int(any(each.code != 0 for each in results))


if __name__ == "__main__":
    sys.exit(main())
