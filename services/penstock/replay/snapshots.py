"""Takes snapshots of a store while it goes on: one at a time, in a thread of its own.

What changes (headers, watermarks, the session's record) is frozen at one moment, under the buffer's lock, in memory
that was touched before. The rows, which do not change but are overwritten, are then copied without it: what was
overwritten before its turn came is absent. Chunks that the newest snapshot holds already are shared with it.

Refuses: a second snapshot at once, a name that is taken, a store without segments. Called by `rpc.snapshot_servicer`
and `apps.replay`, from any thread.
"""

import contextlib
import itertools
import os
import secrets
import shutil
import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigurationError, NotReady, Overloaded, PenstockError, Unavailable
from penstock.files import sync_folder
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.chunk_files import KEY_BYTES, ChunkWriter, chunk_ranges
from penstock.replay.layout import HEADER
from penstock.replay.ring_store import RingStore
from penstock.replay.snapshot_folder import HEADERS_FILE, RECORDS_FILE, Chunk, Manifest, SnapshotFolder
from penstock.types import Schema, Snapshot, SnapshotProgress

CHUNK_BYTES = 16 * 2**20
"""Large enough for few files, small enough that one overwritten segment has little written again."""


class RunningSnapshot:
    """A snapshot on its way.

    Attributes:
        name: Its own.
        progress: How far it is; replaced as a whole.
        outcome: What it comes to.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.progress = SnapshotProgress(0, 0, 0, 0)
        self.outcome: Future[Snapshot] = Future()


class Snapshots:
    """The snapshots of one store."""

    def __init__(
        self,
        store: RingStore,
        buffer: ReplayBuffer,
        root: Path | None,
        *,
        kept: int,
        bytes_per_s: int,
        ended: Callable[[Snapshot | PenstockError], None] = lambda outcome: None,
        chunk_bytes: int = CHUNK_BYTES,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Args:
        store: Whose rows are copied.
        buffer: Over that store; its lock covers what is frozen.
        root: The folder of the snapshots; None: there can be none.
        kept: So many complete snapshots are kept; the oldest go.
        bytes_per_s: How fast chunks are written at most.
        ended: Called with what each snapshot came to, in its thread.
        chunk_bytes: About the size of a chunk.
        now: Unix time in seconds.
        """
        self._store, self._buffer, self._kept, self._bytes_per_s = store, buffer, kept, bytes_per_s
        self._folder = SnapshotFolder(root) if root is not None else None
        self._ended, self._chunk_bytes, self._now = ended, chunk_bytes, now
        self._lock = threading.Lock()
        self._running: threading.Thread | None = None
        self._busy = False
        self._stopping = threading.Event()

    def begin(self, name: str = "") -> RunningSnapshot:
        """Begins a snapshot; without a name, it is named after the time, in UTC.

        Raises:
            ConfigurationError: There is no folder for snapshots, or one of this name is there.
            InvalidSegment: Nothing can be called so.
            NotReady: No actor has come yet, so that there is nothing to keep.
            Overloaded: One is on its way.
            Unavailable: The service is stopping.
        """
        folder = self._writable
        name = name or self._unused_name(folder)
        if os.path.lexists(folder.path(name)):
            raise ConfigurationError(f"there is a snapshot {name!r} in {folder.root}; choose another name")
        schema = self._store.schema
        if schema is None:
            raise NotReady("the store holds no segments yet, since no actor has come: there is nothing to keep")
        with self._lock:
            if self._stopping.is_set():
                raise Unavailable("the replay service is stopping")
            if self._busy:
                raise Overloaded("a snapshot is on its way; take another when it is complete")
            self._busy = True
            running = RunningSnapshot(name)
            # Not waited for when the process is to end: what it leaves is no snapshot.
            self._running = threading.Thread(
                target=self._run, args=(running, folder, schema), name="snapshot", daemon=True
            )
            self._running.start()
        return running

    def _unused_name(self, folder: SnapshotFolder) -> str:
        moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime(self._now()))
        names = itertools.chain([moment], (f"{moment}-{number}" for number in itertools.count(2)))
        return next(name for name in names if not os.path.lexists(folder.path(name)))

    def complete(self) -> list[Snapshot]:
        """All there are, oldest first. Reads files. Raises `ConfigurationError` without a folder."""
        return [manifest.snapshot for manifest in self._writable.complete()]

    def stop(self, timeout_s: float = 5.0) -> None:
        """Gives up the one that is on its way, and takes no more."""
        with self._lock:
            self._stopping.set()
        if self._running is not None:
            self._running.join(timeout_s)

    @property
    def _writable(self) -> SnapshotFolder:
        if self._folder is None:
            raise ConfigurationError(
                "this store lies in memory and has no folder for snapshots; set replay.snapshot_folder, or"
                " replay.folder"
            )
        return self._folder

    def _run(self, running: RunningSnapshot, folder: SnapshotFolder, schema: Schema) -> None:
        outcome: Snapshot | PenstockError
        try:
            with folder.locked():
                folder.sweep()
                try:
                    work = _Work(self._store, folder, schema, running, self._stopping, self._bytes_per_s)
                    outcome = work.write(self._buffer, max(1, self._chunk_bytes // schema.segment_bytes), self._now)
                except BaseException:
                    with contextlib.suppress(OSError):
                        shutil.rmtree(folder.unfinished(running.name))
                    raise
                self._remove_old(folder, running.name)
        except PenstockError as error:
            outcome = error
        except OSError as error:
            outcome = ConfigurationError(
                f"can't write snapshot {running.name!r}, or remove an older one, in {folder.root}:"
                f" {error.strerror or error}; free space, or choose another replay.snapshot_folder"
            )
        except Exception as error:
            # Nobody awaits this thread: a mistake of ours must reach who asked, like any other failure.
            outcome = PenstockError(f"snapshot {running.name!r} failed with {type(error).__name__}: {error}")
        try:
            self._ended(outcome)
        finally:
            # First: whoever has waited for this one may take another at once.
            self._busy = False
            if isinstance(outcome, Snapshot):
                running.outcome.set_result(outcome)
            else:
                running.outcome.set_exception(outcome)

    def _remove_old(self, folder: SnapshotFolder, newest: str) -> None:
        # By name, not by time: a clock that was set back must not have the new one removed.
        others = [manifest.snapshot.name for manifest in folder.complete() if manifest.snapshot.name != newest]
        for name in others[: max(0, len(others) - (self._kept - 1))]:
            folder.remove(name)


class _Work:
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
        """All of it, but for the removal of old ones. Raises `OSError`, and `Unavailable` when it is to stop."""
        began, name = time.monotonic(), self._running.name
        headers, records = self._freeze(buffer)
        # From here on no lock is held, but for the interpreter's: a thread of a lower priority than others would be
        # taken off its processor with that one in hand.
        place = self._folder.unfinished(name)
        place.mkdir()
        writer = ChunkWriter(self._store, chunk_keys, self._spend)
        chunks, present, sound = self._write_chunks(writer, place, headers, chunk_keys)
        headers = headers[present & sound]
        writer.write_file(place / HEADERS_FILE, headers.view(np.uint8))
        writer.write_file(place / RECORDS_FILE, records)
        sync_folder(place)
        snapshot = Snapshot(
            name=name,
            folder=str(self._folder.path(name).resolve()),
            taken_unix_s=now(),
            segments=headers.size,
            absent=int(np.count_nonzero(~present)),
            damaged=int(np.count_nonzero(~sound)),
            written_bytes=writer.written_bytes,
            shared_bytes=self._shared_bytes,
            seconds=time.monotonic() - began,
        )
        crcs = zlib.crc32(headers.view(np.uint8).data), zlib.crc32(records.data)
        identity = f"{secrets.randbits(64):016x}"
        self._folder.publish(Manifest(snapshot, identity, self._schema, chunk_keys, tuple(chunks), *crcs))
        return snapshot

    def _freeze(self, buffer: ReplayBuffer) -> tuple[NDArray[Any], NDArray[np.uint8]]:
        """<HEADER>[segments] by ascending key, and <uint8>[RECORDS_BYTES]."""
        headers = np.empty(self._store.capacity, HEADER)
        # Touched now, and not while everybody waits for the lock.
        headers.view(np.uint8)[...] = 0
        records = buffer.freeze(headers)
        # No key is older than one round of the ring, so that rows from the next key's on are in the order of keys.
        oldest = int(headers["key"].max(initial=0) + 1) % headers.size
        headers = np.concatenate([headers[oldest:], headers[:oldest]])
        headers = headers[headers["key"] != 0]
        assert (np.diff(headers["key"].astype(np.int64)) > 0).all()
        return headers, records

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
        """Waits until what was written has had its time. Raises `Unavailable` when the service is to stop."""
        if self._stopping.wait(max(0.0, self._free_at - time.monotonic())):
            raise Unavailable(f"the replay service stopped before snapshot {self._running.name!r} was complete")
        # What was late is not made up for: the disk may have had a reason.
        self._free_at = max(self._free_at, time.monotonic()) + size / self._bytes_per_s


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
