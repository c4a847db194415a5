"""Time in tests: limits of waits, and bounds that do not depend on the speed of the machine.

A bound on a duration is a multiple of a baseline, which is measured in the same run on the same machine. A slow or busy
machine slows both down; a fault of the code slows only one.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

PATIENCE_S = 900.0
"""Limit of every wait, in seconds.

Only a failing test waits that long, so it does not express an expected speed. The timeout of pytest in pyproject.toml
is longer, so that the message of the wait is reported.
"""

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


def seconds_of(action: Callable[[], object]) -> float:
    """Returns the seconds that `action` takes."""
    started = time.monotonic()
    action()
    return time.monotonic() - started


def longest_of(action: Callable[[], object], times: int = 3) -> float:
    """Returns the longest duration of `action` in seconds over some repetitions, which is a robust baseline."""
    return max(seconds_of(action) for _ in range(times))


def wait_for(condition: Callable[[], T | None], what: str, timeout_s: float = PATIENCE_S, *, poll_s: float = 0.05) -> T:
    """Polls until `condition` is true, and returns its value. Raises `AssertionError` after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:.0f} s"
        time.sleep(poll_s)
    return value
