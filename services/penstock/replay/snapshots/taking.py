"""Takes snapshots of a store in use, one at a time, in a separate thread, and removes old ones.

It refuses a second concurrent snapshot, a name that exists, and a store without segments. Any thread may call it.
"""

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from penstock.errors import ConfigurationError, NotReady, Overloaded, PenstockError, Unavailable
from penstock.machine.system_errors import in_words
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.snapshots.folder import SnapshotFolder
from penstock.replay.snapshots.work import RunningSnapshot, SnapshotWork
from penstock.types.block import Schema
from penstock.types.snapshots import Snapshot, SnapshotRequest

CHUNK_BYTES = 16 * 2**20
"""Approximate chunk size in bytes. It limits the number of files, and the bytes rewritten per changed segment."""

MOST_NAMED = 100
"""Maximum number of requested snapshots in one folder. Only users remove them, and they could fill the disk."""


class Snapshots:
    """Snapshots of one store."""

    def __init__(
        self,
        buffer: ReplayBuffer,
        root: Path | None,
        *,
        kept: int,
        bytes_per_s: int,
        ended: Callable[[Snapshot | PenstockError], None] = lambda outcome: None,
        chunk_bytes: int = CHUNK_BYTES,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Prepares to take snapshots.

        Args:
            buffer: Buffer of the store. Its lock protects the state to freeze.
            root: Folder of the snapshots; None disables them.
            kept: Number of complete automatic snapshots to keep. Older ones are removed.
            bytes_per_s: Upper bound on the write rate in bytes per second.
            ended: Called on the snapshot's thread with its result or its error.
            chunk_bytes: Approximate size of a chunk in bytes.
            now: Unix time in seconds.
        """
        self._buffer, self._kept, self._bytes_per_s = buffer, kept, bytes_per_s
        self._folder = SnapshotFolder(root) if root is not None else None
        self._ended, self._chunk_bytes, self._now = ended, chunk_bytes, now
        self._lock = threading.Lock()
        self._running: threading.Thread | None = None
        self._busy = False
        self._stopping = threading.Event()

    def begin(self, request: SnapshotRequest, prover: bytes = b"") -> RunningSnapshot:
        """Starts a snapshot. It completes only after its `policy` is set.

        `prover` is the one of `ReplayBuffer.check_holder`.

        Raises:
            PermissionDenied: The caller has not proved the key of the store's run.
            ConfigurationError: There is no folder for snapshots, or the name exists.
            InvalidSegment: The name is invalid.
            NotReady: No actor has connected yet, so there is nothing to save.
            Overloaded: Another snapshot is in progress.
            Unavailable: The service is stopping.
        """
        self._buffer.ownership.check_holder("TakeSnapshot", prover)
        folder = self._writable
        if os.path.lexists(folder.path(request.name)):
            raise ConfigurationError(f"there is a snapshot {request.name!r} in {folder.root}; choose another name")
        schema = self._buffer.store.schema
        if schema is None:
            raise NotReady("the store holds no segments yet, because no actor has connected; try again later")
        with self._lock:
            if self._stopping.is_set():
                raise Unavailable("the replay service is stopping")
            if self._busy:
                raise Overloaded("another snapshot is in progress; repeat the request when it is complete")
            self._busy = True
            running = RunningSnapshot(request)
            # A daemon thread, so that it does not delay the exit of the process. An unfinished snapshot is ignored.
            self._running = threading.Thread(
                target=self._run, args=(running, folder, schema), name="snapshot", daemon=True
            )
            self._running.start()
        return running

    def complete(self) -> list[Snapshot]:
        """Returns all complete snapshots, oldest first. Reads files. Raises `ConfigurationError` without a folder."""
        return [manifest.snapshot for manifest in self._writable.complete()]

    def stop(self, timeout_s: float = 5.0) -> None:
        """Cancels the snapshot in progress, and refuses new ones."""
        with self._lock:
            self._stopping.set()
        if self._running is not None:
            self._running.join(timeout_s)

    @property
    def _writable(self) -> SnapshotFolder:
        if self._folder is None:
            raise ConfigurationError(
                "this store is in memory and has no folder for snapshots; set replay.snapshot_folder, or replay.folder"
            )
        return self._folder

    def _run(self, running: RunningSnapshot, folder: SnapshotFolder, schema: Schema) -> None:
        outcome: Snapshot | PenstockError
        try:
            with folder.locked():
                folder.sweep()
                named = sum(not manifest.snapshot.automatic for manifest in folder.complete())
                if not running.request.automatic and named >= MOST_NAMED:
                    raise ConfigurationError(
                        f"there are {named} requested snapshots in {folder.root}; remove the folders of some"
                    )
                try:
                    work = SnapshotWork(self._buffer, folder, schema, running, self._stopping, self._bytes_per_s)
                    outcome = work.write(max(1, self._chunk_bytes // schema.segment_bytes), self._now)
                except BaseException:
                    with contextlib.suppress(OSError):
                        shutil.rmtree(folder.unfinished(running.request.name))
                    raise
                self._remove_old(folder)
        except PenstockError as error:
            outcome = error
        except OSError as error:
            outcome = ConfigurationError(
                f"can't write snapshot {running.request.name!r}, or remove an older one, in {folder.root}:"
                f" {in_words(error, folder.root, 'choose another replay.snapshot_folder')}"
            )
        except Exception as error:
            # No caller joins this thread, so unexpected errors must also reach the requester.
            outcome = PenstockError(f"snapshot {running.request.name!r} failed with {type(error).__name__}: {error}")
        try:
            self._ended(outcome)
        finally:
            # Cleared before the outcome is set, so that a waiting caller can start another snapshot immediately.
            self._busy = False
            if isinstance(outcome, Snapshot):
                running.outcome.set_result(outcome)
            else:
                running.outcome.set_exception(outcome)

    def _remove_old(self, folder: SnapshotFolder) -> None:
        """Removes the oldest automatic snapshots. Users remove the others."""
        automatic = [manifest.snapshot.name for manifest in folder.complete() if manifest.snapshot.automatic]
        for name in automatic[: max(0, len(automatic) - self._kept)]:
            folder.remove(name)
