"""Snapshots of the run: its policy and all its stores, as they are between two batches.

The training thread hands over a checkpoint and waits some milliseconds, until each store is frozen in memory. The
snapshot is then written without blocking training. Policy and stores have the same version, from which a restored run
continues. Requests come from the server's event loop.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from penstock.errors import NotReady, Overloaded, PenstockError, Unavailable
from penstock.learning.durable import checkpoints
from penstock.learning.protocols import SnapshotDesk
from penstock.learning.report.statistics import RunStatistics
from penstock.telemetry import logs, metrics
from penstock.types.run import Weights
from penstock.types.snapshots import RunSnapshot, Snapshot, SnapshotProgress, SnapshotRequest


@dataclass(slots=True)
class RequestedSnapshot:
    """Requested snapshot.

    Attributes:
        name: Name of the snapshot; empty: the time in UTC and the version.
        automatic: Whether it is taken on the interval.
        progress: Progress of the snapshot, replaced as a whole.
        outcome: Future of the complete snapshot, or of the error with which it failed.
    """

    name: str
    automatic: bool
    progress: SnapshotProgress = field(default_factory=SnapshotProgress)
    outcome: Future[RunSnapshot] = field(default_factory=Future)

    def show(self, progress: SnapshotProgress) -> None:
        """Sets the progress."""
        self.progress = progress


class RunSnapshots:
    """Snapshots of one run, at most one at a time."""

    def __init__(self, desk: SnapshotDesk | None, statistics: RunStatistics, *, interval_s: float) -> None:
        """Refuses requests until `open`.

        Automatic snapshots are taken every `interval_s` seconds (0: none). Without a desk there are no snapshots.
        """
        self._desk, self._statistics, self._interval_s = desk, statistics, interval_s
        self._lock = threading.Lock()
        self._asked: RequestedSnapshot | None = None
        self._running: RequestedSnapshot | None = None
        self._training = False
        self._due_at = 0.0

    def request(self, name: str = "") -> RequestedSnapshot:
        """Requests a snapshot, which begins after the batch in training. Any thread may call.

        Raises `NotReady` if training has not begun or has ended, `Overloaded` if a snapshot is in progress.
        """
        with self._lock:
            if not self._training or self._desk is None:
                raise NotReady("the learner is not training, so it can't take a snapshot; try again later")
            if self._asked is not None or self._running is not None:
                raise Overloaded("a snapshot is in progress; retry when it is complete")
            self._asked = RequestedSnapshot(name, automatic=False)
            return self._asked

    # For the training thread

    def open(self) -> None:
        """Accepts requests from now on. The stores must already have the sampling plan."""
        with self._lock:
            self._training, self._due_at = True, time.monotonic() + self._interval_s

    def close(self) -> None:
        """Refuses requests from now on. A snapshot in progress continues while the process runs."""
        with self._lock:
            self._training, asked, self._asked = False, self._asked, None
        if asked is not None:
            asked.outcome.set_exception(Unavailable("training ended before the snapshot began"))

    def take_what_is_due(self, take_checkpoint: Callable[[], checkpoints.Snapshot]) -> None:
        """Begins the requested or due snapshot, if any, and returns when each store is frozen.

        Every batch so far must have been committed, and no commit may be sent during the call. A checkpoint is taken
        only if a snapshot begins.
        """
        asked = self._next()
        if asked is None or self._desk is None:
            return
        checkpoint = take_checkpoint()
        version = checkpoint.progress.version
        moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        request = SnapshotRequest(asked.name or f"{moment}-v{version}", version, asked.automatic)
        try:
            taking = self._desk.begin(request, Weights.of(version, checkpoint.data), asked.show)
        except PenstockError as error:
            self._fail(asked, error)
            return
        env_steps = checkpoint.progress.env_steps
        taking.add_done_callback(lambda taken: self._conclude(asked, request, env_steps, taken))

    def _next(self) -> RequestedSnapshot | None:
        with self._lock:
            if self._running is not None:
                return None
            due = bool(self._interval_s) and self._desk is not None and time.monotonic() >= self._due_at
            if self._asked is None and due:
                self._asked = RequestedSnapshot("", automatic=True)
            self._running, self._asked = self._asked, None
            if self._running is not None and self._running.automatic:
                self._due_at = time.monotonic() + self._interval_s
            return self._running

    def _conclude(
        self, asked: RequestedSnapshot, request: SnapshotRequest, env_steps: int, taken: "Future[list[Snapshot]]"
    ) -> None:
        error = (
            Unavailable("the learner ended before the snapshot was complete")
            if taken.cancelled()
            else taken.exception()
        )
        if error is not None:
            self._fail(asked, error if isinstance(error, PenstockError) else PenstockError(repr(error)))
            return
        stores = tuple(taken.result())
        versions = sorted({store.version for store in stores})
        if versions != [request.version]:
            self._fail(
                asked,
                PenstockError(
                    f"snapshot {request.name!r} has the policy of version {request.version} and stores of versions"
                    f" {versions}: another learner uses these stores, so the snapshot can't be restored"
                ),
            )
            return
        logs.note("snapshot taken", snapshot=request.name, version=str(request.version), env_steps=str(env_steps))
        self._end(asked)
        asked.outcome.set_result(RunSnapshot(request.name, request.version, env_steps, stores))

    def _fail(self, asked: RequestedSnapshot, error: PenstockError) -> None:
        logs.note("snapshot failed", reason=str(error))
        if asked.automatic:
            metrics.LEARNER_SNAPSHOT_FAILURES.inc()
            self._statistics.notice(f"no snapshot was taken: {error}")
        self._end(asked)
        asked.outcome.set_exception(error)

    def _end(self, asked: RequestedSnapshot) -> None:
        # Before the outcome is set, because its receiver may request another snapshot at once.
        with self._lock:
            assert self._running is asked
            self._running = None
