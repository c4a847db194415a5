"""Records file of a store: watermarks, the session record and the record of ages.

A process may be killed at any moment, and a bit may flip. Each record therefore has two copies with checksums. Writes
go to the first copy, then to the second, so one copy is always intact, and a damaged copy is repaired from the other
when the file is opened. A copy of zeros is invalid.

`ring_store`, `ages` and the parts of `replay.buffer` change the records under the buffer's lock. Other processes read
copies of the file.
"""

import operator
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import DamagedFile
from penstock.replay.store.layout import (
    RECORDS_BYTES,
    RECORDS_FILE,
    SESSION,
    WATERMARK,
    ages_copies,
    session_copies,
    watermark_copies,
)

_CHECKSUM_BYTES = 8
_COUNTED_BYTES = 16
"""Bytes of the checksum and the sequence with which the session record and the ages begin."""

_FIELDS = SESSION.names[2:] if SESSION.names else ()
_VALUES = struct.Struct("<" + "".join("q" if SESSION[name].kind == "i" else "Q" for name in _FIELDS))
_values_of = operator.attrgetter(*_FIELDS)


class KeptTwice:
    """Session record or record of ages, with its two copies in the file.

    Attributes:
        record: <SESSION or AGES>[1] record in this process's memory; `save` writes it.
        bytes: Bytes of `record`. Writing them takes a tenth of the time of NumPy's assignments.
        damaged: Number of copies whose checksum did not match.
        alike: Whether both copies are equal. They differ after a kill between their writes.
    """

    def __init__(self, copies: NDArray[Any]) -> None:
        """Reads the newest intact copy of a mapped <SESSION>[2] or <AGES>[2]. Raises `DamagedFile` if there is none."""
        sound = [copy for copy in copies.copy() if int(copy["checksum"]) == _checksum(copy)]
        if not sound:
            raise DamagedFile("both copies of a record are not what was written: their checksums differ")
        newest = max(sound, key=lambda copy: int(copy["sequence"]))
        self.record: NDArray[Any] = np.array([newest], copies.dtype)
        self.damaged, self.alike = len(copies) - len(sound), copies[0].tobytes() == copies[1].tobytes()
        # Records are saved several times per batch and window. A save through these views takes a microsecond.
        self.bytes = self.record.view(np.uint8).data
        self._words = self.bytes.cast("Q")
        self._in_file = [copies[index : index + 1].view(np.uint8).data for index in range(len(copies))]

    def save(self) -> None:
        """Increments the record's sequence and writes the record to both copies, one after the other."""
        self._words[1] += 1
        self._words[0] = zlib.crc32(self.bytes[_CHECKSUM_BYTES:])
        for copy in self._in_file:
            copy[:] = self.bytes


def make_record(copies: NDArray[Any]) -> None:
    """Initializes both copies, <SESSION>[2] or <AGES>[2], to an empty record."""
    record = np.zeros(2, copies.dtype)
    record["checksum"] = _checksum(record[0])
    copies[...] = record


def _checksum(record: Any) -> int:
    """Returns the CRC-32 of a record without its checksum field. It is not 0 for zeros."""
    return zlib.crc32(record.tobytes()[_CHECKSUM_BYTES:])


class SessionRecord:
    """Session record as numbers. Changes reach the file with `save`.

    Attributes:
        session: Identifier of the learner's session; 0 before the first.
        next_batch: Number of the first uncommitted batch.
        version: Version of the policy after the last commit, or at the start of the session; 0 before the first.
        next_key: Key of the next segment.
        inserted: Number of segments stored since the store was created.
        late: Number of segments that arrived too late to be fresh, since the store was created.
        identity: Random number that distinguishes the store from others.
        next_lease: Number of the first batch that was never leased. It is one too low after a kill in a lease.
    """

    session: int
    next_batch: int
    version: int
    next_key: int
    inserted: int
    late: int
    identity: int
    next_lease: int

    def __init__(self, kept: KeptTwice) -> None:
        self._kept = kept
        for name, value in zip(_FIELDS, _VALUES.unpack_from(kept.bytes, _COUNTED_BYTES), strict=True):
            setattr(self, name, value)

    @property
    def used(self) -> bool:
        """Whether the store ever had a learner or a segment."""
        return bool(self.session or self.inserted)

    def save(self) -> None:
        """Writes the record. After a kill during the write, the former record or this one is read."""
        _VALUES.pack_into(self._kept.bytes, _COUNTED_BYTES, *_values_of(self))
        self._kept.save()


def session_of(records: NDArray[np.uint8]) -> SessionRecord:
    """Returns a copy of the session record in <uint8>[RECORDS_BYTES].

    Raises:
        DamagedFile: Both copies of the record are damaged.
    """
    return SessionRecord(KeptTwice(session_copies(records)))


class Records:
    """Records in one mapped file.

    Attributes:
        session: Session record.
        repaired: Number of damaged copies that were rewritten from the other copy.
    """

    def __init__(self, memory: NDArray[np.uint8], *, new: bool) -> None:
        """Reads the records in a mapped file <uint8>[RECORDS_BYTES], or initializes the records of a new store.

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
