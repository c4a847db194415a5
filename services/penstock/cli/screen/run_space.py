"""The space that runs take on the disk, and their removal: folder, store and snapshots.

Stores of individually started services are outside of the runs' folders, in folders with the runs' names, as under
Docker Compose. A run that is being trained, or whose store is in use, is not removed.
"""

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.cli.operator import operator_of
from penstock.errors import ConfigurationError
from penstock.machine.system_errors import in_words
from penstock.replay.store.store_files import held
from penstock.rpc.health import is_serving
from penstock.runs.folder import LEARNER, RunFolder
from penstock.runs.store_place import place_elsewhere

_TIMEOUT_S = 1.0
_BLOCK_BYTES = 512
"""Unit of `st_blocks` on every system."""

_QUIET_S = 60.0
"""Seconds without a new record after which a learner that left its list of services and does not answer is dead."""


@dataclass(frozen=True, slots=True)
class Space:
    """Where a run is on the disk. A store whose run's folder is gone has a `folder` that does not exist."""

    folder: RunFolder
    stores: tuple[Path, ...]
    snapshots: tuple[Path, ...]

    @classmethod
    def of(cls, folder: RunFolder, stores: Path | None) -> "Space":
        """Returns the space of a run; `stores` has the stores of individually started services, by the runs' names."""
        own = None if stores is None else stores / folder.root.name
        places = (folder.replay, place_elsewhere(folder), own)
        found = tuple(place for place in places if place is not None and place.is_dir())
        return cls(folder, found, tuple(each for each in (folder.snapshots, *_snapshots_in(found)) if each.is_dir()))

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.folder.root.name

    def sizes(self) -> tuple[int, int, int]:
        """Returns the bytes of the folder without the other two, of the store, and of the snapshots."""
        snapshots, stores = _files_in(self.snapshots), _files_in(self.stores)
        whole = _files_in([self.folder.root])
        # Files that snapshots share are counted once.
        return tuple(
            sum(size.values())
            for size in (
                {key: size for key, size in whole.items() if key not in stores and key not in snapshots},
                {key: size for key, size in stores.items() if key not in snapshots},
                snapshots,
            )
        )  # type: ignore[return-value]

    def remove(self) -> None:
        """Removes everything, the run's folder last. Raises `ConfigurationError` if it is in use, or can't be."""
        check_unused(self.folder)
        with contextlib.ExitStack() as stack:
            for store in self.stores:
                for place in (store, *(each for each in store.iterdir() if each.is_dir())):
                    stack.enter_context(held(place, alone=True))
            for place in (*self.snapshots, *self.stores, self.folder.root):
                try:
                    if place.exists():
                        shutil.rmtree(place)
                except OSError as error:
                    reason = in_words(
                        error, place, "under Docker Compose, use docker compose run --rm runs remove NAME"
                    )
                    raise ConfigurationError(f"can't remove {place}: {reason}") from None


def remove(spaces: Sequence[Space], *, confirmed: bool) -> int:
    """Removes runs after a question, unless the user has confirmed it already; returns the exit code.

    Raises `ConfigurationError` as `Space.remove`, or if nobody can be asked.
    """
    for space in spaces:
        check_unused(space.folder)
        folder, store, snapshots = map(in_units, space.sizes())
        print(f"{space.name}: folder {folder}, store {store}, snapshots {snapshots}")
    if not confirmed:
        if not sys.stdin.isatty():
            raise ConfigurationError("there is no terminal for the question; add --yes to remove without it")
        print(f"remove {'it' if len(spaces) == 1 else 'all of them'} for ever? [y/N] ", end="", flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            print("nothing was removed")
            return 0
    for space in spaces:
        space.remove()
        print(f"removed {space.name}")
    return 0


def is_active(folder: RunFolder) -> bool:
    """Returns whether the learner of a run responds."""
    with contextlib.suppress(OSError, ValueError, ConfigurationError):
        return folder.services.exists() and _responds(folder)
    return False


def check_unused(folder: RunFolder) -> None:
    """Raises `ConfigurationError` if a run is being trained, or it can't be found out."""
    if not folder.services.exists():
        return
    with contextlib.suppress(OSError, ValueError):
        if _responds(folder):
            raise ConfigurationError(f"the run {folder.root.name} is being trained; stop it first, or wait for its end")
    with contextlib.suppress(OSError):
        quiet_s = time.time() - folder.metrics.stat().st_mtime
        if quiet_s < _QUIET_S:
            raise ConfigurationError(
                f"the run {folder.root.name} wrote a record {max(quiet_s, 0.0):.0f} s ago, though its learner does not"
                f" answer here; stop it first, or repeat the command {_QUIET_S:.0f} s after its last record"
            )


def in_units(size: int) -> str:
    """Returns a size for display."""
    if not size:
        return "-"
    for unit, of in (("GB", 10**9), ("MB", 10**6)):
        if size >= of:
            return f"{size / of:.1f} {unit}"
    return f"{size / 1000:.0f} kB"


def _responds(folder: RunFolder) -> bool:
    return is_serving(folder.places()[LEARNER].addresses, _TIMEOUT_S, operator_of(folder))


def _snapshots_in(stores: Iterable[Path]) -> list[Path]:
    """Returns the folders of snapshots within stores: of the store of one service, or of several."""
    return [of / "snapshots" for store in stores for of in (store, *store.glob("replay-*"))]


def _files_in(roots: Iterable[Path]) -> dict[tuple[int, int], int]:
    """Returns the bytes that each file below some folders takes on the disk, once for a file with several names."""
    found: dict[tuple[int, int], int] = {}
    for root in roots:
        for folder, _, names in os.walk(root):
            for name in names:
                # The file may be removed meanwhile.
                with contextlib.suppress(OSError):
                    stat = (Path(folder) / name).lstat()
                    found[stat.st_dev, stat.st_ino] = stat.st_blocks * _BLOCK_BYTES
    return found
