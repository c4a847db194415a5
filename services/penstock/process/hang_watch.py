"""Ends an actor whose environment does not return from a call, which can't be interrupted otherwise."""

import os
import sys
import threading
import time
from collections.abc import Callable

from penstock.errors import EnvironmentFailed
from penstock.types.run import ActorProgress

_LOOK_S = 0.2
_END_S = 5.0
"""Seconds for a clean end, after which the process ends anyway. Containers have a longer stop grace period."""


class HangWatch:
    """A thread that ends a hung process. Segments that the replay service has acknowledged are kept."""

    def __init__(
        self, progress: Callable[[], ActorProgress], stopping: Callable[[], bool], *, timeout_s: float, env_id: str
    ) -> None:
        """Starts the watch of a thread that reports its `progress`, and whose calls may take `timeout_s` seconds.

        `stopping` returns whether the process is stopping. `env_id` names the environment in the message.
        """
        self._progress, self._stopping, self._timeout_s, self._env_id = progress, stopping, timeout_s, env_id
        self._ends_by = float("inf")
        self.code = 1
        """Exit code of a process that ends by itself but hangs."""
        self.report: Callable[[EnvironmentFailed], None] = lambda failure: None
        """Callback that receives the failure before the process ends."""
        threading.Thread(target=self._watch, name="hang watch", daemon=True).start()

    def ending(self) -> None:
        """Announces the end of the process with `code`; threads of environments may delay it by `_END_S` seconds."""
        self._ends_by = min(self._ends_by, time.monotonic() + _END_S)

    def _watch(self) -> None:
        steps, moved_at = -1, time.monotonic()
        while True:
            time.sleep(_LOOK_S)
            now, at = time.monotonic(), self._progress()
            if not at.doing or at.steps != steps:
                steps, moved_at = at.steps, now
            if self._stopping():
                self._ends_by = min(self._ends_by, now + _END_S)
            if now > self._ends_by:
                os._exit(self.code)
            if now - moved_at > self._timeout_s:
                failure = EnvironmentFailed(
                    f"{at.doing} has not returned for {self._timeout_s:g} s ({self._env_id})", at.environment
                )
                self.report(failure)
                sys.stderr.write(f"penstock: {failure}\n")
                sys.stderr.flush()
                os._exit(1)
