"""Follows the journal of a run, and sends each record once to a tracker.

A resumed run repeats the training after its newest checkpoint, and drops the records of it. A record is therefore sent
only after a checkpoint contains its steps: it can't be dropped any more. Environment steps and seconds of training grow
from record to record of a kind, so that the last record of each kind that a tracker has tells which ones it lacks. No
other state is kept.
"""

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from penstock.errors import ConfigurationError, PenstockError
from penstock.machine import foreign_errors
from penstock.machine.environment_names import short
from penstock.machine.files import open_own
from penstock.runs.folder import RunFolder
from penstock.runs.metrics import JournalLines, records_in

_POLL_S = 1.0
_OTHERS_S = 20.0
"""Seconds in which the tracking process of a launcher that was killed ends."""
_REMEDY = "check the network and the tracker's address and login, then run `penstock track` again"
RETRY_S = 60.0
"""Seconds until a tracker that failed is opened again."""


class Mark(NamedTuple):
    """Place of a record among the records of its kind: environment steps, and seconds of training."""

    env_steps: int
    training_s: float

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "Mark":
        """Returns the place of a record."""
        return cls(int(record["env_steps"]), float(record.get("training_s") or 0.0))


class Tracker(Protocol):
    """One run in a tracker. Used by one thread."""

    place: str
    """Where the records go, and how to see them, in one line."""

    last: Mapping[str, Mark]
    """Last record of each kind that the tracker has."""

    def send(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Adds records in their order. Raises any exception of the tracker's package."""

    def close(self) -> None:
        """Waits until the tracker has all records, and marks the run as ended."""


class CommittedRecords:
    """Reads the records of a run that no resume drops and that a tracker lacks."""

    def __init__(self, folder: RunFolder, last: Mapping[str, Mark]) -> None:
        """Begins after these records by kind."""
        self._folder, self._lines = folder, JournalLines(folder.root)
        self._last = dict(last)
        self.waiting: list[dict[str, Any]] = []
        """Records that follow the newest checkpoint."""

    def read(self) -> list[dict[str, Any]]:
        """Returns the records that were committed since the last call."""
        # Before the lines: a resume could replace lines that this checkpoint does not contain.
        saved = self._folder.newest_checkpoint_steps()
        replaced, lines = self._lines.read()
        found = ([] if replaced else self.waiting) + records_in(lines)
        self.waiting, ready = [], []
        for record in found:
            kind, mark = str(record["kind"]), Mark.of(record)
            if saved is None or mark.env_steps > saved:
                self.waiting.append(record)
            elif kind not in self._last or mark > self._last[kind]:
                self._last[kind] = mark
                ready.append(record)
        return ready


@contextlib.contextmanager
def only_sender(
    run: str | Path, tracker: str, *, notice: Callable[[str], None], stopping: threading.Event
) -> Iterator[None]:
    """Waits until no other process sends the run to this tracker, and keeps others from it inside the context.

    The tracking process of a launcher that was killed may live for some seconds beside that of the resumed run. Raises
    `PenstockError` if the other process goes on after `stopping` is set.
    """
    try:
        # A tracker of the user's own may be named by the path of a file.
        lock = RunFolder(Path(run)).logs / f"{short(tracker).replace(':', '-')}.lock"
        descriptor = open_own(lock, os.O_RDWR | os.O_CREAT)
    except OSError:
        # Nothing trains in a folder that can't be written.
        yield
        return
    try:
        waits, waits_until = False, time.monotonic() + _OTHERS_S
        while not _locked(descriptor):
            if not waits:
                notice("another process sends this run to the tracker; waiting for its end")
            waits = True
            if not stopping.wait(_POLL_S):
                waits_until = time.monotonic() + _OTHERS_S
            elif time.monotonic() < waits_until:
                time.sleep(_POLL_S)
            else:
                raise PenstockError("another process sends this run to the tracker; end it first")
        yield
    finally:
        os.close(descriptor)


def follow(
    run: str | Path, opened: Callable[[], Tracker], *, notice: Callable[[str], None], stopping: threading.Event
) -> int:
    """Sends the records of a run until it has ended, or `stopping` is set. Returns the number of records sent.

    `opened` opens the tracker. One that fails while the run is active is opened again every `RETRY_S` seconds;
    `notice` receives each new reason.

    Raises:
        ConfigurationError: The tracker can't be used at all.
        PenstockError: The tracker has failed, and the run has ended.
    """
    folder = RunFolder(Path(run))
    tracker, sent, failure = None, 0, ""
    while True:
        # Records that are written before the end are read after it.
        ends = stopping.is_set() or not folder.services.exists()
        try:
            if tracker is None:
                tracker = opened()
                records = CommittedRecords(folder, tracker.last)
                notice(tracker.place)
            ready = records.read()
            if ready:
                tracker.send(ready)
            sent += len(ready)
            if ends:
                tracker.close()
                break
            pause_s = _POLL_S
        except ConfigurationError:
            raise
        except Exception as error:
            reason, pause_s = foreign_errors.describe(error), RETRY_S
            if ends:
                raise PenstockError(f"the tracker has failed: {reason}; {_REMEDY}") from error
            if reason != failure:
                notice(f"the tracker has failed: {reason}; trying again every {RETRY_S:g} s")
            failure = reason
            if tracker is not None:
                with contextlib.suppress(Exception):
                    tracker.close()
            tracker = None
        stopping.wait(pause_s)
    if records.waiting:
        notice(
            f"{len(records.waiting)} records follow the newest checkpoint and are not sent; a resumed run repeats them"
        )
    return sent


def _locked(descriptor: int) -> bool:
    """Locks a file unless another process has done so. Returns True also if its file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
