"""The disk of a simulated learner: a power cut loses what was not forced to it, and a full disk takes no new file."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.support.simulation.loop import current_process

_SECTOR_BYTES = 512


class Disk:
    """Disk of one process, of which one file is written in place.

    Attributes:
        boot: Identity of the machine's boot, which a power cut changes.
        full: Whether there is no room for a new file.
    """

    def __init__(self, owner: str, path: Path, random: Random) -> None:
        """Prepares the disk of the process `owner`. `path` is the file that is written in place."""
        self._owner, self._path, self._random = owner, path, random
        self._synced = b""
        self._boots, self.full = 1, False

    @property
    def boot(self) -> str:
        return f"boot {self._boots}"

    def sync(self, descriptor: int) -> None:
        """Replaces `sync_data` where the file is written."""
        self._synced = self._path.read_bytes()

    def cut_power(self) -> None:
        """Starts the machine again. Of each sector, what was synced may be left, or what was written since."""
        self._boots += 1
        if not self._synced:
            return
        written = self._path.read_bytes()
        starts = range(0, len(written), _SECTOR_BYTES)
        sources = [self._random.choice((written, self._synced)) for _ in starts]
        found = (source[start : start + _SECTOR_BYTES] for source, start in zip(sources, starts, strict=True))
        self._path.write_bytes(b"".join(found))

    def refusing(self, write: Callable[..., None]) -> Callable[..., None]:
        """Returns a function that makes a file, as `write` does, unless the disk is full."""

        def refuse_or_write(*arguments: object) -> None:
            if self.full and current_process().name == self._owner:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            write(*arguments)

        return refuse_or_write
