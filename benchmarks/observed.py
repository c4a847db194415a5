"""A run of any system, observed from outside: its journal, and the CPU time of all its processes.

The clock starts with the command, so that imports, processes and evaluations count. Called by `like_for_like` and
`as_people_run`.
"""

import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

ROOT = Path(__file__).parents[1]
_POLL_S = 0.01
_CPU_INTERVAL_S = 0.1
"""Seconds between readings of CPU time, which take a millisecond or more; evaluations are always read."""
_LINES_OF_FAILURE = 30
_CLEANERS = ("resource_tracker", "torch_shm_manager")
"""Programs of Python and torch that remove the semaphores and the shared memory of processes that have ended."""
_END_S = 10.0
"""Seconds until processes that have been killed are gone."""


class RunFailed(Exception):
    """The program of a run failed; its last lines are the message."""


@dataclass(frozen=True, slots=True)
class Point:
    """A line of a run's journal, as soon as it was seen.

    Attributes:
        seconds: Seconds since the command.
        cpu_s: CPU seconds of the command and of all processes below it.
        env_steps: Environment steps trained.
        return_mean: Mean return of an evaluation; None in a line about training.
    """

    seconds: float
    cpu_s: float
    env_steps: int
    return_mean: float | None


@dataclass(frozen=True, slots=True)
class Observed:
    """Points of a run, for how many seconds it was observed, and why that ended."""

    points: tuple[Point, ...]
    seconds: float
    end: Literal["enough", "exited", "limit"]


def observe(
    command: Sequence[str | Path],
    journal: Path,
    *,
    enough: Callable[[Sequence[Point]], bool],
    limit_s: float,
    variables: Mapping[str, str] | None = None,
    folder: Path = ROOT,
) -> Observed:
    """Runs a command until it ends, there are `enough` points, or `limit_s` seconds are over; then stops its processes.

    Args:
        command: Program that writes the journal.
        journal: File of JSON lines with `kind`, `env_steps`, and `return_mean` where `kind` is `evaluation`.
        enough: Called with all points after each new one.
        limit_s: Seconds after the command.
        variables: Changes of the environment variables.
        folder: Working directory of the program.

    Raises:
        RunFailed: The command ended with an error, or wrote nothing into its journal.
    """
    points: list[Point] = []
    lines = _Lines(journal)
    with tempfile.TemporaryFile("w+") as output:
        started = time.monotonic()
        run = subprocess.Popen(
            [str(word) for word in command],
            cwd=folder,
            env={**os.environ, **(variables or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            end = _watch(run, lines, points, enough, started, limit_s)
            seconds = time.monotonic() - started
        finally:
            stop(run)
        # A program may fail in its main process and hang because of another one.
        if (end == "exited" and run.returncode) or (end == "limit" and not points):
            output.seek(0)
            raise RunFailed("".join(output.readlines()[-_LINES_OF_FAILURE:]) or f"exit code {run.returncode}")
    return Observed(tuple(points), seconds, end)


def _watch(
    run: "subprocess.Popen[bytes]",
    lines: "_Lines",
    points: list[Point],
    enough: Callable[[Sequence[Point]], bool],
    started: float,
    limit_s: float,
) -> Literal["enough", "exited", "limit"]:
    process, cpu_due = psutil.Process(run.pid), 0.0
    while True:
        exited = run.poll() is not None
        now = time.monotonic()
        new = lines.new() if now >= cpu_due else []
        if new:
            cpu_s = points[-1].cpu_s if exited and points else tree_cpu_s(process)
            points.extend(Point(now - started, cpu_s, steps, value) for steps, value in new)
            cpu_due = now + _CPU_INTERVAL_S
            if enough(points):
                return "enough"
        if exited:
            return "exited"
        if now - started > limit_s:
            return "limit"
        time.sleep(_POLL_S)


def tree_cpu_s(root: psutil.Process) -> float:
    """Returns the CPU seconds of a process, of all processes below it, and of those among them that have ended."""
    total = 0.0
    with contextlib.suppress(psutil.Error):
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
    return total


def stop(run: "subprocess.Popen[bytes]") -> None:
    """Kills a command and all processes below it.

    Helpers that remove what the others have shared then do so, and end by themselves.
    """
    below: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        below = psutil.Process(run.pid).children(recursive=True)
    cleaners = [process for process in below if _is_cleaner(process)]
    run.kill()
    _kill([process for process in below if process not in cleaners])
    run.wait()
    _, left = psutil.wait_procs(below, timeout=_END_S)
    _kill(left)


def _is_cleaner(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return any(name in word for word in process.cmdline() for name in _CLEANERS)
    return False


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()


class _Lines:
    """Reader of the lines that are appended to a journal, which may not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def new(self) -> list[tuple[int, float | None]]:
        """Returns environment steps, and the mean return of an evaluation or None, for each new line."""
        try:
            if self._path.stat().st_size <= self._offset:
                return []
            with self._path.open("rb") as file:
                file.seek(self._offset)
                added = file.read()
        except OSError:
            return []
        whole = added[: added.rfind(b"\n") + 1]
        self._offset += len(whole)
        records = [json.loads(line) for line in whole.splitlines()]
        return [
            (record["env_steps"], record["return_mean"] if record["kind"] == "evaluation" else None)
            for record in records
            if record["kind"] in ("training", "evaluation")
        ]
