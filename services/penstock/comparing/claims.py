"""Claims of trials: which process trains a trial of a study, on any host that shares its folder.

A claim is a file in the trial's folder. Its process renews it. Another process takes it over once it is released, once
its process has died on this machine, or once it has not been renewed for `LEASE_S` by the clock of the observer. Only
times by one clock are compared, because the clocks of hosts differ.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from penstock.machine.files import make_folder, write_json

LEASE_S = 120.0
"""Seconds without a renewal after which a claim is over: longer than a network file system stalls or a run starts, and
short beside a trial."""

_RENEWAL_S = 10.0


class Claims:
    """The claims of one process. Used by one thread. All methods raise `OSError` if a file can't be used."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._token, self._beat = clock, os.urandom(16).hex(), 0
        self._held: dict[Path, float] = {}
        self._seen: dict[Path, tuple[str, float]] = {}

    def take(self, folder: Path) -> bool:
        """Claims the trial in a folder; returns whether it was free. Call it under the lock of the study."""
        if folder in self._held or not self._is_free(folder):
            return False
        make_folder(folder)
        self._write(folder)
        return True

    def renew(self) -> list[Path]:
        """Renews claims that are due, and returns the folders of trials that another process has taken over."""
        now, lost = self._clock(), []
        for folder in [folder for folder, at in self._held.items() if now - at >= _RENEWAL_S]:
            if json.loads(_text(folder) or "{}").get("token") == self._token:
                self._write(folder)
            else:
                del self._held[folder]
                lost.append(folder)
        return lost

    def release(self, folder: Path) -> None:
        """Gives up a claim, so that any process may take the trial at once."""
        if self._held.pop(folder, None) is not None:
            _file(folder).unlink(missing_ok=True)

    def _is_free(self, folder: Path) -> bool:
        text, now = _text(folder), self._clock()
        if not text or _has_died(json.loads(text)):
            return True
        before, since = self._seen.get(folder, ("", now))
        self._seen[folder] = (text, since if text == before else now)
        return text == before and now - since > LEASE_S

    def _write(self, folder: Path) -> None:
        self._beat += 1
        write_json(_file(folder), {"token": self._token, "beat": self._beat, **_process(os.getpid())})
        self._held[folder] = self._clock()


def _file(folder: Path) -> Path:
    return folder / "claim.json"


def _text(folder: Path) -> str:
    try:
        return _file(folder).read_text()
    except FileNotFoundError:
        return ""


def _process(pid: int) -> dict[str, object]:
    """Returns what identifies a process: its machine since the last boot, its container, its ID and its start.

    Without Linux, or if there is no such process, only the ID is known.
    """
    found: dict[str, object] = {"pid": pid}
    with contextlib.suppress(OSError):
        # The name of the program, in parentheses, may contain spaces.
        found["start"] = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        found["machine"] = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        found["container"] = str(Path("/proc/self/ns/pid").readlink())
    return found


def _has_died(claim: dict[str, object]) -> bool:
    """Returns whether the process of a claim was on this machine and has certainly died."""
    own = _process(os.getpid())
    if "container" not in own or any(claim.get(name) != own[name] for name in ("machine", "container")):
        return False
    return _process(int(str(claim["pid"]))).get("start") != claim["start"]
