"""The making of one snapshot: freezes what changes, copies the rows, and writes them with the learner's checkpoint.

The learner holds its training at a version, asks for the snapshot, and goes on when the store is frozen: so policy and
store belong together. What changes (headers, watermarks, the session's record) is frozen at one moment, under the
buffer's lock, in memory that was touched before. The rows, which do not change but are overwritten, are then copied
without it: what was overwritten before its turn came is absent. Chunks that the newest snapshot holds already are
shared with it.

Called by `snapshots`, in a thread of its own.
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
from penstock.files import sync_folder
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.chunk_files import KEY_BYTES, ChunkWriter, chunk_ranges
from penstock.replay.layout import HEADER
from penstock.replay.records import session_of
from penstock.replay.ring_store import RingStore
from penstock.replay.snapshot_folder import (
    HEADERS_FILE,
    POLICY_FILE,
    RECORDS_FILE,
    Chunk,
    Manifest,
    SnapshotFolder,
)
from penstock.types import Schema, Snapshot, SnapshotProgress, SnapshotRequest, Weights

_COMMIT_TIMEOUT_S = 5.0
"""The learner sent the commit before it asked, and trains nothing until the store is frozen."""

_POLICY_TIMEOUT_S = 60.0
_POLL_S = 0.002


class RunningSnapshot:
    """A snapshot on its way.

    Attributes:
        request: What was asked for.
        policy: The learner's checkpoint; who asked for the snapshot sets it.
        given_up: Set when nobody wants it any more.
        frozen: Set when what changes of the store has been copied.
        progress: How far it is; replaced as a whole.
        outcome: The complete snapshot, or the error that it failed with.
    """

    def __init__(self, request: SnapshotRequest) -> None:
        self.request = request
        self.policy: Future[Weights] = Future()
        self.given_up, self.frozen = threading.Event(), threading.Event()
        self.progress = SnapshotProgress()
        self.outcome: Future[Snapshot] = Future()


class SnapshotWork:
    """The making of one snapshot."""

    def __init__(
        self,
        store: RingStore,
        folder: SnapshotFolder,
        schema: Schema,
        running: RunningSnapshot,
        stopping: threading.Event,
        bytes_per_s: int,
    ) -> None:
        self._store, self._folder, self._schema, self._running = store, folder, schema, running
        self._stopping, self._bytes_per_s = stopping, bytes_per_s
        self._free_at = 0.0
        self._shared_bytes = 0

    def write(self, buffer: ReplayBuffer, chunk_keys: int, now: Callable[[], float]) -> Snapshot:
        """All of it, but for the removal of old ones.

        Raises:
            OSError: It can't be written.
            Unavailable: It is to stop, or the commit or the policy does not come.
        """
        began, request = time.monotonic(), self._running.request
        headers, records = self._freeze(buffer)
        self._running.frozen.set()
        # From here on no lock is held, but for the interpreter's: a thread of a lower priority than others would be
        # taken off its processor with that one in hand.
        place = self._folder.unfinished(request.name)
        place.mkdir()
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
            version=int(session_of(records)["version"][0]),
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

    def _freeze(self, buffer: ReplayBuffer) -> tuple[NDArray[Any], NDArray[np.uint8]]:
        """<HEADER>[segments] by ascending key, and <uint8>[RECORDS_BYTES]."""
        headers = np.empty(self._store.capacity, HEADER)
        # Touched now, and not while everybody waits for the lock.
        headers.view(np.uint8)[...] = 0
        self._await_commit(buffer)
        records = buffer.freeze(headers)
        # No key is older than one round of the ring, so that rows from the next key's on are in the order of keys.
        oldest = int(headers["key"].max(initial=0) + 1) % headers.size
        headers = np.concatenate([headers[oldest:], headers[:oldest]])
        headers = headers[headers["key"] != 0]
        assert (np.diff(headers["key"].astype(np.int64)) > 0).all()
        return headers, records

    def _await_commit(self, buffer: ReplayBuffer) -> None:
        """Waits until the store was trained to the policy's version. Raises `Unavailable`."""
        request, deadline = self._running.request, time.monotonic() + _COMMIT_TIMEOUT_S
        while buffer.version < request.version:
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"snapshot {request.name!r} is to have version {request.version}, and the store was trained to"
                    f" {buffer.version} only after {_COMMIT_TIMEOUT_S:.0f} s; try again"
                )
            self._pause(_POLL_S)

    def _policy(self) -> Weights:
        """Waits for the learner's checkpoint. Raises `Unavailable`, or what it failed with."""
        running, deadline = self._running, time.monotonic() + _POLICY_TIMEOUT_S
        while not running.policy.done():
            if time.monotonic() > deadline:
                raise Unavailable(f"no policy came for snapshot {running.request.name!r} in {_POLICY_TIMEOUT_S:.0f} s")
            self._pause(_POLL_S)
        return running.policy.result()

    def _write_chunks(
        self, writer: ChunkWriter, place: Path, headers: NDArray[Any], chunk_keys: int
    ) -> tuple[list[Chunk], NDArray[np.bool_], NDArray[np.bool_]]:
        """The chunks; <bool>[segments] which were still there, and <bool>[segments] which of these were sound."""
        present, sound = np.ones(headers.size, np.bool_), np.ones(headers.size, np.bool_)
        former = self._former(chunk_keys)
        chunks = []
        for first_key, start, stop in chunk_ranges(headers["key"], chunk_keys):
            self._report(start, headers.size)
            chunk = Chunk(first_key, stop - start)
            shared = former.share(chunk, headers[start:stop], place) if former is not None else None
            if shared is not None:
                chunks.append(shared)
                self._shared_bytes += shared.rows * (KEY_BYTES + self._schema.segment_bytes)
                continue
            copied = writer.write_chunk(place / chunk.file, headers[start:stop])
            present[start:stop], sound[start:stop] = copied.present, copied.sound
            if (copied.present & copied.sound).any():
                chunks.append(chunk)
            else:
                (place / chunk.file).unlink()
        self._report(headers.size, headers.size)
        return chunks, present, sound

    def _report(self, done: int, total: int) -> None:
        width = self._schema.segment_bytes
        self._running.progress = SnapshotProgress(done, total, done * width, total * width)

    def _former(self, chunk_keys: int) -> "_Former | None":
        """The newest snapshot, if chunks of this one can be found in it."""
        for manifest in reversed(self._folder.complete()):
            if manifest.schema == self._schema and manifest.chunk_keys == chunk_keys:
                with contextlib.suppress(ConfigurationError):
                    return _Former(self._folder, manifest)
        return None

    def _spend(self, size: int) -> None:
        """Waits until what was written has had its time. Raises as `_pause`."""
        self._pause(max(0.0, self._free_at - time.monotonic()))
        # What was late is not made up for: the disk may have had a reason.
        self._free_at = max(self._free_at, time.monotonic()) + size / self._bytes_per_s

    def _pause(self, seconds: float) -> None:
        """Waits so long. Raises `Unavailable` when the service is to stop, or nobody wants the snapshot any more."""
        name = self._running.request.name
        if self._stopping.wait(seconds):
            raise Unavailable(f"the replay service stopped before snapshot {name!r} was complete")
        if self._running.given_up.is_set():
            raise Unavailable(
                f"snapshot {name!r} was given up: the learner left, or another of the run's stores failed"
            )


