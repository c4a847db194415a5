"""Creation of one snapshot: freezes the mutable state, copies the rows, and writes them with the learner's checkpoint.

The learner pauses training at a version, requests the snapshot, and continues when the store is frozen. Policy and
store therefore match. The mutable state (headers, watermarks, session record) is copied at one moment, under the
buffer's lock, to memory that was touched before. Rows do not change but may be overwritten. They are copied afterwards
without the lock, and a row that was overwritten before its turn is absent. Chunks that the newest snapshot already has
are shared with it.
"""

import contextlib
import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigurationError, Unavailable
from penstock.machine.files import make_folder, sync_folder
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.snapshots.chunk_files import ChunkWriter, chunk_ranges
from penstock.replay.snapshots.folder import (
    HEADERS_FILE,
    POLICY_FILE,
    RECORDS_FILE,
    Chunk,
    Manifest,
    SnapshotFolder,
)
from penstock.replay.store.layout import HEADER
from penstock.replay.store.records import session_of
from penstock.types.block import Schema
from penstock.types.run import Weights
from penstock.types.snapshots import Snapshot, SnapshotProgress, SnapshotRequest

_COMMIT_TIMEOUT_S = 5.0
"""Timeout for the commit of the snapshot's version, which the learner sends before its request."""

_POLICY_TIMEOUT_S = 60.0
_POLL_S = 0.002


class RunningSnapshot:
    """A snapshot in progress.

    Attributes:
        request: Request for the snapshot.
        policy: Learner's checkpoint, set by the requester.
        given_up: Event set when the snapshot is no longer wanted.
        frozen: Event set when the mutable state has been copied.
        progress: Current progress; replaced as a whole.
        outcome: Complete snapshot, or the error with which it failed.
    """

    def __init__(self, request: SnapshotRequest) -> None:
        self.request = request
        self.policy: Future[Weights] = Future()
        self.given_up, self.frozen = threading.Event(), threading.Event()
        self.progress = SnapshotProgress()
        self.outcome: Future[Snapshot] = Future()


