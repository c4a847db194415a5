"""Opens the store of a service that starts: the one that is there, or one restored from a snapshot.

A restored store remembers what it was restored from (`restored.json`), so that a service that is started again by the
same command goes on with what it has, and a restore that was interrupted begins again.

Refuses: a folder that holds another store's segments, a store whose restore was not finished, a snapshot that does not
fit. Called by `apps.replay`, before anything is served.
"""

import json
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigurationError
from penstock.files import write_json
from penstock.replay.chunk_files import chunk_ranges, read_chunk
from penstock.replay.description import DESCRIPTION_FILE, read_schema
from penstock.replay.layout import RECORDS_FILE, SEGMENTS_FILE, Regions, State, rows_within, session_of
from penstock.replay.ring_store import RingStore
from penstock.replay.snapshot_folder import Manifest, SnapshotFolder

_ORIGIN_FILE = "restored.json"
_STORE_FILES = (DESCRIPTION_FILE, SEGMENTS_FILE, RECORDS_FILE)


@dataclass(frozen=True, slots=True)
class Restored:
    """What came out of a snapshot.

    Attributes:
        name: Of the snapshot.
        segments: In the store now.
        damaged: Segments whose bytes in the snapshot were not those that had been stored; left out.
        dropped: Segments, all of them trained before, for which the store is too small now; the oldest.
    """

    name: str
    segments: int
    damaged: int
    dropped: int


@dataclass(frozen=True, slots=True)
class _Origin:
    """Which snapshot a store comes from, and whether all of it is there."""

    name: str
    identity: str
    complete: bool


def open_store(
    folder: Path | None, capacity_bytes: int, snapshots: Path | None, restore: str | None
) -> tuple[RingStore, Restored | None]:
    """The service's store.

    Args:
        folder: Where it lies; None: in anonymous memory, which is restored anew by every start.
        capacity_bytes: Its size; a restored one may have another than the snapshot's had.
        snapshots: The folder of the snapshots.
        restore: Name of the snapshot that the store comes from; None: none.

    Returns:
        The store, and what was restored now.

    Raises:
        ConfigurationError: As this module refuses, or as `RingStore` does.
    """
    origin = _read_origin(folder) if folder is not None else None
    if restore is None:
        if origin is not None and not origin.complete:
            raise ConfigurationError(
                f"the restore of snapshot {origin.name!r} into {folder} was not finished; set replay.restore to"
                f" {origin.name} to begin it again, or choose another replay.folder"
            )
        return RingStore(folder, capacity_bytes), None
    if snapshots is None:
        raise ConfigurationError(
            f"snapshot {restore!r} is to be restored, and there is no folder to look for it in; set"
            " replay.snapshot_folder"
        )
    source = SnapshotFolder(snapshots)
    if origin is not None and origin.complete and origin.name == restore and _is_same(source, origin):
        return RingStore(folder, capacity_bytes), None
    manifest = source.read(restore)
    records = source.records(manifest)
    headers, dropped = _fitting(source, manifest, records, capacity_bytes)
    if folder is not None:
        _make_room(folder, origin, restore)
        _write_origin(folder, _Origin(restore, manifest.identity, complete=False))
    store = RingStore(folder, capacity_bytes)
    damaged = _fill(store, source.path(restore), manifest, headers, records)
    if damaged and damaged == headers.size:
        raise ConfigurationError(
            f"none of the {damaged} segments of snapshot {restore!r} in {snapshots} is what had been stored; choose"
            " another"
        )
    if folder is not None:
        store.flush()
        _write_origin(folder, _Origin(restore, manifest.identity, complete=True))
    return store, Restored(restore, headers.size - damaged, damaged, dropped)


def _is_same(source: SnapshotFolder, origin: _Origin) -> bool:
    """Whether the store comes from the snapshot that now has this name; also if that one was removed since."""
    try:
        return source.read(origin.name).identity == origin.identity
    except ConfigurationError:
        return True


