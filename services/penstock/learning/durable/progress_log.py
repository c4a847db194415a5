"""One line per minute in the learner's log, for a learner that no terminal watches."""

import threading
import time
from collections.abc import Callable

from penstock.telemetry.logs import Logger
from penstock.types.status import RunStatus

_INTERVAL_S = 60.0


class ProgressLog:
    """A thread that logs the event `progress` until it is closed, also while training waits."""

    def __init__(self, status: Callable[[], RunStatus], logger: Logger, *, interval_s: float = _INTERVAL_S) -> None:
        """Starts to log the result of `status` every `interval_s` seconds. It is called on this thread."""
        self._status, self._logger, self._interval_s = status, logger, interval_s
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        steps, then = self._status().env_steps, time.monotonic()
        while not self._closed.wait(self._interval_s):
            status, now = self._status(), time.monotonic()
            # The steps of earlier sessions are counted only after this thread has started.
            rate = max(0, status.env_steps - steps) / (now - then) if steps else status.env_steps_per_s
            steps, then = status.env_steps, now
            evaluation = status.last_evaluation
            self._logger.info(
                "progress",
                phase=status.phase,
                env_steps=status.env_steps,
                limit_share=round(status.limit.share, 4) if status.limit else None,
                env_steps_per_s=round(rate, 1),
                return_mean=_rounded(status.return_mean),
                evaluation=_rounded(evaluation.return_mean) if evaluation else None,
                lag_mean=_rounded(status.lag_mean),
                actors=status.actors,
                remaining_s=round(status.remaining_s) if status.remaining_s is not None else None,
                waiting_for=status.waiting_for or None,
            )


def _rounded(value: float | None) -> float | None:
    return round(value, 2) if value is not None else None
