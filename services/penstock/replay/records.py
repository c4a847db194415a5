"""The small records of a store: watermarks, the learner's session and the counters, each twice and with a checksum.

A process may be killed at any moment, and a bit may flip. So each record is written into its first copy, then into its
second: one of them is always whole, and a copy that is damaged is repaired from the other. Zeros are no record.

Called by `ring_store`, `ages`, `restoring`, and by all that map the records of another process.
"""

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import DamagedFile
from penstock.replay.layout import (
    RECORDS_BYTES,
    RECORDS_FILE,
    WATERMARK,
    ages_copies,
    session_copies,
    watermark_copies,
)

_CHECKSUM_BYTES = 8


class KeptTwice:
    """A record of which a file has two copies.

    Attributes:
        record: <SESSION or AGES>[1] of this process; `save` writes it.
        damaged: Copies that were not what had been written.
        alike: Whether both copies are the same; they are not after a kill between their writes.
    """

    def __init__(self, copies: NDArray[Any]) -> None:
        """Reads it from <SESSION>[2] or <AGES>[2], mapped. Raises `DamagedFile` if both copies are damaged."""
        sound = [copy for copy in copies.copy() if int(copy["checksum"]) == _checksum(copy)]
        if not sound:
            raise DamagedFile("both copies of a record are not what was written: their checksums differ")
        newest = max(sound, key=lambda copy: int(copy["sequence"]))
        self.record: NDArray[Any] = np.array([newest], copies.dtype)
        self.damaged, self.alike = len(copies) - len(sound), copies[0].tobytes() == copies[1].tobytes()
        # Written some times for each batch and window: through these it takes a microsecond.
        self._bytes = self.record.view(np.uint8).data
        self._words = self._bytes.cast("Q")
        self._in_file = [copies[index : index + 1].view(np.uint8).data for index in range(len(copies))]

    def save(self) -> None:
        """Writes the record with its next sequence into both copies, one after the other."""
        self._words[1] += 1
        self._words[0] = zlib.crc32(self._bytes[_CHECKSUM_BYTES:])
        for copy in self._in_file:
            copy[:] = self._bytes


class Records:
    """The records in one mapped file.

    Attributes:
        session: <SESSION>[1] of this process; `save_session` writes it.
        repaired: Copies that did not have what was written, and were written again from the other copy.
    """

    def __init__(self, memory: NDArray[np.uint8], *, new: bool) -> None:
        """Reads what an earlier process left, or makes the records of a new store.

        Args:
            memory: <uint8>[RECORDS_BYTES] mapped.
            new: Whether there is nothing in it yet.

        Raises:
            DamagedFile: Both copies of a record are damaged.
        """
        self.memory = memory
        self._marks_in_file = watermark_copies(memory)
        if new:
            make_record(ages_copies(memory))
            self._marks_in_file[...] = _NO_MARK
            make_record(session_copies(memory))
        self._session, ages = KeptTwice(session_copies(memory)), KeptTwice(ages_copies(memory))
        self._marks, damaged_marks = read_watermarks(memory)
        self._marks_in_file[...] = self._marks
        self.repaired = damaged_marks
        for kept in (self._session, ages):
            self.repaired += kept.damaged
            if not kept.alike:
                kept.save()
        self.session: NDArray[Any] = self._session.record

    def save_session(self) -> None:
        """Writes `session`; killed before the end, what was saved before or this is found again."""
        self._session.save()

    def watermark(self, slot: int) -> tuple[int, int]:
        """The last incarnation of a slot that sent segments, and its last sequence; zeros: none."""
        mark = self._marks[slot]
        return int(mark["incarnation"]), int(mark["sequence"])

    def set_watermark(self, slot: int, incarnation: int, sequence: int) -> None:
        """Writes a slot's watermark; killed before the end, the one before or this is found again."""
        mark = (incarnation, _mark_checksum(incarnation, sequence), sequence)
        self._marks[slot] = mark
        self._marks_in_file[0, slot] = mark
        self._marks_in_file[1, slot] = mark


def make_record(copies: NDArray[Any]) -> None:
    """Makes a record of zeros, <SESSION>[2] or <AGES>[2], where there is none."""
    record = np.zeros(2, copies.dtype)
    record["checksum"] = _checksum(record[0])
    copies[...] = record


def session_of(records: NDArray[np.uint8]) -> NDArray[Any]:
    """<SESSION>[1] the session record in <uint8>[RECORDS_BYTES]; a copy. Raises `DamagedFile`: there is none."""
    return KeptTwice(session_copies(records)).record


def read_watermarks(records: NDArray[np.uint8]) -> tuple[NDArray[Any], int]:
    """<WATERMARK>[MAX_SLOTS] in <uint8>[RECORDS_BYTES], and how many copies of one are damaged.

    Raises:
        DamagedFile: Both copies of a watermark are.
    """
    copies = watermark_copies(records).copy()
    sound = copies == _NO_MARK
    used = copies[~sound]
    checksums = map(_mark_checksum, used["incarnation"].tolist(), used["sequence"].tolist())
    sound[~sound] = np.fromiter(checksums, np.uint32, used.size) == used["checksum"]
    if not sound.any(axis=0).all():
        raise DamagedFile("both copies of a watermark are not what was written: their checksums differ")
    # The first copy is written first.
    result: NDArray[Any] = np.where(sound[0], copies[0], copies[1])
    return result, int(np.count_nonzero(~sound))


def read_identity(folder: Path) -> int:
    """The number that names the store in a folder; 0 if there is none that can be read."""
    try:
        content = np.fromfile(folder / RECORDS_FILE, np.uint8)
        return int(session_of(content)["identity"][0]) if content.size == RECORDS_BYTES else 0
    except (OSError, DamagedFile):
        return 0


def _mark_checksum(incarnation: int, sequence: int) -> int:
    return zlib.crc32(struct.pack("<IQ", incarnation, sequence))


def _checksum(record: Any) -> int:
    """CRC-32 of all of a record but the checksum; that of zeros is not zero."""
    return zlib.crc32(record.tobytes()[_CHECKSUM_BYTES:])


_NO_MARK = np.array((0, _mark_checksum(0, 0), 0), WATERMARK)
