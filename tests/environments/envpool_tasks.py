"""Checks every task of EnvPool by its name alone, as `penstock train --env-id envpool:TASK` does before a run.

`make all-environments` runs it where EnvPool is installed. Each task is made, reset and stepped in a process of its
own. The order is random and fixed, with the largest family last, so that an interrupted program has checked a sample.
The result is build/environments/envpool.json, which is written after each task: the program continues where it ended.
"""

import argparse
import contextlib
import json
import os
import random
import select
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from penstock.acting.environments.environment_check import Task, check
from penstock.apps.environments import making_of
from penstock.config import build
from penstock.errors import ConfigurationError
from penstock.machine import extras
from penstock.machine.files import write_json
from tests.support.results.provenance import of_this_run

OUTPUT = Path(__file__).parents[2] / "build" / "environments" / "envpool.json"
DEADLINE_S = 240.0
"""Seconds after which the process of a task is killed."""

_COMPARED = 2
_LARGEST = "mujoco.myosuite"
_ANSWER_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of one task. `reason` is the line with which it was refused, without its id; empty if it was not."""

    id: str
    family: str
    reason: str
    mask_bits: int
    cpu_s: float
    memory_mb: int


class Running:
    """The check of a task in a process of its own, which ends by itself or is killed."""

    def __init__(self, task: str) -> None:
        """Forks the process. Its parent has imported what checks need, and has no threads."""
        self.task, self.ends_by = task, time.monotonic() + DEADLINE_S
        self.answers, writing = os.pipe()
        self._process = os.fork()
        if self._process == 0:
            try:
                silent = os.open(os.devnull, os.O_WRONLY)
                os.dup2(silent, 1)
                os.dup2(silent, 2)
                os.write(writing, json.dumps(_answer(task)).encode())
            finally:
                os._exit(0)
        os.close(writing)

    def result(self, family: str) -> Checked:
        """Returns the result; kills the process if it has not answered."""
        answered = select.select([self.answers], [], [], 0)[0]
        answer = os.read(self.answers, _ANSWER_BYTES) if answered else b""
        os.close(self.answers)
        if not answered:
            os.kill(self._process, signal.SIGKILL)
        _, status, usage = os.wait4(self._process, 0)
        reason, mask_bits = f"its process ended with status {status}", 0
        if not answered:
            reason = f"no answer within {DEADLINE_S:g} s"
        elif answer:
            reason, mask_bits = json.loads(answer)
        cpu_s = round(usage.ru_utime + usage.ru_stime, 2)
        return Checked(self.task, family, reason, mask_bits, cpu_s, usage.ru_maxrss // 1024)


def checked(tasks: Mapping[str, str], jobs: int, known: Sequence[Checked], write: Any) -> list[Checked]:
    """Checks tasks, given with their families, several at a time; calls `write` with all results after each."""
    results, running = list(known), list[Running]()
    left = [task for task in tasks if task not in {each.id for each in known}]
    while left or running:
        while left and len(running) < jobs:
            running.append(Running(left.pop(0)))
        wait_s = max(0.0, min(each.ends_by for each in running) - time.monotonic())
        ready = select.select([each.answers for each in running], [], [], wait_s)[0]
        for each in [each for each in running if each.answers in ready or each.ends_by <= time.monotonic()]:
            running.remove(each)
            results.append(each.result(tasks[each.task]))
            write(results)
            print(f"[{len(left) + len(running)} left] {each.task}: {results[-1].reason or 'accepted'}", flush=True)
    return results


def families() -> dict[str, str]:
    """Returns the tasks of the installed EnvPool in a fixed random order, with the parts of EnvPool that have them."""
    from envpool.registration import registry

    tasks = list(registry.specs)
    random.Random(0).shuffle(tasks)
    found = {task: registry.specs[task][0].removeprefix("envpool.") for task in tasks}
    # Half of all tasks are of the slowest family, and alike.
    return dict(sorted(found.items(), key=lambda each: each[1] == _LARGEST))


def _answer(task: str) -> tuple[str, int]:
    """Returns why a task is refused, empty if it is not, and the bits of its masks."""
    env_id = f"envpool:{task}"
    config = build({"environment": {"id": env_id}})
    environment, policy = config.environment, config.policy
    try:
        found = check(
            [Task([making_of(environment, {})], _COMPARED)],
            frames=environment.frame_stack,
            encoders=policy.encoders,
            moves=policy.moves,
            widest_range=policy.widest_range,
            largest_magnitude=environment.largest_magnitude,
            progress=lambda stage, name: None,
        )
    except ConfigurationError as error:
        # Paths of packages are those of one machine.
        return str(error).replace(env_id, "ID").replace(f"{sys.prefix}/", ""), 0
    return "", found.spec.mask_bits


def main() -> int:
    """Checks the tasks, prints the number of accepted ones, and writes the result."""
    parser = argparse.ArgumentParser(prog="python -m tests.environments.envpool_tasks", description=__doc__)
    parser.add_argument("--most", type=int, help="tasks to check (default: all)")
    parser.add_argument("--jobs", type=int, default=2, help="checks at a time (default: 2)")
    given = parser.parse_args()
    if extras.missing("envpool"):
        print("EnvPool is not installed, so its tasks are not checked; install it with: pip install envpool")
        return 0
    tasks, origin = families(), of_this_run()
    known = json.loads(OUTPUT.read_text())["tasks"] if OUTPUT.exists() else []
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)

    def write(results: Sequence[Checked]) -> None:
        rows = [asdict(each) for each in results]
        own = {"envpool": version("envpool"), "registered": dict(Counter(tasks.values()))}
        write_json(OUTPUT, {"provenance": origin, **own, "tasks": rows})

    chosen = dict(list(tasks.items())[: given.most])
    # Some tasks write files into the working directory.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        results = checked(chosen, given.jobs, [Checked(**each) for each in known], write)
    accepted = sum(not each.reason for each in results)
    print(f"{len(results)} of {len(tasks)} tasks were checked, {accepted} accepted; written to {OUTPUT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
