"""Where the store of a run on one machine is: in the run's folder, or on a local disk if that is on a network.

A file in the run's folder names the other place, so that a resumed run finds its store. The name of the place is
random, so another host, and another user of this one, has no folder of this name.
"""

import contextlib
import json
import secrets
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import ConfigurationError
from penstock.machine.file_systems import is_own_folder, network_kind, scratch
from penstock.machine.files import write_json
from penstock.runs.folder import RunFolder

_NAME_BYTES = 8


@dataclass(frozen=True, slots=True)
class StorePlace:
    """Folder of a run's store, or of the stores of its services, and lines for the user about it."""

    root: Path
    notes: tuple[str, ...] = ()


def choose_place(folder: RunFolder, configured: str | None) -> StorePlace:
    """Returns the place of a run's store: the present one if there is one on this host. Changes nothing.

    `configured` is `replay.folder`, the folder in which a place is made; None: the run's folder or, if that is on a
    network file system, one for temporary files. Raises `ConfigurationError` if a network leaves no place.
    """
    notes = list[str]()
    if (recorded := _recorded(folder)) is not None:
        path, host = recorded
        if is_own_folder(path):
            return StorePlace(path)
        notes.append(f"the replay store of this run was in {path} on {host} and is not here, so it begins anew")
    kind = network_kind(folder.root)
    if not kind and (configured is None or folder.replay.exists()):
        return StorePlace(folder.replay, tuple(notes))
    above = scratch() if configured is None else Path(configured).absolute()
    if own := network_kind(above):
        raise ConfigurationError(
            f"replay.folder {above} is on a network file system ({own}), where a store can't be mapped safely; leave it"
            " unset, or choose a folder on this host's own disk, such as $TMPDIR"
        )
    root = above / f"penstock-{folder.root.absolute().name}-{secrets.token_hex(_NAME_BYTES)}"
    if configured is None:
        notes.append(f"{folder.root} is on a network file system ({kind}), so its replay store is in {root}")
    return StorePlace(root, tuple(notes))


def place_elsewhere(folder: RunFolder) -> Path | None:
    """Returns the place of a run's store if that is on this host and outside of the run's folder; otherwise None."""
    recorded = _recorded(folder)
    return recorded[0] if recorded is not None and is_own_folder(recorded[0]) else None


def record_place(folder: RunFolder, place: StorePlace) -> None:
    """Writes into the run's folder, which must exist, where the store is if it is elsewhere. Raises `OSError`."""
    if place.root == folder.replay:
        folder.store_place.unlink(missing_ok=True)
    else:
        write_json(folder.store_place, {"folder": str(place.root), "host": socket.gethostname()})


def remove_store(folder: RunFolder, place: StorePlace) -> None:
    """Removes the store of a run that has ended, and the record of its place. Files that can't be removed are left."""
    for root in (place.root, folder.replay):
        shutil.rmtree(root, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.store_place.unlink(missing_ok=True)


def _recorded(folder: RunFolder) -> tuple[Path, str] | None:
    """Returns the recorded place of a store and its host; None if there is no record that can be read."""
    try:
        values = json.loads(folder.store_place.read_bytes())
        return Path(values["folder"]), str(values["host"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
