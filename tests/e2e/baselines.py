"""Baselines of the drill's durations: the same start, undisturbed, measured between the disturbed ones."""

from collections.abc import Callable

from tests.e2e.report import Report
from tests.support.machine.timing import Bound

TRIES = 3
"""Number of measurements of a duration over its bound.

The load of the machine may change between a measurement and its baseline, but not three times in the same way. A fault
is present each time.
"""


class Baseline:
    """Durations of one undisturbed start; only the latest count, because the load of the machine drifts."""

    def __init__(self, measure: Callable[[], float]) -> None:
        """Creates a baseline without measurements.

        Args:
            measure: Makes the start, and returns its seconds.
        """
        self.seconds: list[float] = []
        self._measure = measure

    @property
    def recent(self) -> float:
        """Longer of the last two durations, so that a lucky one does not make a bound impossible. There must be one."""
        return max(self.seconds[-2:])

    def measure(self) -> float:
        """Makes one more start; returns its seconds."""
        self.seconds.append(self._measure())
        return self.seconds[-1]


def compare(
    report: Report,
    what: str,
    action: Callable[[], float],
    baseline: Baseline,
    *,
    multiple: float,
    fixed_s: float = 0.0,
) -> None:
    """Reports whether `action`, which returns its seconds, is within its bound in one of `TRIES` tries.

    Args:
        report: Report that receives one line.
        what: Name of the duration, and of the baseline.
        action: Makes the measured change.
        baseline: Baseline, measured shortly before. It is measured again after a try over its bound, which is then
            between two starts.
        multiple: Largest ratio of the duration to the baseline.
        fixed_s: Seconds of the product's own timeouts, in addition.
    """
    tries: list[float] = []
    while True:
        tries.append(action())
        if tries[-1] > Bound(multiple, baseline.recent, fixed_s).seconds:
            baseline.measure()
        bound = Bound(multiple, baseline.recent, fixed_s)
        if tries[-1] <= bound.seconds or len(tries) == TRIES:
            report.within(what, tries, bound)
            return
