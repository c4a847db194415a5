"""Interfaces through which actors and evaluators use services, their process and its log.

`rpc` implements the services, `process` the process, and `telemetry` the log.
"""

from typing import Protocol

from penstock.types.evaluation import EvaluationResult, EvaluationTask
from penstock.types.replay import Grant, Window
from penstock.types.run import ActorReport, Assignment, EnvironmentFault, Weights


class RunLink(Protocol):
    """An actor's place in the run. Every call raises `RunFinished` at the end of the run."""

    def assignment(self, timeout_s: float) -> Assignment | None:
        """Waits for the actor's assignment, which may change later; None on timeout."""

    def at_least(self, version: int, timeout_s: float) -> Weights | None:
        """Waits for weights of this version or newer and returns the newest; None on timeout."""

    def join_again(self, taken_by: int = 0) -> None:
        """Gives up the place, which incarnation `taken_by` has taken (0: none has), and joins as a new actor."""

    def report(self, report: ActorReport) -> None:
        """Sends a report, without blocking."""

    def report_fault(self, fault: EnvironmentFault) -> None:
        """Sends a fault of an environment, without blocking."""


class SegmentSink(Protocol):
    """Destination of an actor's windows under one assignment.

    `next_grant` and `send` raise `PlaceLost` if the assignment is no longer valid.
    """

    def next_grant(self, timeout_s: float) -> Grant | None:
        """Waits for a grant to collect one window and returns it; None on timeout."""

    def send(self, window: Window) -> None:
        """Copies and sends a window, so that its columns may be overwritten afterwards.

        Blocks while too many windows are unacknowledged.
        """

    def drain(self, timeout_s: float) -> bool:
        """Waits up to `timeout_s` until all sent windows are stored. Returns whether they are."""

    def close(self) -> None:
        """Ends the stream. Its grants return to the gate."""


class EvaluationQueue(Protocol):
    """Tasks for an evaluator."""

    def next(self, timeout_s: float) -> EvaluationTask | None:
        """Waits for a task; None on timeout. Raises `RunFinished` at the end of the run."""

    def deliver(self, result: EvaluationResult) -> None:
        """Sends a result, without blocking."""


class Process(Protocol):
    """The process that an actor or evaluator runs in."""

    @property
    def stopping(self) -> bool:
        """Whether the process is to stop."""

    @property
    def supervised(self) -> bool:
        """Whether a launcher, which has checked the environments, started this process."""

    def wait(self, timeout_s: float) -> bool:
        """Sleeps for `timeout_s` seconds unless the process is stopping; returns whether it is stopping."""

    def restore_process(self) -> None:
        """Restores the signal handlers and the working directory, which the making of environments may have changed."""


class Log(Protocol):
    """Structured log: an event and its fields."""

    def info(self, event: str, **fields: object) -> object:
        """Logs an ordinary event."""

    def warning(self, event: str, **fields: object) -> object:
        """Logs an event that needs attention."""
