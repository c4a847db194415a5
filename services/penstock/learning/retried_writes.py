"""Writes to the run's folder that may fail: reported, counted and tried again, while training goes on.

A full, read-only or broken disk ends no training. Each kind of file ("checkpoint", "roster.json") keeps its newest
write that failed, so memory is bounded by one file of each kind. Only at the end of a run does a write that still
fails raise an error.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.errors import PenstockError
from penstock.telemetry import logs, metrics

_FIRST_DELAY_S = 1.0
_LONGEST_DELAY_S = 60.0
_LAST_CHANCE_S = 5.0
"""How long the last writes of a run are repeated: a disk that was full for a moment costs no result."""
_LAST_DELAY_S = 0.5


@dataclass(slots=True)
class _Kind:
    """One kind of file; its lock is held while it is written, so that an older content never replaces a newer one."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    pending: Callable[[], object] | None = None
    delay_s: float = _FIRST_DELAY_S
    due_at: float = 0.0
    error: OSError | None = None


class RetriedWrites:
    """Performs writes, and repeats those that failed. Any thread may call, and waits for its kind of file only."""

    def __init__(self, notice: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        """Args:
        notice: Tells the user of the first failure of a kind, and of the end of the failures.
        clock: Monotonic seconds.
        """
        self._notice, self._clock = notice, clock
        self._kinds: dict[str, _Kind] = {}
        self._lock = threading.Lock()

    def write(self, kind: str, action: Callable[[], object]) -> bool:
        """Writes now, or soon if this kind of file has just failed; returns whether it is written.

        Args:
            kind: What is written, for the user: "checkpoint", or a file's name.
            action: Writes; raises `OSError`. If it fails, it replaces the one of its kind that is tried again.
        """
        with self._lock:
            known = self._kinds.setdefault(kind, _Kind())
        with known.lock:
            known.pending = action
            return self._clock() >= known.due_at and self._try(kind, known)

    def retry(self) -> None:
        """Repeats the writes that failed and are due; cheap where there are none."""
        for kind, known in self._all():
            if known.pending is not None and self._clock() >= known.due_at:
                with known.lock:
                    self._try(kind, known)

    def finish(self, advice: str, wait: Callable[[float], object] = time.sleep) -> None:
        """At the end of a run: repeats the writes that failed, for some seconds.

        Args:
            advice: What the user can do, for the error.
            wait: Waits so many seconds.

        Raises:
            PenstockError: A write still fails.
        """
        deadline = self._clock() + _LAST_CHANCE_S
        while failed := [(kind, known) for kind, known in self._all() if not self._settled(kind, known)]:
            if self._clock() >= deadline:
                reasons = "; ".join(f"{kind}: {known.error}" for kind, known in failed)
                raise PenstockError(f"can't write the end of the run ({reasons}); {advice}")
            wait(_LAST_DELAY_S)

    def _settled(self, kind: str, known: _Kind) -> bool:
        with known.lock:
            return self._try(kind, known)

    def _all(self) -> list[tuple[str, _Kind]]:
        with self._lock:
            return list(self._kinds.items())

    def _try(self, kind: str, known: _Kind) -> bool:
        if known.pending is None:
            return True
        try:
            known.pending()
        except OSError as error:
            self._note_failure(kind, known, error)
            return False
        if known.error is not None:
            self._notice(f"{kind} is written again")
        known.pending, known.error, known.delay_s, known.due_at = None, None, _FIRST_DELAY_S, 0.0
        return True

    def _note_failure(self, kind: str, known: _Kind, error: OSError) -> None:
        metrics.LEARNER_WRITE_FAILURES.labels(kind).inc()
        logs.note("write failed", file=kind, error=str(error), retried_in_s=f"{known.delay_s:g}")
        if known.error is None:
            self._notice(
                f"can't write {kind}: {error}; training goes on and the write is repeated. Free space or make"
                " the run's folder writable"
            )
        known.error = error
        known.due_at = self._clock() + known.delay_s
        known.delay_s = min(2.0 * known.delay_s, _LONGEST_DELAY_S)
