"""The absence of a service: when to log it, and when its client gives up."""

import math
import time
from collections.abc import Callable

from penstock.telemetry import logs

_NOTED_AFTER_S = 3.0
"""Seconds after which an unreachable peer is logged. Services that start together connect in less."""

_NOTED_EVERY_S = 60.0


class Absence:
    """Time since a client last heard from its service. Used on one event loop."""

    def __init__(self, give_up_after_s: float = math.inf, clock: Callable[[], float] = time.monotonic) -> None:
        """Begins now. The client gives up `give_up_after_s` after it last heard from the service."""
        self._clock, self._give_up_after_s = clock, give_up_after_s
        self._heard_at = clock()
        self._note_at = math.inf
        self._noted = False

    def heard(self) -> None:
        """Records that the service has answered."""
        self._heard_at = self._clock()

    def began(self) -> None:
        """Records that the client can't reach the service from now on. Each later call of `is_due` counts from it."""
        self._note_at = self._clock() + _NOTED_AFTER_S

    @property
    def is_due(self) -> bool:
        """Whether the absence is to be logged now."""
        return self._clock() >= self._note_at

    def note(self, reason: str) -> None:
        """Logs the absence with its reason, and lets it be logged again after a minute."""
        self._noted, self._note_at = True, self._clock() + _NOTED_EVERY_S
        logs.note("waiting for service", reason=reason)

    def ended(self, peer: str) -> None:
        """Logs that the service can be reached again, if its absence was logged."""
        if self._noted:
            logs.note("service reached", peer=peer)
        self._noted = False

    @property
    def seconds(self) -> float:
        """Seconds since the client last heard from the service."""
        return self._clock() - self._heard_at

    @property
    def is_over(self) -> bool:
        """Whether the client gives up now."""
        return self.seconds >= self._give_up_after_s
