"""Record with two copies in a mapped file.

A process may be killed at any moment, and a bit may flip. Each copy therefore has a checksum. Writes go to the first
copy, then to the second, so one copy is always intact, and a damaged copy is repaired from the other. A copy of zeros
is invalid.
"""

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import DamagedFile

COUNTED_BYTES = 16
"""Bytes of the checksum and the sequence with which every record begins."""

_CHECKSUM_BYTES = 8


class KeptTwice:
    """Record with two copies in a file.

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
