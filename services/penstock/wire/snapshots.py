"""Conversion of messages about snapshots of stores and of runs."""

from collections.abc import Iterator
from typing import Any

from penstock.errors import InvalidSegment
from penstock.types.records import plain
from penstock.types.run import Weights
from penstock.types.snapshots import RunSnapshot, Snapshot, SnapshotProgress, SnapshotRequest
from penstock.v1 import replay_pb2, run_pb2
from penstock.wire.fields import decoded
from penstock.wire.run import WeightsAssembler, encode_weights


def encode_requests(request: SnapshotRequest, policy: Weights) -> Iterator[replay_pb2.TakeSnapshotRequest]:
    """Yields the messages that request a snapshot from a store, in order."""
    yield replay_pb2.TakeSnapshotRequest(open=plain(request))
    for chunk in encode_weights(policy):
        yield replay_pb2.TakeSnapshotRequest(policy=chunk)


def decode_opening(message: replay_pb2.TakeSnapshotRequest) -> SnapshotRequest:
    """Decodes the first request for a snapshot. Raises `InvalidSegment` if it is another message."""
    if message.WhichOneof("message") != "open":
        raise InvalidSegment("a snapshot must begin with `open`")
    return decoded(SnapshotRequest, message.open)


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
    return replay_pb2.TakeSnapshotResponse(**_progress_or_snapshot(state))


def decode_taking(message: replay_pb2.TakeSnapshotResponse) -> SnapshotProgress | Snapshot:
    """Decodes a response with the progress of a snapshot, or with the complete one."""
    if message.HasField("snapshot"):
        return decoded(Snapshot, message.snapshot)
    return decoded(SnapshotProgress, message.progress)


def encode_list(snapshots: list[Snapshot]) -> replay_pb2.ListSnapshotsResponse:
    """Encodes the list of complete snapshots."""
    return replay_pb2.ListSnapshotsResponse(snapshots=map(plain, snapshots))


def decode_list(message: replay_pb2.ListSnapshotsResponse) -> list[Snapshot]:
    """Decodes the list of complete snapshots."""
    return [decoded(Snapshot, each) for each in message.snapshots]


def encode_run_taking(state: SnapshotProgress | RunSnapshot) -> run_pb2.TakeRunSnapshotResponse:
    """Encodes a response with the progress of a run's snapshot, or with the complete one."""
    return run_pb2.TakeRunSnapshotResponse(**_progress_or_snapshot(state))


def decode_run_taking(message: run_pb2.TakeRunSnapshotResponse) -> SnapshotProgress | RunSnapshot:
    """Decodes a response with the progress of a run's snapshot, or with the complete one."""
    if message.HasField("snapshot"):
        return decoded(RunSnapshot, message.snapshot)
    return decoded(SnapshotProgress, message.progress)


def _progress_or_snapshot(state: SnapshotProgress | Snapshot | RunSnapshot) -> dict[str, Any]:
    return {"progress" if isinstance(state, SnapshotProgress) else "snapshot": plain(state)}
