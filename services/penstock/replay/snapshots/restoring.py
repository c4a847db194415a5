"""Restores the segments of a snapshot to a new store, with their states, priorities, watermarks and counters.

It refuses a snapshot without an intact segment, and a capacity too small for the segments that were not trained. No
service may use the folder meanwhile.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigurationError
from penstock.machine.files import sync_folder
from penstock.replay.snapshots.chunk_files import chunk_ranges, read_chunk
from penstock.replay.snapshots.folder import Manifest, SnapshotFolder
from penstock.replay.store.description import NO_OWNER, Owner
from penstock.replay.store.layout import State, rows_within
from penstock.replay.store.records import read_watermarks, session_of
from penstock.replay.store.ring_store import RingStore
from penstock.replay.store.segment_rows import copy_pieces
from penstock.types.snapshots import SnapshotProgress


@dataclass(frozen=True, slots=True)
class Restored:
    """Summary of a restored store.

    Attributes:
        segments: Number of segments in the store.
        damaged: Segments left out because their bytes in the snapshot are missing or don't match their checksum.
        dropped: Oldest segments left out because the store is too small for them. All were trained before.
        incarnations: Last incarnation of each slot that sent segments.
    """

    segments: int
    damaged: int
    dropped: int
    incarnations: dict[int, int]


def restore_store(
    source: SnapshotFolder,
    manifest: Manifest,
    folder: Path,
    capacity_bytes: int,
    show: Callable[[SnapshotProgress], None] = lambda progress: None,
    *,
    owner: Owner = NO_OWNER,
) -> Restored:
    """Creates a store of the run `owner` from a snapshot in a folder that holds none.

    Its size may differ from the size of the original store. `show` receives the progress.

    Raises:
        ConfigurationError: The module refuses the snapshot or the capacity, or the snapshot or the folder can't be
            used.
    """
    name, records = manifest.snapshot.name, source.records(manifest)
    headers, dropped = _fitting(source, manifest, records, capacity_bytes)
    store = RingStore(folder, capacity_bytes)
    damaged = _fill(store, source.path(name), manifest, headers, show)
    if damaged and damaged == headers.size:
        raise ConfigurationError(
            f"none of the {damaged} segments of snapshot {name!r} in {source.root} is what had been stored; choose"
            " another"
        )
    store.adopt_records(records)
    store.belong_to(owner)
    store.flush()
    sync_folder(folder)
    incarnations = read_watermarks(records)[0]["incarnation"]
    slots = {int(slot): int(incarnations[slot]) for slot in np.flatnonzero(incarnations)}
    return Restored(headers.size - damaged, damaged, dropped, slots)


def _fitting(
    source: SnapshotFolder, manifest: Manifest, records: NDArray[np.uint8], capacity_bytes: int
) -> tuple[NDArray[Any], int]:
    """Returns the headers <HEADER>[...] of the segments that fit the store, and the number of the others.

    Raises:
        ConfigurationError: Some of the others were never trained.
    """
    headers, capacity = source.headers(manifest), rows_within(capacity_bytes, manifest.schema)
    # Only the last round of the ring is kept, as if the store had always been this small.
    room = headers["key"].astype(np.int64) >= session_of(records).next_key - capacity
    untrained = int(np.count_nonzero(headers["state"][~room] != State.SEEN))
    if untrained:
        raise ConfigurationError(
            f"replay.capacity_bytes {capacity_bytes} holds {capacity} segments, and of the {headers.size} in snapshot"
            f" {manifest.snapshot.name!r} {untrained} that were not trained yet would be lost; raise it"
        )
    return headers[room], int(np.count_nonzero(~room))


def _fill(
    store: RingStore,
    place: Path,
    manifest: Manifest,
    headers: NDArray[Any],
    show: Callable[[SnapshotProgress], None],
) -> int:
    """Copies the segments to the store and returns the number of damaged segments that were left out."""
    store.adopt(manifest.schema)
    damaged, width = 0, manifest.schema.segment_bytes
    chunks = {chunk.first_key: chunk for chunk in manifest.chunks}
    for first_key, start, stop in chunk_ranges(headers["key"], manifest.chunk_keys):
        chunk = chunks.get(first_key)
        path, rows = (place / chunk.file, chunk.rows) if chunk is not None else (place, 0)
        damaged += _fill_from_chunk(store, path, rows, headers[start:stop])
        show(SnapshotProgress(stop, headers.size, stop * width, headers.size * width))
    # Marks empty rows as released. Otherwise the store would count them as lost at its next start.
    store.remove(np.flatnonzero(store.headers["key"] == 0))
    return damaged


def _fill_from_chunk(store: RingStore, path: Path, rows: int, headers: NDArray[Any]) -> int:
    """Copies the wanted segments of a chunk and returns the number of those that are missing or damaged."""
    assert store.schema is not None
    try:
        chunk = read_chunk(path, store.schema, rows)
    except OSError:
        # An unreadable chunk counts as damaged rows, because the other chunks are still useful.
        return headers.size
    places = {key: place for place, key in enumerate(chunk.keys.tolist())}
    wanted = np.array([places.get(key, -1) for key in headers["key"].tolist()], np.int64)
    missing = int(np.count_nonzero(wanted < 0))
    headers, wanted = headers[wanted >= 0], wanted[wanted >= 0]
    target = store.rows(np.ascontiguousarray(headers["key"]))
    for region, column in zip(store.columns, chunk.columns, strict=True):
        flat, places = region.reshape(-1), target * region.shape[1]
        copy_pieces(column.data, column.starts[wanted], flat, places, column.sizes[wanted])
    store.forms[target] = chunk.forms[wanted]
    store.headers[target] = headers
    damaged = target[store.checksums(target) != headers["checksum"]]
    store.headers[damaged] = np.zeros(1, store.headers.dtype)
    return missing + int(damaged.size)
