"""The last policy version that any process of the run may have used, so that no version is used twice.

`versions.json` holds two lines of `_LINE_BYTES`, each a JSON object with a CRC-32 of the rest of the line. They are
overwritten in turn, one per version, before the version is used. That write is not forced to the disk: the kernel's
page cache outlives a killed process, so a restart on the same boot continues at the very next version. A lost cache (a
power cut, another host) is covered by `reserved`, which is forced to the disk and runs ahead of `used`.

A damaged or missing file skips version numbers but never repeats one. Ages do not jump with versions
(`penstock.replay.store.ages`). Used by the training thread.
"""

import contextlib
import json
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import ConfigurationError
from penstock.machine.files import open_own, sync_data, write_atomically
from penstock.machine.system_errors import in_words
from penstock.types.run import LARGEST_VERSION_JUMP

RESERVED_AHEAD = 100
"""Versions reserved by one forced write, and hence the most that are skipped if the page cache is lost."""

_FORMAT = 2
_LINE_BYTES = 512
"""Size of a line: a disk sector, so that a power cut during a write damages at most one line."""

_CRC_BYTES = 8
_TAIL = '"}\n'
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class _Mark:
    """One line: the last version used, the last one reserved on the disk, and the boot in which it was written."""

    used: int
    reserved: int
    boot: str

    def encode(self) -> bytes:
        """Returns a line of JSON, padded with spaces to `_LINE_BYTES`."""
        fields = {"format": _FORMAT, "used": self.used, "reserved": self.reserved, "boot": self.boot}
        head = json.dumps(fields)[:-1]
        body = head.ljust(_LINE_BYTES - len(', "crc32": "') - _CRC_BYTES - len(_TAIL)) + ', "crc32": "'
        return f"{body}{zlib.crc32(body.encode()):08x}{_TAIL}".encode()

    @classmethod
    def decode(cls, line: bytes) -> "_Mark | None":
        """Returns the mark of a line; None if any bit of the line differs from the written line."""
        try:
            fields = json.loads(line)
            mark = cls(fields["used"], fields["reserved"], fields["boot"])
            return mark if fields["format"] == _FORMAT and mark.encode() == line else None
        except (ValueError, KeyError, TypeError):
            return None


class VersionMark:
    """Record on disk of the versions that were used. Used by one thread.

    Attributes:
        first: First version of this process.
    """

    def __init__(
        self,
        path: Path,
        newest_checkpoint: int | None = None,
        *,
        notice: Callable[[str], None] = lambda event: None,
        boot: str | None = None,
    ) -> None:
        """Reads the record of an earlier process and changes nothing. Raises `ConfigurationError` if it can't be read.

        If the last version used is the version of the checkpoint from which the run resumes, `newest_checkpoint` (None:
        there is none), the run continues at it, because the parameters are the same. `notice` notifies the user of
        damage to the file or of a failed write. `boot` identifies this machine's boot; None: the kernel's.
        """
        self._path, self._notice, self._boot = path, notice, _boot_id() if boot is None else boot
        self._file: int | None = None
        self._line, self._reserved, self._failed = 0, -1, False
        try:
            data = path.read_bytes() if path.exists() else None
        except OSError as error:
            raise ConfigurationError(f"can't read {path}: {in_words(error, path)}") from None
        known = -1 if newest_checkpoint is None else newest_checkpoint
        self._used, damage = self._last_used(data, known)
        if self._used < known:
            damage = damage or f"ends at version {self._used}, and the newest checkpoint has {known}"
        if damage and self._used < max(known, 0):
            self._used = max(known, 0) + LARGEST_VERSION_JUMP
        self.first = known if newest_checkpoint is not None and self._used == known else self._used + 1
        if damage:
            notice(f"{path} {damage}; the run continues at version {self.first}, above all versions possibly used")

    def use(self, version: int) -> None:
        """Records that a version is used. Must be called before any data of the version leaves this process.

        It costs one write to the page cache, and one to the disk every `RESERVED_AHEAD` versions. If a write fails, the
        user is notified and the next version's write supersedes it. A full or read-only disk does not end training.
        """
        self._used = max(self._used, version)
        try:
            if self._file is None or version > self._reserved:
                self._reserve(version + RESERVED_AHEAD)
            else:
                self._write_line(self._reserved)
            self._failed = False
        except OSError as error:
            self._note_failure(error)

    def settle(self) -> None:
        """Forces the last version to the disk at a clean end, so that not even a power cut skips a number."""
        try:
            self._reserve(self._used)
        except OSError as error:
            self._note_failure(error)
        self.close()

    def close(self) -> None:
        """Closes the file and leaves its content as a kill would."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _last_used(self, data: bytes | None, known: int) -> tuple[int, str]:
        """Returns the last version that may have been used (-1: none or unknown), and the damage to the file.

        `data` is the file's content (None: there is no file), and `known` was certainly used (-1: none).
        """
        if data is None:
            return -1, "" if known < 0 else "is missing"
        if len(data) != 2 * _LINE_BYTES:
            return _plain_number(data)
        marks = [_Mark.decode(data[:_LINE_BYTES]), _Mark.decode(data[_LINE_BYTES:])]
        sound = [mark for mark in marks if mark is not None]
        if not sound:
            return -1, "is damaged"
        newest = max(sound, key=lambda mark: mark.used)
        # The older line is overwritten first, so that a torn write does not damage the newest.
        self._line = 1 - marks.index(newest)
        reserved = max(mark.reserved for mark in sound)
        if len(sound) < 2:
            return reserved, "is damaged in one of its two lines"
        lost_cache = not self._boot or any(mark.boot != self._boot for mark in sound)
        return (reserved if lost_cache else newest.used), ""

    def _reserve(self, reserved: int) -> None:
        """Writes both lines and forces them to the disk."""
        if self._file is None:
            if not self._path.exists() or self._path.stat().st_size != 2 * _LINE_BYTES:
                write_atomically(self._path, 2 * _Mark(self._used, reserved, self._boot).encode())
            self._file = open_own(self._path, os.O_WRONLY)
        self._write_line(reserved)
        self._write_line(reserved)
        sync_data(self._file)
        self._reserved = reserved

    def _write_line(self, reserved: int) -> None:
        assert self._file is not None
        os.pwrite(self._file, _Mark(self._used, reserved, self._boot).encode(), self._line * _LINE_BYTES)
        self._line = 1 - self._line

    def _note_failure(self, error: OSError) -> None:
        if not self._failed:
            self._notice(
                f"can't record the version in use in {self._path}: {in_words(error, self._path)}, before the learner is"
                " restarted"
            )
        self._failed = True


def _plain_number(data: bytes) -> tuple[int, str]:
    """Decodes the previous format, one number not below any version used. Returns as `VersionMark._last_used`."""
    with contextlib.suppress(ValueError):
        content = json.loads(data)
        if isinstance(content, int) and not isinstance(content, bool) and content >= 0:
            return content, ""
    return -1, "is damaged"


def _boot_id() -> str:
    """Returns the identifier of this machine's boot; empty if there is none, which counts as a lost page cache."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
