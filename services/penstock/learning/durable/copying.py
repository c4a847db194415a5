"""Copies of the run's results while it trains, by rounds of `remote_copies` in processes of their own."""

import contextlib
import json
import threading
import time
from collections.abc import Callable

from penstock.machine.files import write_json
from penstock.runs.folder import RunFolder
from penstock.runs.remote_copies import SETTING, Copied, one_round, shown
from penstock.telemetry import logs, metrics

_ROUND_S = 300
"""Seconds after which a round that has not ended is a failure."""

_LONGEST_PAUSE_S = 60.0
"""Most seconds until a round that failed is repeated."""

_LAST_PAUSE_S = 1.0


class Copying:
    """Thread that copies changed files every `interval_s` seconds. Its owner closes it.

    The run's folder has a record of the copied files and of the last failure, for `penstock status`.
    """

    def __init__(self, target: str, folder: RunFolder, *, interval_s: float, notice: Callable[[str], None]) -> None:
        """Begins. `notice` shows the user the first of several failures, and their end."""
        self._target, self._folder, self._interval_s, self._notice = target, folder, interval_s, notice
        self._failures, self._copied = 0, self._former()
        self._closing, self._deadline = threading.Event(), 0.0
        self._thread = threading.Thread(target=self._run, name="copies", daemon=True)
        self._thread.start()

    def close(self, longest_s: float) -> None:
        """Copies the last results, for at most so many seconds."""
        self._deadline = time.monotonic() + longest_s
        self._closing.set()
        # A daemon, so that one that hangs does not keep the process.
        self._thread.join(longest_s)
        if self._thread.is_alive() or self._failures:
            logs.warn("last copies not made", target=shown(self._target))

    def _former(self) -> Copied:
        with contextlib.suppress(OSError, ValueError, KeyError):
            record = json.loads(self._folder.copies.read_text())
            if record["target"] == self._target:
                return dict(record["copied"])
        return {}

    def _run(self) -> None:
        pause = self._interval_s
        while not self._closing.wait(pause):
            self._round(_ROUND_S)
            pause = min(self._interval_s, _LONGEST_PAUSE_S) if self._failures else self._interval_s
        while (left := self._deadline - time.monotonic()) >= 1.0:
            self._round(int(left))
            if not self._failures:
                return
            time.sleep(_LAST_PAUSE_S)

    def _round(self, longest_s: int) -> None:
        self._copied, failure = one_round(self._folder, self._target, self._copied, longest_s)
        notice = ""
        if failure:
            metrics.COPY_FAILURES.inc()
            if not self._failures:
                notice = f"can't copy to {shown(self._target)}: {failure}; it is tried again"
        elif self._failures:
            notice = f"copies to {shown(self._target)} succeed again"
        self._failures = self._failures + 1 if failure else 0
        record = {"target": self._target, "copied": self._copied, "failures": self._failures, "error": failure}
        # The next round writes it; a full disk is reported elsewhere.
        with contextlib.suppress(OSError):
            write_json(self._folder.copies, record)
        # After the record, which a user who reads the notice may look at.
        if notice:
            self._notice(f"{SETTING}: {notice}")
