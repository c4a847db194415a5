"""What durations of the drill are compared with: the same start, undisturbed, measured between the disturbed ones."""

from collections.abc import Callable

from helpers.timing import Bound
from tests.e2e.report import Report

TRIES = 3
"""A duration over its bound is measured again, with its baseline, as often: the load of the machine may have changed
between the two, and does not change the same way three times. A fault is there each time."""


class Baseline:
    """Durations of one undisturbed start, of which the latest count: the load of the machine drifts."""

    def __init__(self, measure: Callable[[], float]) -> None:
        """Args:
        measure: Makes the start, and returns its seconds.
        """
        self.seconds: list[float] = []
        self._measure = measure

    @property
    def recent(self) -> float:
        """The longer of the last two, so that a lucky one does not make a bound impossible. There must be one."""
        return max(self.seconds[-2:])

    def measure(self) -> float:
        """Makes one more start; its seconds."""
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
    """Reports whether `action`, which returns its seconds, keeps its bound in one of `TRIES` tries.

    Args:
        report: Gets one line.
        what: Name of the duration, and of the baseline.
        action: Makes what is measured.
        baseline: Was measured shortly before. It is measured again after a try over its bound, which is then between
            two starts.
        multiple: How many times the baseline the action may take.
        fixed_s: Seconds of the product's own timeouts beside that.
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