class SnapshotWork:
    """Creation of one snapshot."""

    def __init__(
        self,
        buffer: ReplayBuffer,
        folder: SnapshotFolder,
        schema: Schema,
        running: RunningSnapshot,
        stopping: threading.Event,
        bytes_per_s: int,
    ) -> None:
        self._buffer, self._store, self._folder = buffer, buffer.store, folder
        self._schema, self._running = schema, running
        self._stopping, self._bytes_per_s = stopping, bytes_per_s
        self._free_at = 0.0
        self._shared_bytes = 0

    def write(self, chunk_keys: int, now: Callable[[], float]) -> Snapshot:
        """Creates the snapshot. It does not remove old ones.

        Raises:
            OSError: The snapshot can't be written.
            Unavailable: The service is stopping, the snapshot was abandoned, or commit or policy did not arrive.
        """
        began, request = time.monotonic(), self._running.request
        headers, records = self._freeze()
        self._running.frozen.set()
        # From here on no lock is held except the GIL. This thread has normal priority, because one of lower priority
        # could be preempted while it holds the GIL.
        place = self._folder.unfinished(request.name)
        make_folder(place)
        writer = ChunkWriter(self._store, chunk_keys, self._spend)
        chunks, present, sound = self._write_chunks(writer, place, headers, chunk_keys)
        headers = headers[present & sound]
        writer.write_file(place / HEADERS_FILE, headers.view(np.uint8))
        writer.write_file(place / RECORDS_FILE, records)
        policy = self._policy()
        writer.write_file(place / POLICY_FILE, np.frombuffer(policy.data, np.uint8))
        sync_folder(place)
        snapshot = Snapshot(
            name=request.name,
            folder=str(self._folder.path(request.name).resolve()),
            taken_unix_s=now(),
            segments=headers.size,
            absent=int(np.count_nonzero(~present)),
            damaged=int(np.count_nonzero(~sound)),
            written_bytes=writer.written_bytes,
            shared_bytes=self._shared_bytes,
            seconds=time.monotonic() - began,
            version=session_of(records).version,
            automatic=request.automatic,
        )
        former = self._folder.complete()
        manifest = Manifest(
            snapshot=snapshot,
            number=former[-1].number + 1 if former else 1,
            schema=self._schema,
            chunk_keys=chunk_keys,
            chunks=tuple(chunks),
            headers_crc=zlib.crc32(headers.view(np.uint8).data),
            records_crc=zlib.crc32(records.data),
            policy_version=policy.version,
            policy_sha256=policy.sha256.hex(),
        )
        self._folder.publish(manifest)
        return snapshot

    def _freeze(self) -> tuple[NDArray[Any], NDArray[np.uint8]]:
        """Returns the headers <HEADER>[segments] by ascending key, and the records <uint8>[RECORDS_BYTES]."""
        headers = np.empty(self._store.capacity, HEADER)
        # Touched here rather than under the lock, where page faults would delay other threads.
        headers.view(np.uint8)[...] = 0
        self._await_commit()
        records = self._buffer.freeze(headers)
        # No key is older than one round of the ring, so the rows from the next key's on are in the order of keys.
        oldest = int(headers["key"].max(initial=0) + 1) % headers.size
        headers = np.concatenate([headers[oldest:], headers[:oldest]])
        headers = headers[headers["key"] != 0]
        assert (np.diff(headers["key"].astype(np.int64)) > 0).all()
        return headers, records

    def _await_commit(self) -> None:
        """Waits until the store's version equals the policy's version. Raises `Unavailable` on timeout."""
        request = self._running.request
        if not self._await(lambda: self._buffer.version >= request.version, _COMMIT_TIMEOUT_S):
            raise Unavailable(
                f"snapshot {request.name!r} is to have version {request.version}, and the store was trained to"
                f" {self._buffer.version} only after {_COMMIT_TIMEOUT_S:.0f} s; try again"
            )

    def _policy(self) -> Weights:
        """Waits for the learner's checkpoint. Raises `Unavailable` on timeout, or the error that was set."""
        policy, name = self._running.policy, self._running.request.name
        if not self._await(policy.done, _POLICY_TIMEOUT_S):
            raise Unavailable(f"no policy arrived for snapshot {name!r} in {_POLICY_TIMEOUT_S:.0f} s")
        return policy.result()

    def _await(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        """Waits for a condition and returns whether it was met in time. Raises as `_pause`."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            if time.monotonic() > deadline:
                return False
            self._pause(_POLL_S)
        return True

    def _write_chunks(
        self, writer: ChunkWriter, place: Path, headers: NDArray[Any], chunk_keys: int
    ) -> tuple[list[Chunk], NDArray[np.bool_], NDArray[np.bool_]]:
        """Writes or shares the chunks.

        Returns:
            The chunks, <bool>[segments] whether each was still present, and <bool>[segments] whether its copy was sound
            or it was not present.
        """
        present, sound = np.ones(headers.size, np.bool_), np.ones(headers.size, np.bool_)
        former = self._former(chunk_keys)
        chunks = []
        for first_key, start, stop in chunk_ranges(headers["key"], chunk_keys):
            self._report(start, headers.size)
            chunk = Chunk(first_key, stop - start)
            shared = former.share(chunk, headers[start:stop], place) if former is not None else None
            if shared is not None:
                chunks.append(shared)
                self._shared_bytes += (place / shared.file).stat().st_size
                continue
            present[start:stop], sound[start:stop] = writer.write_chunk(place / chunk.file, headers[start:stop])
            if (present[start:stop] & sound[start:stop]).any():
                chunks.append(chunk)
            else:
                (place / chunk.file).unlink()
        self._report(headers.size, headers.size)
        return chunks, present, sound

    def _report(self, done: int, total: int) -> None:
        width = self._schema.segment_bytes
        self._running.progress = SnapshotProgress(done, total, done * width, total * width)

    def _former(self, chunk_keys: int) -> "_Former | None":
        """Returns the newest snapshot with which chunks can be shared."""
        for manifest in reversed(self._folder.complete()):
            if manifest.schema == self._schema and manifest.chunk_keys == chunk_keys:
                with contextlib.suppress(ConfigurationError):
                    return _Former(self._folder, manifest)
        return None

    def _spend(self, size: int) -> None:
        """Waits until the write rate permits further bytes, and accounts for `size`. Raises as `_pause`."""
        self._pause(max(0.0, self._free_at - time.monotonic()))
        # Delays are not made up for, because the disk may be busy.
        self._free_at = max(self._free_at, time.monotonic()) + size / self._bytes_per_s

    def _pause(self, seconds: float) -> None:
        """Waits. Raises `Unavailable` if the service is stopping or the snapshot was abandoned."""
        name = self._running.request.name
        if self._stopping.wait(seconds):
            raise Unavailable(f"the replay service stopped before snapshot {name!r} was complete")
        if self._running.given_up.is_set():
            raise Unavailable(
                f"snapshot {name!r} was abandoned: the learner left, or another of the run's stores failed"
            )


class _Former:
    """A complete snapshot whose chunks a new one may share."""

    def __init__(self, folder: SnapshotFolder, manifest: Manifest) -> None:
        """Reads the snapshot's headers. Raises `ConfigurationError` if they are damaged."""
        self._place = folder.path(manifest.snapshot.name)
        self._chunks = {chunk.first_key: chunk for chunk in manifest.chunks}
        self._headers = folder.headers(manifest)
        self._keys = np.ascontiguousarray(self._headers["key"])

    def share(self, chunk: Chunk, headers: NDArray[Any], place: Path) -> Chunk | None:
        """Links this range's chunk into the folder of another snapshot if it has all of these segments <HEADER>[...].

        Returns:
            The linked chunk, or None if it can't be shared.
        """
        mine = self._chunks.get(chunk.first_key)
        if mine is None or self._keys.size < headers.size:
            return None
        found = np.minimum(np.searchsorted(self._keys, headers["key"]), self._keys.size - 1)
        # Checksums cover identity and payload. After a restore, the same keys may belong to other segments.
        same = (self._keys[found] == headers["key"]) & (self._headers["checksum"][found] == headers["checksum"])
        if not same.all():
            return None
        try:
            (place / chunk.file).hardlink_to(self._place / chunk.file)
        except OSError:
            # The file system does not support the link. Writing the chunk again reports any other error.
            return None
        return mine
