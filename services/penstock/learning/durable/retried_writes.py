"""Writes to the run's folder. Failed writes are reported, counted and retried while training continues.

Each kind of file ("checkpoint", "roster.json") keeps its newest failed write, so memory is bounded by one file of each
kind. A write that still fails raises an error only at the end of a run.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from penstock.errors import PenstockError
from penstock.machine.system_errors import in_words
from penstock.telemetry import logs, metrics

_FIRST_DELAY_S = 1.0
_LONGEST_DELAY_S = 60.0
_LAST_CHANCE_S = 5.0
"""Seconds for which the last writes of a run are retried, so that a disk that is full for a moment costs no result."""
_LAST_DELAY_S = 0.5


@dataclass(slots=True)
class _Kind:
    """One kind of file. Its lock is held during a write, so that older content never replaces newer content."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    pending: Callable[[], object] | None = None
    delay_s: float = _FIRST_DELAY_S
    due_at: float = 0.0
    error: OSError | None = None


class RetriedWrites:
    """Writer that retries failed writes. Any thread may call, and waits only for its kind of file."""

    def __init__(
        self,
        notice: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        *,
        folder: Path | None = None,
    ) -> None:
        """Creates a writer.

        `notice` shows the user the first failure of a kind and the end of its failures. `folder` contains the files,
        and its disk is described; None: unknown.
        """
        self._notice, self._folder, self._clock = notice, folder, clock
        self._kinds: dict[str, _Kind] = {}
        self._lock = threading.Lock()

    def write(self, kind: str, action: Callable[[], object]) -> bool:
        """Writes now, or later if this kind of file has just failed. Returns whether it is written.

        `kind` is shown to the user: "checkpoint", or a file's name. `action` writes and may raise `OSError`; it
        replaces the pending write of its kind.
        """
        with self._lock:
            known = self._kinds.setdefault(kind, _Kind())
        with known.lock:
            known.pending = action
            return self._clock() >= known.due_at and self._try(kind, known)

    def retry(self) -> None:
        """Retries the failed writes that are due. Cheap if there are none, and does not wait for other threads."""
        for kind, known in self._all():
            if known.error is None or self._clock() < known.due_at:
                continue
            if known.lock.acquire(blocking=False):
                try:
                    self._try(kind, known)
                finally:
                    known.lock.release()

    def reason(self, kind: str) -> str:
        """Returns why the last write of a kind failed, and the remedy; empty if it succeeded."""
        with self._lock:
            known = self._kinds.get(kind)
        return self._in_words(known.error) if known is not None and known.error is not None else ""

    def finish(self, advice: str, wait: Callable[[float], object] = time.sleep) -> None:
        """Retries the failed writes for some seconds at the end of a run.

        Raises `PenstockError`, with this advice to the user, if a write still fails. `wait` sleeps for some seconds.
        """
        deadline = self._clock() + _LAST_CHANCE_S
        while failed := [(kind, known) for kind, known in self._all() if not self._settled(kind, known)]:
            if self._clock() >= deadline:
                kinds = ", ".join(kind for kind, _ in failed)
                reason = self.reason(failed[0][0])
                raise PenstockError(f"can't write the results of the run ({kinds}): {reason}; {advice}")
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
            self._notice(f"{kind} can be written again")
        known.pending, known.error, known.delay_s, known.due_at = None, None, _FIRST_DELAY_S, 0.0
        return True

    def _in_words(self, error: OSError) -> str:
        return in_words(error, self._folder)

    def _note_failure(self, kind: str, known: _Kind, error: OSError) -> None:
        metrics.LEARNER_WRITE_FAILURES.labels(kind).inc()
        reason = self._in_words(error)
        logs.note("write failed", file=kind, error=reason, retried_in_s=f"{known.delay_s:g}")
        if known.error is None:
            self._notice(f"can't write {kind}; training continues and the write is retried: {reason}")
        known.error = error
        known.due_at = self._clock() + known.delay_s
        known.delay_s = min(2.0 * known.delay_s, _LONGEST_DELAY_S)
