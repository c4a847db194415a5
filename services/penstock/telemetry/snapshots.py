"""Metrics and log events of the snapshots of one store."""

from penstock.errors import PenstockError
from penstock.telemetry import metrics
from penstock.telemetry.logs import Logger
from penstock.types.snapshots import Snapshot


def show_zeros() -> None:
    """Creates every series at 0: a query for a series that does not exist yet returns nothing."""
    for name in ("kept", "absent", "damaged"):
        metrics.REPLAY_SNAPSHOT_SEGMENTS.labels(name)
    for kind in ("written", "shared"):
        metrics.REPLAY_SNAPSHOT_BYTES.labels(kind)


def note(outcome: Snapshot | PenstockError, logger: Logger) -> None:
    """Logs and counts the outcome of a snapshot. The service continues after a failure, such as a full disk."""
    if isinstance(outcome, PenstockError):
        logger.error("snapshot failed", reason=str(outcome))
        metrics.REPLAY_SNAPSHOT_FAILURES.inc()
        return
    logger.info(
        "snapshot taken",
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
    for name, count in (("kept", outcome.segments), ("absent", outcome.absent), ("damaged", outcome.damaged)):
        metrics.REPLAY_SNAPSHOT_SEGMENTS.labels(name).set(count)
    metrics.REPLAY_SNAPSHOT_BYTES.labels("written").set(outcome.written_bytes)
    metrics.REPLAY_SNAPSHOT_BYTES.labels("shared").set(outcome.shared_bytes)
