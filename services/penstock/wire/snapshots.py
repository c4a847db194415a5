"""Conversion of messages about snapshots of stores and of runs."""

import dataclasses
from collections.abc import Iterator

from penstock.errors import InvalidSegment
from penstock.types.run import Weights
from penstock.types.snapshots import RunSnapshot, Snapshot, SnapshotProgress, SnapshotRequest
from penstock.v1 import replay_pb2, run_pb2, snapshot_pb2
from penstock.wire.run import WeightsAssembler, encode_weights


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


# Requests and responses


def decode_opening(message: replay_pb2.TakeSnapshotRequest) -> SnapshotRequest:
    """Decodes the first request for a snapshot. Raises `InvalidSegment` if it is another message."""
    if message.WhichOneof("message") != "open":
        raise InvalidSegment("a snapshot must begin with `open`")
    return decode_request(message.open)


class PolicyAssembler:
    """Assembler of the requests after the first into the snapshot's policy. One per stream."""

    def __init__(self) -> None:
        self._weights = WeightsAssembler()

    def add(self, message: replay_pb2.TakeSnapshotRequest) -> Weights | None:
        """Takes the next request. Returns the policy once it is complete. Raises as `WeightsAssembler.add`."""
        if message.WhichOneof("message") != "policy":
            raise InvalidSegment("after `open`, the request for a snapshot carries its policy")
        return self._weights.add(message.policy)


def encode_taking(state: SnapshotProgress | Snapshot) -> replay_pb2.TakeSnapshotResponse:
    """Encodes a response with the progress of a snapshot, or with the complete one."""
    if isinstance(state, Snapshot):
        return replay_pb2.TakeSnapshotResponse(snapshot=encode_snapshot(state))
    return replay_pb2.TakeSnapshotResponse(progress=encode_progress(state))


def decode_taking(message: replay_pb2.TakeSnapshotResponse) -> SnapshotProgress | Snapshot:
    """Decodes a response with the progress of a snapshot, or with the complete one."""
    if message.HasField("snapshot"):
        return decode_snapshot(message.snapshot)
    return decode_progress(message.progress)


def encode_list_request() -> replay_pb2.ListSnapshotsRequest:
    """Encodes the request for the list of complete snapshots."""
    return replay_pb2.ListSnapshotsRequest()


def encode_list(snapshots: list[Snapshot]) -> replay_pb2.ListSnapshotsResponse:
    """Encodes the list of complete snapshots."""
    return replay_pb2.ListSnapshotsResponse(snapshots=[encode_snapshot(each) for each in snapshots])


def decode_list(message: replay_pb2.ListSnapshotsResponse) -> list[Snapshot]:
    """Decodes the list of complete snapshots."""
    return [decode_snapshot(each) for each in message.snapshots]


def encode_run_request(name: str) -> run_pb2.TakeRunSnapshotRequest:
    """Encodes the request for a snapshot of a run."""
    return run_pb2.TakeRunSnapshotRequest(name=name)


def decode_run_request(message: run_pb2.TakeRunSnapshotRequest) -> str:
    """Decodes the requested name of a snapshot of a run."""
    return message.name


def encode_run_taking(state: SnapshotProgress | RunSnapshot) -> run_pb2.TakeRunSnapshotResponse:
    """Encodes a response with the progress of a run's snapshot, or with the complete one."""
    if isinstance(state, RunSnapshot):
        return run_pb2.TakeRunSnapshotResponse(snapshot=encode_run_snapshot(state))
    return run_pb2.TakeRunSnapshotResponse(progress=encode_progress(state))


def decode_run_taking(message: run_pb2.TakeRunSnapshotResponse) -> SnapshotProgress | RunSnapshot:
    """Decodes a response with the progress of a run's snapshot, or with the complete one."""
    if message.HasField("snapshot"):
        return decode_run_snapshot(message.snapshot)
    return decode_progress(message.progress)
