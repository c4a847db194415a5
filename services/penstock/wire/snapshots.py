"""Conversion of messages about snapshots of stores and of runs."""

import dataclasses
from collections.abc import Iterator

from penstock.types import RunSnapshot, Snapshot, SnapshotProgress, SnapshotRequest, Weights
from penstock.v1 import replay_pb2, run_pb2, snapshot_pb2
from penstock.wire.run import encode_weights


def encode_requests(request: SnapshotRequest, policy: Weights) -> Iterator[replay_pb2.TakeSnapshotRequest]:
    """Yields the messages that request a snapshot from a store, in order."""
    yield replay_pb2.TakeSnapshotRequest(open=replay_pb2.OpenSnapshot(**dataclasses.asdict(request)))
    for chunk in encode_weights(policy):
        yield replay_pb2.TakeSnapshotRequest(policy=chunk)


def decode_request(message: replay_pb2.OpenSnapshot) -> SnapshotRequest:
    """Decodes the request for a snapshot, without its policy."""
    return SnapshotRequest(message.name, message.version, message.automatic)


def encode_snapshot(snapshot: Snapshot) -> snapshot_pb2.Snapshot:
    """Encodes a complete snapshot."""
    return snapshot_pb2.Snapshot(**dataclasses.asdict(snapshot))


def decode_snapshot(message: snapshot_pb2.Snapshot) -> Snapshot:
    """Decodes a complete snapshot."""
    return Snapshot(**{field.name: getattr(message, field.name) for field in dataclasses.fields(Snapshot)})


def encode_run_snapshot(snapshot: RunSnapshot) -> run_pb2.RunSnapshot:
    """Encodes a complete snapshot of a run."""
    stores = [encode_snapshot(each) for each in snapshot.stores]
    return run_pb2.RunSnapshot(
        name=snapshot.name, version=snapshot.version, env_steps=snapshot.env_steps, stores=stores
    )


def decode_run_snapshot(message: run_pb2.RunSnapshot) -> RunSnapshot:
    """Decodes a complete snapshot of a run."""
    stores = tuple(decode_snapshot(each) for each in message.stores)
    return RunSnapshot(message.name, message.version, message.env_steps, stores)


def encode_progress(progress: SnapshotProgress) -> snapshot_pb2.SnapshotProgress:
    """Encodes the progress of a snapshot."""
    return snapshot_pb2.SnapshotProgress(**dataclasses.asdict(progress))


def decode_progress(message: snapshot_pb2.SnapshotProgress) -> SnapshotProgress:
    """Decodes the progress of a snapshot."""
    return SnapshotProgress(
        **{field.name: getattr(message, field.name) for field in dataclasses.fields(SnapshotProgress)}
    )
