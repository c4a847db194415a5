"""Metrics and log events of the snapshots of one store."""

from penstock.errors import PenstockError
from penstock.telemetry import metrics
from penstock.telemetry.logs import Logger
from penstock.types.snapshots import Snapshot

_SEGMENTS, _BYTES = ("kept", "absent", "damaged"), ("written", "shared")
"""Label values of the snapshot metrics."""


def show_zeros() -> None:
    """Creates every series at 0: a query for a series that does not exist yet returns nothing."""
    for name in _SEGMENTS:
        metrics.REPLAY_SNAPSHOT_SEGMENTS.labels(name)
    for kind in _BYTES:
        metrics.REPLAY_SNAPSHOT_BYTES.labels(kind)


def note(outcome: Snapshot | PenstockError, logger: Logger) -> None:
    """Logs and counts the outcome of a snapshot. The service continues after a failure, such as a full disk."""
    if isinstance(outcome, PenstockError):
        logger.error("snapshot failed", reason=str(outcome))
        metrics.REPLAY_SNAPSHOT_FAILURES.inc()
        return
    logger.info(
        "snapshot",
        snapshot=outcome.name,
        version=outcome.version,
        segments=outcome.segments,
        absent=outcome.absent,
        damaged=outcome.damaged,
        written_bytes=outcome.written_bytes,
        shared_bytes=outcome.shared_bytes,
        seconds=round(outcome.seconds, 3),
    )
    metrics.REPLAY_SNAPSHOTS.inc()
    metrics.REPLAY_SNAPSHOT_TIME.set(outcome.taken_unix_s)
    metrics.REPLAY_SNAPSHOT_SECONDS.set(outcome.seconds)
    counts, sizes = (outcome.segments, outcome.absent, outcome.damaged), (outcome.written_bytes, outcome.shared_bytes)
    for name, count in zip(_SEGMENTS, counts, strict=True):
        metrics.REPLAY_SNAPSHOT_SEGMENTS.labels(name).set(count)
    for kind, size in zip(_BYTES, sizes, strict=True):
        metrics.REPLAY_SNAPSHOT_BYTES.labels(kind).set(size)
