"""What an actor tells the learner, its log and the metrics."""

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
"""Doubled with every report: a run of a moment has something to tell too."""


def actor_name(listen: str) -> str:
    """What an actor is called: as its launcher calls it, else by its host and port, or process where the port is any.

    A process that takes its place is called the same, but for the last.
    """
    supervised = os.environ.get(SUPERVISED_VARIABLE, "")
    port = listen.rpartition(":")[2]
    return supervised or f"{socket.gethostname()}:{port if port != '0' else os.getpid()}"


def tell_failure(membership: Membership, logger: Logger, failure: EnvironmentFailed) -> None:
    """Tells of a failure for which a window is dropped."""
    membership.tell(EnvironmentFault(str(failure), dropped=True))
    metrics.ACTOR_DROPPED_WINDOWS.inc()
    logger.warning("dropped a window", reason=str(failure))


class Reporter:
    """Tells the learner, and the metrics, what an actor did."""

    def __init__(self, membership: Membership, collector: Collector) -> None:
        self._membership, self._collector = membership, collector
        self._first_step_at_s = 0.0
        self._due, self._interval_s = 0.0, _FIRST_REPORT_INTERVAL_S
        self._segments = 0

    def begin(self) -> None:
        """Before a window: tells when the first one begins, at once, since training is timed from there."""
        if not self._first_step_at_s:
            self._first_step_at_s = time.time()
            self.report()

    def delivered(self, segments: int) -> None:
        """Segments were handed over."""
        self._segments += segments
        warning = self._collector.take_warning()
        if warning:
            self._membership.tell(EnvironmentFault(warning, dropped=False))

    def report_if_due(self) -> None:
        """Reports twice a second, and sooner at first."""
        if time.monotonic() >= self._due:
            self.report()

    def report(self) -> None:
        """Reports what happened since the last time."""
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
