"""Reports of an actor to the learner, to its log and to the metrics."""

import os
import socket
import time

from penstock.acting.collector import Collector
from penstock.apps.service import SUPERVISED_VARIABLE
from penstock.errors import EnvironmentFailed
from penstock.rpc.membership import Membership
from penstock.telemetry import metrics
from penstock.telemetry.logs import Logger
from penstock.types import ActorReport, EnvironmentFault

_REPORT_INTERVAL_S = 0.5
_FIRST_REPORT_INTERVAL_S = 0.05
"""Seconds between the first two reports, doubled with each further one, so that a very short run has reports too."""


def actor_name(listen: str) -> str:
    """Returns the actor's name: the one given by its launcher, else host and port, or host and process id for port 0.

    A process that replaces the actor has the same name, unless the name contains the process id.
    """
    supervised = os.environ.get(SUPERVISED_VARIABLE, "")
    port = listen.rpartition(":")[2]
    return supervised or f"{socket.gethostname()}:{port if port != '0' else os.getpid()}"


def tell_failure(membership: Membership, logger: Logger, failure: EnvironmentFailed) -> None:
    """Reports a failure that dropped a window to the learner, the metrics and the log."""
    membership.tell(EnvironmentFault(str(failure), dropped=True))
    metrics.ACTOR_DROPPED_WINDOWS.inc()
    logger.warning("dropped a window", reason=str(failure))


class Reporter:
    """Reports an actor's work to the learner and the metrics."""

    def __init__(self, membership: Membership, collector: Collector) -> None:
        self._membership, self._collector = membership, collector
        self._first_step_at_s = 0.0
        self._due, self._interval_s = 0.0, _FIRST_REPORT_INTERVAL_S
        self._segments = 0

    def begin(self) -> None:
        """Marks the start of a window; reports the first start immediately, because training is timed from it."""
        if not self._first_step_at_s:
            self._first_step_at_s = time.time()
            self.report()

    def delivered(self, segments: int) -> None:
        """Counts segments handed to the sink, and reports a warning about the environments if there is one."""
        self._segments += segments
        warning = self._collector.take_warning()
        if warning:
            self._membership.tell(EnvironmentFault(warning, dropped=False))

    def report_if_due(self) -> None:
        """Reports if a report is due: twice per second, and more often at first."""
        if time.monotonic() >= self._due:
            self.report()

    def report(self) -> None:
        """Reports the work since the last report."""
        self._due = time.monotonic() + self._interval_s
        self._interval_s = min(2.0 * self._interval_s, _REPORT_INTERVAL_S)
        episodes, steps = self._collector.take_episodes()
        timing = self._collector.take_timing()
        metrics.ACTOR_STEPS.inc(steps)
        metrics.ACTOR_SECONDS.labels("environment").inc(timing.environment_s)
        metrics.ACTOR_SECONDS.labels("policy").inc(timing.policy_s)
        metrics.ACTOR_SECONDS.labels("building").inc(timing.building_s)
        metrics.ACTOR_SECONDS.labels("waiting").inc(timing.waiting_s)
        segments, self._segments = self._segments, 0
        self._membership.report(
            ActorReport(
                env_steps=steps,
                first_step_at_s=self._first_step_at_s,
                episodes=episodes,
                environment_s=timing.environment_s,
                policy_s=timing.policy_s,
                waiting_s=timing.waiting_s,
                building_s=timing.building_s,
                segments=segments,
            )
        )
