"""Detects that a service's disk can't be written. The service keeps running, because mapped pages work in memory.

The log has a line when the fault begins and one when it ends. In between, `penstock_storage_fails` is 1, and the gRPC
health of the service `penstock.storage` is NOT_SERVING. The health of the service itself stays SERVING, so that its
clients continue. `penstock_storage_free_bytes` tells before the disk is full.
"""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

from penstock.machine.files import open_own
from penstock.machine.system_errors import disk_fault, in_words
from penstock.telemetry import logs, metrics

_INTERVAL_S = 5.0
_PATIENCE_S = 10.0
"""Seconds for the small file after which the disk counts as hung. Until the disk answers, no other file is written."""

_PROBE_FILE = ".disk-watch"
_PROBE = b"\0" * 4096


class DiskWatch:
    """A watch that writes, flushes and removes a small file in one folder every few seconds, on its own thread."""

    def __init__(self, folder: Path, noted: Callable[[bool], object]) -> None:
        """Starts the watch on an existing folder.

        `noted` receives whether the disk can be written, at the start and at each change, on the watch's thread.
        """
        self._folder, self._noted = folder, noted
        self._closed, self._lock = threading.Event(), threading.Lock()
        threading.Thread(target=self._watch, name="disk watch", daemon=True).start()

    def close(self) -> None:
        """Ends the watch; `noted` is not called after this returns."""
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
            self._noted(not fault)
        if fault:
            logs.note("disk not writable, service continues", folder=str(self._folder), reason=fault)
        elif not first:
            logs.note("disk writable again", folder=str(self._folder))


def _probe_within(folder: Path, patience_s: float) -> tuple[str, threading.Thread]:
    """Returns the fault of a folder's disk ("" if none), and the probing thread, which runs until the disk answers."""
    found: list[str] = []
    probing = threading.Thread(target=lambda: found.append(_probe(folder)), name="disk probe", daemon=True)
    probing.start()
    probing.join(patience_s)
    return found[0] if found else f"no answer for {patience_s:g} s", probing


def _probe(folder: Path) -> str:
    path = folder / _PROBE_FILE
    try:
        disk = os.statvfs(folder)
        metrics.STORAGE_SIZE.labels(str(folder)).set(disk.f_blocks * disk.f_frsize)
        metrics.STORAGE_FREE.labels(str(folder)).set(disk.f_bavail * disk.f_frsize)
        if disk.f_flag & os.ST_RDONLY:
            return disk_fault(folder)
        try:
            # A link that another user left must not be followed.
            path.unlink(missing_ok=True)
            with os.fdopen(open_own(path, os.O_WRONLY | os.O_CREAT), "wb", buffering=0) as file:
                # A full disk may accept only a part.
                if file.write(_PROBE) < len(_PROBE):
                    return disk_fault(folder) or os.strerror(errno.ENOSPC)
                os.fsync(file.fileno())
        finally:
            path.unlink(missing_ok=True)
    except OSError as error:
        return in_words(error, folder)
    return ""
