"""Reports of an actor's work and faults to the learner."""

import time
from dataclasses import replace

from penstock.acting.collector import Collector
from penstock.acting.protocols import Log, RunLink
from penstock.errors import EnvironmentFailed
from penstock.types.run import ActorReport, EnvironmentFault

_REPORT_INTERVAL_S = 0.5
_FIRST_REPORT_INTERVAL_S = 0.05
"""Seconds between the first two reports, doubled with each further one, so that a very short run has reports too."""


def report_failure(run: RunLink, log: Log, failure: EnvironmentFailed, event: str = "window dropped") -> None:
    """Reports a failure that dropped a window, or the episodes of some environments, to the learner and the log."""
    run.report_fault(EnvironmentFault(str(failure), dropped=True))
    log.warning(event, reason=str(failure))


class Reports:
    """Reports of the work of one collector. Used by the thread that collects."""

    def __init__(
        self, run: RunLink, collector: Collector, info_metrics: tuple[str, ...] = (), *, varied: bool = False
    ) -> None:
        """`info_metrics` are the keys of the values in `Episode.info`, after the variant's number if it is `varied`."""
        self._varied = varied
        self._run, self._collector, self._info_metrics = run, collector, info_metrics
        self._first_step_at_s = 0.0
        self._due, self._interval_s = 0.0, _FIRST_REPORT_INTERVAL_S
        self._segments = 0

    def begin(self) -> None:
        """Marks the start of a window; reports the first start immediately, because training is timed from it."""
        if not self._first_step_at_s:
            self._first_step_at_s = time.time()
            self.send()

    def sent(self, segments: int) -> None:
        """Counts segments handed to the sink, and reports a warning about the environments if there is one."""
        self._segments += segments
        warning = self._collector.take_warning()
        if warning:
            self._run.report_fault(EnvironmentFault(warning, dropped=False))

    def send_if_due(self) -> None:
        """Sends a report if one is due: twice per second, and more often at first."""
        if time.monotonic() >= self._due:
            self.send()

    def send(self) -> None:
        """Reports the work since the last report."""
        self._due = time.monotonic() + self._interval_s
        self._interval_s = min(2.0 * self._interval_s, _REPORT_INTERVAL_S)
        episodes, steps = self._collector.take_episodes()
        if self._varied:
            episodes = tuple(replace(each, variant=int(each.info[0]), info=each.info[1:]) for each in episodes)
        timing = self._collector.take_timing()
        segments, self._segments = self._segments, 0
        self._run.report(
            ActorReport(
                env_steps=steps,
                first_step_at_s=self._first_step_at_s,
                episodes=episodes,
                timing=timing,
                segments=segments,
                late_steps=self._collector.take_late_steps(),
                info_metrics=self._info_metrics,
            )
        )