def _fitting(
    source: SnapshotFolder, manifest: Manifest, records: NDArray[np.uint8], capacity_bytes: int
) -> tuple[NDArray[Any], int]:
    """<HEADER>[...] of the segments that the store has room for, and how many it has not.

    Raises:
        ConfigurationError: Among these are some that were never trained.
    """
    headers, capacity = source.headers(manifest), rows_within(capacity_bytes, manifest.schema)
    # One round of the ring: what is older would not be there either, had the store always been so small.
    room = headers["key"].astype(np.int64) >= int(session_of(records)["next_key"][0]) - capacity
    untrained = int(np.count_nonzero(headers["state"][~room] != State.SEEN))
    if untrained:
        raise ConfigurationError(
            f"replay.capacity_bytes {capacity_bytes} holds {capacity} segments, and of the {headers.size} in snapshot"
            f" {manifest.snapshot.name!r} {untrained} that were not trained yet would be lost; raise it"
        )
    return headers[room], int(np.count_nonzero(~room))


def _make_room(folder: Path, origin: _Origin | None, restore: str) -> None:
    """Removes the files of a store without segments, or of a restore that was interrupted."""
    if (origin is None or origin.complete) and _holds_segments(folder):
        raise ConfigurationError(
            f"{folder} holds segments of another store than the one restored from snapshot {restore!r}; leave"
            " replay.restore out to go on with them, choose another replay.folder and name the snapshots' with"
            f" replay.snapshot_folder, or remove {', '.join(_STORE_FILES)} there"
        )
    try:
        for name in _STORE_FILES:
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise ConfigurationError(f"can't make room for a store in {folder}: {error.strerror}") from None


def _holds_segments(folder: Path) -> bool:
    if not (folder / DESCRIPTION_FILE).exists():
        return False
    schema = read_schema(folder)
    try:
        with (folder / SEGMENTS_FILE).open("rb") as file:
            memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    except (OSError, ValueError):
        return False
    return bool(Regions(memory, schema, len(memory)).headers["key"].any())


def _fill(store: RingStore, place: Path, manifest: Manifest, headers: NDArray[Any], records: NDArray[np.uint8]) -> int:
    """Copies the segments into the store, then watermarks and record; how many were damaged and are left out."""
    store.adopt(manifest.schema)
    damaged = 0
    chunks = {chunk.first_key: chunk for chunk in manifest.chunks}
    for first_key, start, stop in chunk_ranges(headers["key"], manifest.chunk_keys):
        chunk = chunks.get(first_key)
        path, rows = (place / chunk.file, chunk.rows) if chunk is not None else (place, 0)
        damaged += _fill_from_chunk(store, path, rows, headers[start:stop])
    identity = int(store.session["identity"][0])
    store.records[...] = records
    store.session["identity"] = identity
    # Leases were a learner's that has gone on since: whichever comes, even the same, makes them fresh again.
    store.session["session"] = 0
    return damaged


def _fill_from_chunk(store: RingStore, path: Path, rows: int, headers: NDArray[Any]) -> int:
    """Copies some of a chunk's segments; how many are not there as they had been stored."""
    assert store.schema is not None
    try:
        found, columns = read_chunk(path, store.schema, rows)
    except OSError:
        # Lost like any damaged row: the other chunks are still worth having.
        return headers.size
    places = {key: place for place, key in enumerate(found.tolist())}
    wanted = np.array([places.get(key, -1) for key in headers["key"].tolist()], np.int64)
    missing = int(np.count_nonzero(wanted < 0))
    headers, wanted = headers[wanted >= 0], wanted[wanted >= 0]
    target = store.rows(np.ascontiguousarray(headers["key"]))
    for region, column in zip(store.columns, columns, strict=True):
        region[target] = column[wanted]
    store.headers[target] = headers
    damaged = target[store.checksums(target) != headers["checksum"]]
    store.headers[damaged] = np.zeros(1, store.headers.dtype)
    return missing + int(damaged.size)


def _read_origin(folder: Path) -> _Origin | None:
    path = folder / _ORIGIN_FILE
    try:
        content = json.loads(path.read_text())
        return _Origin(str(content["snapshot"]), str(content["identity"]), bool(content["complete"]))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{path} can't be read ({error}); choose another replay.folder") from None


def _write_origin(folder: Path, origin: _Origin) -> None:
    content = {"snapshot": origin.name, "identity": origin.identity, "complete": origin.complete}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / _ORIGIN_FILE, content)
    except OSError as error:
        raise ConfigurationError(f"can't restore into {folder}: {error.strerror}; choose another") from None
