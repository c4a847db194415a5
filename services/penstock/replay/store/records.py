"""Records file of a store: watermarks, the session record and the record of ages.

Each watermark has two copies with checksums, as `kept_twice` describes. Opening the file repairs damaged copies.
`ring_store`, `restoring` and readers of another process's records use it.
"""

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import DamagedFile
from penstock.replay.store.kept_twice import KeptTwice, make_record
from penstock.replay.store.layout import (
    RECORDS_BYTES,
    RECORDS_FILE,
    WATERMARK,
    ages_copies,
    session_copies,
    watermark_copies,
)
from penstock.replay.store.session_record import SessionRecord, session_of


class Records:
    """Records in one mapped file.

    Attributes:
        session: Session record.
        repaired: Number of damaged copies that were rewritten from the other copy.
    """

    def __init__(self, memory: NDArray[np.uint8], *, new: bool) -> None:
        """Reads the records in a mapped file <uint8>[RECORDS_BYTES], or initializes those of a new store.

        Raises:
            DamagedFile: Both copies of a record are damaged.
        """
        self._marks_in_file = watermark_copies(memory)
        if new:
            make_record(ages_copies(memory))
            self._marks_in_file[...] = _NO_MARK
            make_record(session_copies(memory))
        session, ages = KeptTwice(session_copies(memory)), KeptTwice(ages_copies(memory))
        self._marks, damaged_marks = read_watermarks(memory)
        self._marks_in_file[...] = self._marks
        self.repaired = damaged_marks
        for kept in (session, ages):
            self.repaired += kept.damaged
            if not kept.alike:
                kept.save()
        self.session = SessionRecord(session)

    def watermark(self, slot: int) -> tuple[int, int]:
        """Returns the last incarnation of a slot that sent segments, and its last sequence; zeros if there is none."""
        mark = self._marks[slot]
        return int(mark["incarnation"]), int(mark["sequence"])

    def set_watermark(self, slot: int, incarnation: int, sequence: int) -> None:
        """Writes a slot's watermark. After a kill during the write, the previous watermark or this one is read."""
        mark = (incarnation, _mark_checksum(incarnation, sequence), sequence)
        self._marks[slot] = mark
        self._marks_in_file[0, slot] = mark
        self._marks_in_file[1, slot] = mark


def read_watermarks(records: NDArray[np.uint8]) -> tuple[NDArray[Any], int]:
    """Reads the watermarks <WATERMARK>[MAX_SLOTS] in <uint8>[RECORDS_BYTES].

    Returns:
        The watermarks, and the number of damaged copies.

    Raises:
        DamagedFile: Both copies of a watermark are damaged.
    """
    copies = watermark_copies(records).copy()
    sound = copies == _NO_MARK
    used = copies[~sound]
    checksums = map(_mark_checksum, used["incarnation"].tolist(), used["sequence"].tolist())
    sound[~sound] = np.fromiter(checksums, np.uint32, used.size) == used["checksum"]
    if not sound.any(axis=0).all():
        raise DamagedFile("both copies of a watermark are not what was written: their checksums differ")
    # If both copies are intact, the first is the newer one.
    result: NDArray[Any] = np.where(sound[0], copies[0], copies[1])
    return result, int(np.count_nonzero(~sound))


def read_identity(folder: Path) -> int:
    """Returns the identity of the store in a folder; 0 if it can't be read."""
    try:
        content = np.fromfile(folder / RECORDS_FILE, np.uint8)
        return session_of(content).identity if content.size == RECORDS_BYTES else 0
    except (OSError, DamagedFile):
        return 0


def _mark_checksum(incarnation: int, sequence: int) -> int:
    return zlib.crc32(struct.pack("<IQ", incarnation, sequence))


_NO_MARK = np.array((0, _mark_checksum(0, 0), 0), WATERMARK)
