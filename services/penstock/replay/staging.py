"""Where actors on the service's own host lay their windows: a file beside the store for each stream, mapped by both.

A window is then copied twice, into its slot and from there into its rows, and no socket carries it. Actors never see
the rows themselves: one that was paused would wake up in somebody else's. What lies in a slot is taken for as
untrusted as what comes in a message: it is checked in the rows, where nobody can change it any more. The message that
names the slot has a checksum of its bytes: a window that the service reads otherwise is refused, and sent again in
messages.

Two hosts may see one file and not one memory, as on NFS. So each side writes a random number into the first page, and
no slot is used before the other has read it there. `rpc.replay_servicer` makes the areas, `rpc.segment_sink` fills
their slots.
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
from penstock.replay.layout import PAGE, whole_pages
from penstock.types import StagingOffer

SLOTS = 4
"""Windows that an actor may keep until they are stored."""

_FOLDER = "staging"
_NAME_BYTES = 16
_MAGIC = 0x3147415453535450
_WORDS = np.dtype([("magic", "<u8"), ("server", "<u8"), ("client", "<u8")])
"""What the first page holds."""


class StagingAreas:
    """All areas of one service, within a budget of bytes."""

    def __init__(self, store_folder: Path | None, max_bytes: int) -> None:
        """Removes what a killed service left. Without a folder, or a byte to give, there are no areas."""
        self._folder = None if store_folder is None or max_bytes == 0 else store_folder.resolve() / _FOLDER
        self._free_bytes = max_bytes
        for left in self._folder.glob("*") if self._folder is not None else ():
            left.unlink()

    def allocate(self, window_bytes: int) -> "StagingArea | None":
        """An area for windows of so many bytes; None where there is no room for one, and windows come in messages."""
        slot_bytes = whole_pages(window_bytes)
        size = _area_bytes(slot_bytes)
        if self._folder is None or size > self._free_bytes:
            return None
        path = self._folder / secrets.token_hex(_NAME_BYTES)
        try:
            self._folder.mkdir(exist_ok=True)
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
        slots: <uint8>[SLOTS, slot_bytes].
    """

    def __init__(self, areas: StagingAreas, offer: StagingOffer, memory: NDArray[np.uint8]) -> None:
        self._areas, self.offer = areas, offer
        self._words, self.slots = _parts(memory)
        self._words["magic"] = _MAGIC

    def answer(self, number: int) -> int:
        """The service's number, written at once; 0 if the client's is not the one that can be read here."""
        if int(self._words["client"][0]) != number or not number:
            return 0
        self._words["server"] = answer = _random_number()
        return answer

    def close(self) -> None:
        """Removes the file. Memory that is still looked at stays until nobody does."""
        Path(self.offer.path).unlink(missing_ok=True)
        self._areas._take_back(_area_bytes(self.offer.slot_bytes))


class StagingSlots:
    """The actor's side: the same memory, once `is_shared` says so.

    Attributes:
        slots: <uint8>[SLOTS, slot_bytes].
        number: What the actor has written for the service to read.
    """

    def __init__(self, offer: StagingOffer) -> None:
        """Maps the area and writes the actor's number.

        Raises:
            ConfigurationError: This process does not see that file, may not write there, or it is no staging area.
        """
        try:
            memory = _open(offer)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"can't map {offer.path}: {error}") from None
        self._words, self.slots = _parts(memory)
        self.number = _random_number()
        self._words["client"] = self.number

    def is_shared(self, answer: int) -> bool:
        """Whether the service has read this side's number, and its answer can be read here."""
        return answer != 0 and int(self._words["server"][0]) == answer


def _random_number() -> int:
    return secrets.randbits(63) | 1


def _area_bytes(slot_bytes: int) -> int:
    return PAGE + SLOTS * slot_bytes


def _parts(memory: NDArray[np.uint8]) -> tuple[NDArray[np.void], NDArray[np.uint8]]:
    """<_WORDS>[1] of the first page, and the slots."""
    return memory[: _WORDS.itemsize].view(_WORDS), memory[PAGE:].reshape(SLOTS, -1)


def _create(path: Path, size: int) -> NDArray[np.uint8]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o660)
    try:
        # A mapped file with holes would meet a full disk as a bus error.
        os.posix_fallocate(descriptor, 0, size)
        return np.frombuffer(mmap.mmap(descriptor, size), np.uint8)
    finally:
        os.close(descriptor)


def _open(offer: StagingOffer) -> NDArray[np.uint8]:
    """The memory of an area that a service has made. Raises OSError or ValueError for any other file.

    Whoever answers at the service's address could else name any file of this user, and have it overwritten.
    """
    path, size = Path(offer.path), _area_bytes(offer.slot_bytes)
    if path.parent.name != _FOLDER or not re.fullmatch(f"[0-9a-f]{{{2 * _NAME_BYTES}}}", path.name):
        raise ValueError("no staging area is called so")
    if os.path.realpath(path) != offer.path:
        raise ValueError("a link is on the way to it")
    # A FIFO in its place would else block.
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        file = os.fstat(descriptor)
        if not stat.S_ISREG(file.st_mode) or file.st_nlink != 1:
            raise ValueError("it is no regular file with one name")
        if file.st_uid not in (os.geteuid(), path.parent.stat().st_uid):
            raise ValueError("it belongs to another user")
        if offer.slot_bytes < 1 or offer.slot_bytes % PAGE or file.st_size != size:
            raise ValueError(f"it has {file.st_size} bytes, and {size} were offered")
        if os.pread(descriptor, _WORDS.itemsize, 0)[: _WORDS["magic"].itemsize] != _MAGIC.to_bytes(8, "little"):
            raise ValueError("it does not begin as a staging area, or what the service writes there is not seen here")
        return np.frombuffer(mmap.mmap(descriptor, size), np.uint8)
    finally:
        os.close(descriptor)
