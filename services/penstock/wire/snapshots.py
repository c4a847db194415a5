"""Messages about snapshots of a replay store."""

import dataclasses

from penstock.types import Snapshot, SnapshotProgress
from penstock.v1 import replay_pb2


def encode_snapshot(snapshot: Snapshot) -> replay_pb2.Snapshot:
    """The message of a complete snapshot."""
    return replay_pb2.Snapshot(**dataclasses.asdict(snapshot))


def decode_snapshot(message: replay_pb2.Snapshot) -> Snapshot:
    """The complete snapshot of a message."""
    return Snapshot(**{field.name: getattr(message, field.name) for field in dataclasses.fields(Snapshot)})


def encode_progress(progress: SnapshotProgress) -> replay_pb2.TakeSnapshotResponse:
    """The message of how far a snapshot is."""
    return replay_pb2.TakeSnapshotResponse(progress=replay_pb2.SnapshotProgress(**dataclasses.asdict(progress)))


def decode_progress(message: replay_pb2.SnapshotProgress) -> SnapshotProgress:
    """How far a snapshot is, of a message."""
    return SnapshotProgress(
        **{field.name: getattr(message, field.name) for field in dataclasses.fields(SnapshotProgress)}
    )
