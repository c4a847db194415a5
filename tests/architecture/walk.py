"""`python -m tests.architecture.walk`: the files and calls that a window, a batch and its priorities pass through.

A replay service on loopback, an actor's collector with its sink, and a learner's source are in this process. Each call
of a function of the package is counted, in all threads, apart from those of `penstock.telemetry`. A file counts if one
of its functions is called. The first round is not counted, since it also opens the streams.
"""

import functools
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from penstock.acting.collector import Collector
from penstock.acting.policies.runners import runner_of
from penstock.acting.values.spaces import segment_schema
from tests.support.environments.made import make_environments
from tests.support.environments.tiny import assignment, spec_of
from tests.support.machine.timing import PATIENCE_S
from tests.support.services.servers import Loopback, plan_with, until
from tests.support.training.policies import fresh_policy, weights_of

PACKAGE = str(Path(__file__).parents[2] / "services" / "penstock") + "/"
ENVIRONMENTS, STEPS, ROUNDS = 2, 8, 3
QUIET_S = 0.3


class Walk:
    """Calls of the package's functions by file, while a step is recorded."""

    def __init__(self) -> None:
        self._calls: Counter[str] | None = None
        self._name = functools.lru_cache(None)(self._file)

    @staticmethod
    def _file(path: str) -> str:
        name = path.removeprefix(PACKAGE)
        return "" if name == path or name.startswith(("telemetry/", "v1/")) else name

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        """Counts a call; a profile function of `sys.setprofile`."""
        calls = self._calls
        if calls is not None and event == "call" and (name := self._name(frame.f_code.co_filename)):
            calls[name] += 1

    def record(self, calls: Counter[str] | None) -> None:
        """Counts all calls from now on into `calls`; None: none."""
        self._calls = calls

    def settle(self) -> None:
        """Waits until no call was counted for a while, so that what was sent is stored and acknowledged."""
        before = -1
        while self._calls is not None and before < self._calls.total():
            before = self._calls.total()
            time.sleep(QUIET_S)


def walk() -> dict[str, Counter[str]]:
    """Returns the calls per file of each step."""
    found = Walk()
    sys.setprofile(found.note)
    threading.setprofile(found.note)
    steps: dict[str, Counter[str]] = {name: Counter() for name in ("window", "batch", "priorities")}
    spec = spec_of("CartPole-v1")
    policy = fresh_policy(spec)
    environments = make_environments("CartPole-v1", ENVIRONMENTS, kwargs={})
    schema = segment_schema(spec, STEPS)
    collector = Collector(environments, assignment(*range(ENVIRONMENTS)), schema=schema, discount=0.99)
    with Loopback() as loop:
        replay = loop.replay(schema=schema)
        sink = loop.sink(0, replay, schema=schema)
        source = loop.source(replay, plan_with(batch_segments=2, fresh_segments=2), schema=schema)
        for number in range(ROUNDS):
            counted: dict[str, Any] = steps if number == ROUNDS - 1 else {}
            until(lambda: sink.next_grant(0.5), "a grant")
            runner = runner_of(weights_of(policy, number))
            found.record(counted.get("window"))
            sink.send(collector.collect(runner))
            found.settle()
            found.record(counted.get("batch"))
            batch = until(lambda: source.next(0.5), "a batch")
            found.record(counted.get("priorities"))
            source.commit(batch, np.ones(2)).result(PATIENCE_S)
            found.record(None)
    return steps


if __name__ == "__main__":
    for step, calls in walk().items():
        print(f"{step}: {len(calls)} files, {calls.total()} calls")
        for name, count in calls.most_common():
            print(f"  {count:5}  {name}")
