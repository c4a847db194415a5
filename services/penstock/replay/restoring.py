"""Fills a new store with the segments of a snapshot, exactly as they were: states, priorities, watermarks and counters.

Refuses: a snapshot of which no segment is sound, a capacity too small for the segments that were not trained yet.
Called by `apps.restoring`, for a folder that no service uses.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigurationError
from penstock.files import sync_folder
from penstock.replay.chunk_files import chunk_ranges, read_chunk
from penstock.replay.layout import State, rows_within
from penstock.replay.records import read_watermarks, session_of
from penstock.replay.ring_store import RingStore
from penstock.replay.snapshot_folder import Manifest, SnapshotFolder
from penstock.types import SnapshotProgress


@dataclass(frozen=True, slots=True)
class Restored:
    """The store that came out of a snapshot.

    Attributes:
        segments: In the store.
        damaged: Segments whose bytes in the snapshot were not those that had been stored; left out.
        dropped: Segments, all of them trained before, for which the store is too small now; the oldest.
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
) -> Restored:
    """Makes a store in a folder that holds none.

    Args:
        source: The folder of the snapshots.
        manifest: The snapshot's.
        folder: Where the store is made.
        capacity_bytes: Its size; the snapshot's store may have had another.
        show: Called with how far it is.

    Raises:
        ConfigurationError: As this module refuses; or the snapshot or the folder can't be used.
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
    store.flush()
    sync_folder(folder)
    incarnations = read_watermarks(records)[0]["incarnation"]
    slots = {int(slot): int(incarnations[slot]) for slot in np.flatnonzero(incarnations)}
    return Restored(headers.size - damaged, damaged, dropped, slots)


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


def _fill(
    store: RingStore,
    place: Path,
    manifest: Manifest,
    headers: NDArray[Any],
    show: Callable[[SnapshotProgress], None],
) -> int:
    """Copies the segments into the store; how many were damaged and are left out."""
    store.adopt(manifest.schema)
    damaged, width = 0, manifest.schema.segment_bytes
    chunks = {chunk.first_key: chunk for chunk in manifest.chunks}
    for first_key, start, stop in chunk_ranges(headers["key"], manifest.chunk_keys):
        chunk = chunks.get(first_key)
        path, rows = (place / chunk.file, chunk.rows) if chunk is not None else (place, 0)
        damaged += _fill_from_chunk(store, path, rows, headers[start:stop])
        show(SnapshotProgress(stop, headers.size, stop * width, headers.size * width))
    # So that what the snapshot has not is not taken for lost from the store.
    store.remove(np.flatnonzero(store.headers["key"] == 0))
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
