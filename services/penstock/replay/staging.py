"""Where actors on the service's own host lay their windows: a file beside the store for each stream, mapped by both.

A window is then copied twice, into its slot and from there into its rows, and no socket carries it. Actors never see
the rows themselves: one that was paused would wake up in somebody else's. What lies in a slot is taken for as
untrusted as what comes in a message: it is checked in the rows, where nobody can change it any more.

`rpc.replay_servicer` makes the areas, `rpc.segment_sink` fills their slots.
"""

import mmap
import os
import secrets
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigurationError
from penstock.replay.layout import whole_pages
from penstock.types import StagingOffer

SLOTS = 4
"""Windows that an actor may keep until they are stored."""

_FOLDER = "staging"


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
        if self._folder is None or SLOTS * slot_bytes > self._free_bytes:
            return None
        path = self._folder / secrets.token_hex(16)
        try:
            self._folder.mkdir(exist_ok=True)
            memory = _map(path, SLOTS * slot_bytes)
        except OSError:
            path.unlink(missing_ok=True)
            return None
        self._free_bytes -= SLOTS * slot_bytes
        return StagingArea(self, StagingOffer(str(path), slot_bytes), memory)

    def _take_back(self, size: int) -> None:
        self._free_bytes += size


class StagingArea:
    """The service's side of one area."""

    def __init__(self, areas: StagingAreas, offer: StagingOffer, memory: NDArray[np.uint8]) -> None:
        self._areas, self.offer, self.slots = areas, offer, memory.reshape(SLOTS, offer.slot_bytes)

    def close(self) -> None:
        """Removes the file. Memory that is still looked at stays until nobody does."""
        Path(self.offer.path).unlink(missing_ok=True)
        self._areas._take_back(self.slots.size)


class StagingSlots:
    """The actor's side: the same memory.

    Attributes:
        slots: <uint8>[SLOTS, slot_bytes].
    """

    def __init__(self, offer: StagingOffer) -> None:
        """Maps the area.

        Raises:
            ConfigurationError: This process does not see that file: it runs on another host, or may not write there.
        """
        try:
            memory = _map(Path(offer.path), SLOTS * offer.slot_bytes, create=False)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"can't map {offer.path}: {error}") from None
        self.slots = memory.reshape(SLOTS, offer.slot_bytes)


def _map(path: Path, size: int, *, create: bool = True) -> NDArray[np.uint8]:
    descriptor = os.open(path, os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0), 0o660)
    try:
        if create:
            # A mapped file with holes would meet a full disk as a bus error.
            os.posix_fallocate(descriptor, 0, size)
        return np.frombuffer(mmap.mmap(descriptor, size), np.uint8)
    finally:
        os.close(descriptor)
