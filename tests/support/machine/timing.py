"""Time in tests: limits of waits, and bounds that do not depend on the speed of the machine.

A bound on a duration is a multiple of a baseline, which is measured in the same run on the same machine. A slow or busy
machine slows both down; a fault of the code slows only one.
"""

import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

LEAST_PATIENCE_S = 60.0
"""Smallest limit of a wait, in seconds."""

_VARIABLE = "TESTS_PATIENCE_S"


def patience_now_s() -> float:
    """Returns the limit of a wait for an answer, in seconds, on this machine under its present load.

    It is 100 times the first answer of a process that imports gRPC, and at least a minute.
    """
    return max(LEAST_PATIENCE_S, 100.0 * _seconds_of_python("import grpc; print('answer')"))


def start_patience_now_s() -> float:
    """Returns the limit of a wait for whole processes of Penstock, in seconds, under the present load.

    It is 40 times the import of torch, and at least a minute. A run starts within the time of a few imports, or of 15
    if the compiled loops are not in their cache yet.
    """
    return max(LEAST_PATIENCE_S, 40.0 * _seconds_of_python("import torch"))


@functools.cache
def start_patience_s() -> float:
    """Returns `start_patience_now_s` as the first call in this process measured it."""
    return start_patience_now_s()


def _seconds_of_python(program: str) -> float:
    return seconds_of(lambda: subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL))


def seconds_of(action: Callable[[], object]) -> float:
    """Returns the seconds that `action` takes."""
    started = time.monotonic()
    action()
    return time.monotonic() - started


PATIENCE_S = float(os.environ.get(_VARIABLE) or patience_now_s())
"""Limit of a wait for an answer, in seconds: `patience_now_s`, measured once per run of the tests.

Only a failing test waits that long, so it does not express an expected speed. Started processes inherit it, such as the
workers of pytest-xdist. The timeout of pytest in pyproject.toml is longer, so that the message of the wait is reported.
"""
os.environ[_VARIABLE] = str(PATIENCE_S)

NEVER_S = 100.0 * PATIENCE_S
"""Timeout of the product that no test waits for, in seconds."""

DRILL_PATIENCE_S = 900.0
"""Limit of a wait in a drill, in seconds, which includes minutes of Docker, Slurm, Swarm and Prometheus."""

AT_ONCE = 50.0
"""Multiple of a service's first answer that bounds an action without waits.

An answer takes some hundredths of a second. A wrong wait takes 20 s, until gRPC gives up a connection, or forever.
"""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bound:
    """Upper bound of a duration: `multiple` times the baseline, plus the product's own waits.

    Attributes:
        multiple: Factor by which the measured duration may exceed the baseline.
        baseline_s: Seconds that comparable work took undisturbed, on this machine in this run.
        fixed_s: Seconds of timeouts and intervals of the product, which are the same on every machine.
    """

    multiple: float
    baseline_s: float
    fixed_s: float = 0.0

    @property
    def seconds(self) -> float:
        """The bound in seconds."""
        return self.multiple * self.baseline_s + self.fixed_s

    def __str__(self) -> str:
        fixed = f" + {self.fixed_s:g} s" if self.fixed_s else ""
        return f"{self.multiple:g} x {self.baseline_s:.2f} s{fixed} = {self.seconds:.1f} s"


def longest_of(action: Callable[[], object], times: int = 3) -> float:
    """Returns the longest duration of `action` in seconds over some repetitions, which is a robust baseline."""
    return max(seconds_of(action) for _ in range(times))


def wait_for(
    condition: Callable[[], T | None],
    what: str,
    timeout_s: float | None = None,
    *,
    poll_s: float = 0.05,
    longest_s: Callable[[], float] = patience_now_s,
) -> T:
    """Polls until `condition` is true, and returns its value. Raises `AssertionError` after `timeout_s`.

    Without `timeout_s`, a wait that has taken a minute measures `longest_s`, and goes on up to there.
    """
    started, limit_s = time.monotonic(), LEAST_PATIENCE_S if timeout_s is None else timeout_s
    while not (value := condition()):
        if time.monotonic() >= started + limit_s:
            assert timeout_s is None, f"{what}: not within {limit_s:.0f} s"
            limit_s = timeout_s = longest_s()
        time.sleep(poll_s)
    return value


def wait_for_run(condition: Callable[[], T | None], what: str, *, poll_s: float = 0.05) -> T:
    """Polls like `wait_for`, for what whole processes of Penstock do, up to `start_patience_now_s`."""
    return wait_for(condition, what, poll_s=poll_s, longest_s=start_patience_now_s)


def wait_in_drill(condition: Callable[[], T | None], what: str, *, poll_s: float = 0.05) -> T:
    """Polls like `wait_for`, for what a deployed stack does, up to `DRILL_PATIENCE_S`."""
    return wait_for(condition, what, DRILL_PATIENCE_S, poll_s=poll_s)
