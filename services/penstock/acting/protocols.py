"""Interfaces of an actor to the other services; `rpc` implements them."""

from typing import Protocol

from penstock.types import Grant, Weights, Window


class SegmentSink(Protocol):
    """Destination of an actor's windows."""

    def next_grant(self, timeout_s: float) -> Grant | None:
        """Waits for a grant to collect one window and returns it; None on timeout."""

    def send(self, window: Window) -> None:
        """Copies and sends a window, so that its columns may be overwritten afterwards.

        Blocks while too many windows are unacknowledged.
        """


class WeightSource(Protocol):
    """Source of published weights."""

    def at_least(self, version: int, timeout_s: float) -> Weights | None:
        """Waits for weights of this version or newer and returns the newest; None on timeout."""
