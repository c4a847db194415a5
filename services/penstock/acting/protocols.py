"""What an actor needs from the outside; `rpc` implements it."""

from typing import Protocol

from penstock.types import Grant, Weights, Window


class SegmentSink(Protocol):
    """Where windows go."""

    def next_grant(self, timeout_s: float) -> Grant | None:
        """Waits for leave to collect a window; None if none came in time."""

    def send(self, window: Window) -> None:
        """Takes a window over; its columns may be written to again when this returns. Waits while too much is
        unacknowledged.
        """


class WeightSource(Protocol):
    """Where weights come from."""

    def at_least(self, version: int, timeout_s: float) -> Weights | None:
        """Waits for weights of this version or newer and returns the newest; None if none came in time."""
