"""Staging areas: shared memory in which actors on the service's host place their windows, one file per stream.

A window is then copied twice, to its staging slot and from there to its rows, and passes through no socket. Actors
never map the rows themselves, because an actor that was paused could write to rows that now belong to another. Data in
a staging slot is as untrusted as data in a message. It is checked in the rows, where no client can change it any more.
The message that names the staging slot has a checksum of its bytes. A window that does not match is refused, and the
actor sends it again in messages.

Two hosts may share a file but not memory, as on NFS. Each side therefore writes a random number to the first page, and
no staging slot is used before the other side has read it there.
"""

import mmap
import os
import re
import secrets
import stat
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigurationError
from penstock.machine.files import PRIVATE_FILE, allocate_bytes, make_folder
from penstock.replay.store.layout import PAGE, whole_pages
from penstock.types.replay import StagingOffer

SLOTS = 4
"""Windows that an actor may place before they are stored."""

_FOLDER = "staging"
_NAME_BYTES = 16
_MAGIC = 0x3147415453535450
_WORDS = np.dtype([("magic", "<u8"), ("server", "<u8"), ("client", "<u8")])
"""Layout of the first page."""


class StagingAreas:
    """Staging areas of one service, within a budget of bytes."""

    def __init__(self, store_folder: Path | None, max_bytes: int) -> None:
        """Removes files that a killed service left. Without a folder, or with `max_bytes` 0, there are no areas."""
        self._folder = None if store_folder is None or max_bytes == 0 else store_folder.resolve() / _FOLDER
        self._free_bytes = max_bytes
        if self._folder is not None and self._folder.is_symlink():
            self._folder.unlink()
        for left in self._folder.glob("*") if self._folder is not None else ():
            left.unlink()

    def allocate(self, window_bytes: int) -> "StagingArea | None":
        """Returns an area for windows of this size in bytes; None if there is no room.

        Without an area, messages carry the windows.
        """
        slot_bytes = whole_pages(window_bytes)
        size = _area_bytes(slot_bytes)
        if self._folder is None or size > self._free_bytes:
            return None
        path = self._folder / secrets.token_hex(_NAME_BYTES)
        try:
            make_folder(self._folder)
            memory = _create(path, size)
        except OSError:
            path.unlink(missing_ok=True)
            return None
        self._free_bytes -= size
        return StagingArea(self, StagingOffer(str(path), slot_bytes), memory)

    def _take_back(self, size: int) -> None:
        self._free_bytes += size


class StagingArea:
    """The service's side of one area.

    Attributes:
        slots: <uint8>[SLOTS, slot_bytes] staging slots.
    """

    def __init__(self, areas: StagingAreas, offer: StagingOffer, memory: NDArray[np.uint8]) -> None:
        self._areas, self.offer = areas, offer
        self._words, self.slots = _parts(memory)
        self._words["magic"] = _MAGIC

    def answer(self, number: int) -> int:
        """Writes the service's number and returns it. Returns 0 if the client's number can't be read here."""
        if int(self._words["client"][0]) != number or not number:
            return 0
        self._words["server"] = answer = _random_number()
        return answer

    def close(self) -> None:
        """Removes the file. The memory is unmapped when its last view is released."""
        Path(self.offer.path).unlink(missing_ok=True)
        self._areas._take_back(_area_bytes(self.offer.slot_bytes))


class StagingSlots:
    """The actor's side of one area, to be used once `is_shared` returns true.

    Attributes:
        slots: <uint8>[SLOTS, slot_bytes] staging slots.
        number: Random number that the actor has written for the service to read.
    """

    def __init__(self, offer: StagingOffer) -> None:
        """Maps the area and writes the actor's number.

        Raises:
            ConfigurationError: This process can't see or write the file, or the file is not a staging area.
        """
        try:
            memory = _open(offer)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"can't map {offer.path}: {error}") from None
        self._words, self.slots = _parts(memory)
        self.number = _random_number()
        self._words["client"] = self.number

    def is_shared(self, answer: int) -> bool:
        """Returns whether the service has read this side's number and its answer is visible here."""
        return answer != 0 and int(self._words["server"][0]) == answer


def _random_number() -> int:
    return secrets.randbits(63) | 1


def _area_bytes(slot_bytes: int) -> int:
    return PAGE + SLOTS * slot_bytes


def _parts(memory: NDArray[np.uint8]) -> tuple[NDArray[np.void], NDArray[np.uint8]]:
    """Returns <_WORDS>[1] of the first page, and the staging slots."""
    return memory[: _WORDS.itemsize].view(_WORDS), memory[PAGE:].reshape(SLOTS, -1)


def _create(path: Path, size: int) -> NDArray[np.uint8]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
    try:
        allocate_bytes(descriptor, size)
        return np.frombuffer(mmap.mmap(descriptor, size), np.uint8)
    finally:
        os.close(descriptor)


def _open(offer: StagingOffer) -> NDArray[np.uint8]:
    """Maps an area that a service has created. Raises OSError or ValueError for any other file.

    Without these checks, a server at the service's address could name any file of this user and have it overwritten.
    """
    path, size = Path(offer.path), _area_bytes(offer.slot_bytes)
    if path.parent.name != _FOLDER or not re.fullmatch(f"[0-9a-f]{{{2 * _NAME_BYTES}}}", path.name):
        raise ValueError("no staging area is called so")
    if os.path.realpath(path) != offer.path:
        raise ValueError("a link is on the way to it")
    # Without O_NONBLOCK, opening a FIFO in its place would block.
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        file = os.fstat(descriptor)
        if not stat.S_ISREG(file.st_mode) or file.st_nlink != 1:
            raise ValueError("it is not a regular file with one name")
        if file.st_uid not in (os.geteuid(), path.parent.stat().st_uid):
            raise ValueError("it belongs to another user")
        if offer.slot_bytes < 1 or offer.slot_bytes % PAGE or file.st_size != size:
            raise ValueError(f"it has {file.st_size} bytes, and {size} were offered")
        if os.pread(descriptor, _WORDS.itemsize, 0)[: _WORDS["magic"].itemsize] != _MAGIC.to_bytes(8, "little"):
            raise ValueError("it does not begin as a staging area, or what the service writes there is not seen here")
        return np.frombuffer(mmap.mmap(descriptor, size), np.uint8)
    finally:
        os.close(descriptor)