class _Former:
    """A complete snapshot, whose chunks a new one may share."""

    def __init__(self, folder: SnapshotFolder, manifest: Manifest) -> None:
        """Reads its headers. Raises `ConfigurationError` if they are damaged."""
        self._place = folder.path(manifest.snapshot.name)
        self._chunks = {chunk.first_key: chunk for chunk in manifest.chunks}
        self._headers = folder.headers(manifest)
        self._keys = np.ascontiguousarray(self._headers["key"])

    def share(self, chunk: Chunk, headers: NDArray[Any], place: Path) -> Chunk | None:
        """Links the chunk of this range into another snapshot, if it holds all of these segments, <HEADER>[...]."""
        mine = self._chunks.get(chunk.first_key)
        if mine is None or self._keys.size < headers.size:
            return None
        found = np.minimum(np.searchsorted(self._keys, headers["key"]), self._keys.size - 1)
        # By checksum too, which covers name and bytes: after a restore the same keys may be other segments'.
        same = (self._keys[found] == headers["key"]) & (self._headers["checksum"][found] == headers["checksum"])
        if not same.all():
            return None
        try:
            (place / chunk.file).hardlink_to(self._place / chunk.file)
        except OSError:
            # A file system without links, or too many of them: it is written again, which says what is wrong.
            return None
        return mine
