"""Reports a disk that can't be written while a service goes on: its mapped pages keep working in memory.

A thread writes, flushes and removes a small file in the service's folder every few seconds. The log has a line when the
fault begins and one when it ends. `penstock_storage_fails` is 1 in between, and the gRPC health of the service
`penstock.storage` is NOT_SERVING. The health of the service itself stays SERVING, so that its clients go on.
"""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

from penstock.telemetry import logs, metrics

_INTERVAL_S = 5.0
_PATIENCE_S = 10.0
"""A disk that takes longer for the small file does not answer. Until it does, no other file is written."""

_PROBE_FILE = ".disk-watch"
_PROBE = b"\0" * 4096


class DiskWatch:
    """Watches the disk of one folder from a thread of its own until it is closed."""

    def __init__(self, folder: Path, told: Callable[[bool], object]) -> None:
        """Begins to watch.

        Args:
            folder: Where the file is written; it exists.
            told: Called from the watch's thread with whether the disk can be written: first at the start, then at each
                change.
        """
        self._folder, self._told = folder, told
        self._closed, self._lock = threading.Event(), threading.Lock()
        threading.Thread(target=self._watch, name="disk watch", daemon=True).start()

    def close(self) -> None:
        """Ends the watch; `told` is not called any more."""
        with self._lock:
            self._closed.set()

    def _watch(self) -> None:
        sound: bool | None = None
        while not self._closed.is_set():
            fault, probing = _probe_within(self._folder, _PATIENCE_S)
            if sound != (fault == ""):
                self._report(fault, first=sound is None)
                sound = fault == ""
            probing.join()
            self._closed.wait(_INTERVAL_S)

    def _report(self, fault: str, *, first: bool) -> None:
        with self._lock:
            if self._closed.is_set():
                return
            metrics.STORAGE_FAILS.set(bool(fault))
            self._told(not fault)
        if fault:
            logs.note("the disk can't be written, and the service goes on", folder=str(self._folder), reason=fault)
        elif not first:
            logs.note("the disk can be written again", folder=str(self._folder))


def _probe_within(folder: Path, patience_s: float) -> tuple[str, threading.Thread]:
    """What is wrong with a folder's disk, "" if nothing; and the thread that looks, which a hanging disk keeps."""
    found: list[str] = []
    probing = threading.Thread(target=lambda: found.append(_probe(folder)), name="disk probe", daemon=True)
    probing.start()
    probing.join(patience_s)
    return found[0] if found else f"it has not answered for {patience_s:g} s", probing


def _probe(folder: Path) -> str:
    path = folder / _PROBE_FILE
    try:
        if os.statvfs(folder).f_flag & os.ST_RDONLY:
            return os.strerror(errno.EROFS)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                # A disk may take a part of it and no more.
                if os.write(descriptor, _PROBE) < len(_PROBE):
                    return os.strerror(errno.ENOSPC)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        finally:
            path.unlink(missing_ok=True)
    except OSError as error:
        return error.strerror or str(error)
    return ""
