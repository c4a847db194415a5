"""Conversion of the replay service's messages."""

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.errors import DamagedWindow, InvalidSegment
from penstock.types.block import Fragment, Schema
from penstock.types.payloads import PayloadPool, layout
from penstock.types.records import plain
from penstock.types.replay import (
    Batch,
    BatchHead,
    CommitOutcome,
    Grant,
    MappedStore,
    Mass,
    SamplingPlan,
    StagingOffer,
    StoreCounts,
    Window,
    WindowHead,
)
from penstock.types.run import Assignment
from penstock.v1 import replay_pb2
from penstock.wire import block
from penstock.wire.block import BlockAssembler, BlockReader, split_final
from penstock.wire.fields import decoded, encoded
from penstock.wire.schema import encode_schema

MAX_BATCH = 2**62
"""Largest number of a batch, which leaves room in 64 bits for those that follow it."""

_PLAN_RANGES: dict[str, tuple[float, float]] = {
    "session": (1, 2**64 - 1),
    "next_batch": (0, MAX_BATCH),
    # A head takes 32 bytes per segment, so a plan can't request more memory than the service has.
    "batch_segments": (1, 2**16),
    "publish_interval": (1, 2**32 - 1),
    "alpha": (0, 100),
    "epsilon": (math.ulp(0.0), 1e100),
    "half_life": (1e-6, sys.float_info.max),
}
"""Least and largest values in a sampling plan, far beyond useful ones."""

_MAX_HEAD_BYTES = 2**18
"""Limit on an actor's message without its payload, in bytes. Once parsed, tiny fields take fifty times their size in
memory, and they cost the service time. A schema of a thousand columns fits."""

_HEAD_COLUMNS: dict[str, type[np.generic]] = {
    "keys": np.uint64,
    "versions": np.int64,
    "priorities": np.float64,
    "probabilities": np.float64,
    "environments": np.uint32,
    "skipped": np.int64,
}
"""Columns of a batch's head by name, with their element types."""

Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """AppendSegments request as received: the message without its window, and the window's bytes, if any."""

    message: replay_pb2.AppendSegmentsRequest
    window: memoryview | None


@dataclass(frozen=True, slots=True)
class SampleResponse:
    """SampleBatches response as received: the message without its block, and the block's bytes, if any."""

    message: replay_pb2.SampleBatchesResponse
    block: memoryview | None

    @property
    def kind(self) -> Literal["opened", "proof", "waiting", "answer", "batch"]:
        """Content of the response. A batch's head may contain an answer too (`decode_commit_answer`)."""
        message = self.message
        if message.HasField("counts") or self.block is not None:
            return "batch"
        if message.HasField("committed"):
            return "answer"
        if message.waiting:
            return "waiting"
        if message.HasField("opened"):
            return "opened"
        return "proof" if message.HasField("proof") else "batch"


def read_append_request(data: bytes) -> AppendRequest:
    """Parses all but the window. Raises `InvalidSegment`, or protobuf's DecodeError."""
    head, window = split_final(data)
    _check_head(head)
    return AppendRequest(replay_pb2.AppendSegmentsRequest.FromString(head), window)


def read_sample_response(data: bytes) -> SampleResponse:
    """Parses all but the block. Raises `InvalidSegment`, or protobuf's DecodeError."""
    head, content = split_final(data)
    return SampleResponse(replay_pb2.SampleBatchesResponse.FromString(head), content)


def encode_window(window: Window) -> Iterator[bytes]:
    """Yields serialised AppendSegmentsRequests, one per part."""
    schema, segments = window.columns.schema, window.columns.segments
    for head, part in block.heads(schema, segments):
        message = _window_head(window.head)
        if head.part:
            message.ClearField("environments")
        heads = [b"", message.SerializeToString(), head.SerializeToString()]
        request, payload = block.blank_message(heads, part.stop - part.start)
        block.clear_gaps(schema, segments, part.start, payload)
        block.pack(window.columns, part.start, payload)
        yield request


def encode_staged_window(window: Window, slot: int, checksum: int) -> bytes:
    """Serialises the AppendSegmentsRequest of a window whose payload, with this checksum, is in a staging slot."""
    whole, _ = next(block.heads(window.columns.schema, window.columns.segments))
    whole.parts = 1
    message = _window_head(window.head, staged_in=slot, staged_checksum=checksum, block=whole)
    return replay_pb2.AppendSegmentsRequest(window=message).SerializeToString()


def _window_head(head: WindowHead, **beside: Any) -> replay_pb2.Window:
    environments = head.environments.tolist()
    return replay_pb2.Window(
        first_sequence=head.first_sequence, version=head.version, environments=environments, **beside
    )


@dataclass(frozen=True, slots=True)
class WindowPart:
    """One part of a received window.

    Attributes:
        head: Head of the window.
        first, last: Whether this is the first part, and the last.
        fragments: This part's bytes of each column; views of `payload`.
        payload: <uint8>[...] view of the message or of the staging slot.
        checksum: Checksum that the sender computed over a staged payload; None for a payload in messages.
    """

    head: WindowHead
    first: bool
    last: bool
    fragments: tuple[Fragment, ...]
    payload: NDArray[np.uint8]
    checksum: int | None

    def verify(self, checksum: int) -> None:
        """Raises `DamagedWindow` if this checksum of the staged payload as read differs from the sender's."""
        if checksum != self.checksum:
            raise DamagedWindow(
                f"the window of slot {self.head.slot} from sequence {self.head.first_sequence} has a different checksum"
                " in the staging area than at its actor; send it again in messages"
            )


class WindowReader:
    """Reader of an actor's windows, which checks them against its announcement. One per stream."""

    def __init__(self, *, schema: Schema, slot: int, incarnation: int, window_segments: int) -> None:
        """Creates a reader from the values of `OpenAppend`."""
        self._staging: NDArray[np.uint8] | None = None
        self._schema, self._slot, self._incarnation = schema, slot, incarnation
        self._segments = window_segments
        _, total = layout(schema, window_segments)
        self._blocks = BlockReader(total, window_segments)
        self._environments: NDArray[np.uint32] = np.zeros(0, np.uint32)

    def take_staged(self, slots: NDArray[np.uint8]) -> None:
        """Accepts windows in the stream's staging area, <uint8>[slots, bytes], from now on."""
        self._staging = slots

    def add(self, message: memoryview) -> WindowPart:
        """Takes the next serialised Window. Raises `InvalidSegment` if it contradicts the announcement."""
        head_bytes, content = split_final(message)
        _check_head(head_bytes)
        window = replay_pb2.Window.FromString(head_bytes)
        staged = self._staged(window.staged_in) if window.HasField("staged_in") else None
        checksum = window.staged_checksum if staged is not None else None
        part = self._blocks.add(self._schema, content if content is not None else b"", staged)
        if part.first:
            self._environments = np.array(window.environments, np.uint32)
        if self._environments.size != self._segments:
            raise InvalidSegment(
                f"the window has {part.segments} segments and {self._environments.size} environments; slot"
                f" {self._slot} announced {self._segments}"
            )
        if window.first_sequence < 1 or window.version < 0:
            raise InvalidSegment(
                f"sequences start at 1 and versions at 0, got {window.first_sequence} and {window.version}"
            )
        head = WindowHead(self._slot, self._incarnation, window.first_sequence, window.version, self._environments)
        return WindowPart(head, part.first, part.last, tuple(part.fragments()), part.data, checksum)

    def _staged(self, number: int) -> NDArray[np.uint8]:
        if self._staging is None or number >= len(self._staging):
            raise InvalidSegment(
                f"a window is in slot {number} of the staging area, which has no such slot or was not proved"
            )
        slot: NDArray[np.uint8] = self._staging[number]
        return slot


def _check_head(head: bytes) -> None:
    if len(head) > _MAX_HEAD_BYTES:
        raise InvalidSegment(
            f"malformed message: it has {len(head)} bytes besides the payload; the maximum is {_MAX_HEAD_BYTES}"
        )


def encode_append_response(
    stored_sequence: int,
    grants: list[Grant],
    staging: StagingOffer | None = None,
    returned: int = 0,
    staging_proof: int | None = None,
) -> replay_pb2.AppendSegmentsResponse:
    """Encodes an acknowledgement with new and returned grants. The first also offers the staging area."""
    return replay_pb2.AppendSegmentsResponse(
        stored_sequence=stored_sequence,
        staging=None if staging is None else plain(staging),
        returned_grants=returned,
        staging_proof=None if staging_proof is None else replay_pb2.StagingProof(number=staging_proof),
        grants=[replay_pb2.Grant(batch=grant.batch, minimum_version=grant.minimum_version) for grant in grants],
    )


def encode_mapped_store(store: MappedStore | None) -> replay_pb2.MappedStore | None:
    """Encodes the offer of a store's file to clients on the same host."""
    return None if store is None else encoded(replay_pb2.MappedStore, store)


def decode_mapped_store(message: replay_pb2.SamplingOpened) -> MappedStore | None:
    """Decodes the store that a server offers; None without one."""
    return decoded(MappedStore, message.store) if message.HasField("store") else None


def encode_plan(plan: SamplingPlan) -> replay_pb2.SamplingPlan:
    """Encodes a sampling plan."""
    return encoded(replay_pb2.SamplingPlan, plan)


def decode_plan(message: replay_pb2.SamplingPlan) -> SamplingPlan:
    """Decodes a sampling plan. Raises `InvalidSegment` for values out of range."""
    plan = decoded(SamplingPlan, message)
    for name, (least, most) in {**_PLAN_RANGES, "fresh_segments": (0, plan.batch_segments)}.items():
        if not least <= getattr(plan, name) <= most:
            raise InvalidSegment(f"invalid plan: {name} {getattr(plan, name)}; {name} must be from {least} to {most}")
    return plan


def batch_messages(
    batch: BatchHead, schema: Schema, part: int, parts: int
) -> Iterator[tuple[bytes, int, NDArray[np.uint8]]]:
    """Allocates serialised SampleBatchesResponses, one per part of the payload, which the caller writes.

    Yields:
        The response, the offset of its part in the payload in bytes, and the part, <uint8>[...].
    """
    for head, section in block.heads(schema, batch.keys.size):
        message = replay_pb2.SampleBatchesResponse(batch=batch.number, part=part, parts=parts)
        if head.part == 0:
            message = encode_batch_head(batch, part, parts)
        heads = [message.SerializeToString(), head.SerializeToString()]
        response, payload = block.blank_message(heads, section.stop - section.start)
        block.clear_gaps(schema, batch.keys.size, section.start, payload)
        yield response, section.start, payload


def encode_batch_head(
    draw: BatchHead, part: int, parts: int, answer: replay_pb2.SampleBatchesResponse | None = None
) -> replay_pb2.SampleBatchesResponse:
    """Encodes a batch without its columns, with the answer to a commit if there is one."""
    columns: dict[str, Any] = {name: _bytes_of(getattr(draw, name)) for name in _HEAD_COLUMNS}
    return replay_pb2.SampleBatchesResponse(
        batch=draw.number,
        part=part,
        parts=parts,
        fresh_segments=draw.fresh_segments,
        counts=encode_counts(draw.counts),
        mass=replay_pb2.Mass(total=draw.mass.total, reference=draw.mass.reference),
        **columns,
        committed=answer.committed if answer is not None else None,
    )


def decode_batch_head(message: replay_pb2.SampleBatchesResponse) -> BatchHead:
    """Decodes the head of a batch. Raises `InvalidSegment` if its columns differ in length."""
    columns: dict[str, Any] = {name: column_of(getattr(message, name), dtype) for name, dtype in _HEAD_COLUMNS.items()}
    head = BatchHead(
        number=message.batch,
        fresh_segments=message.fresh_segments,
        counts=decode_counts(message.counts),
        mass=Mass(message.mass.total, message.mass.reference),
        **columns,
    )
    sizes = {head.keys.size, head.versions.size, head.priorities.size, head.probabilities.size}
    if len(sizes) != 1:
        raise InvalidSegment(f"batch {head.number} has columns of different lengths: {sorted(sizes)}")
    if head.environments.size not in (0, head.fresh_segments):
        raise InvalidSegment(
            f"batch {head.number} has {head.environments.size} environments for {head.fresh_segments} fresh segments"
        )
    if head.skipped.size not in (0, head.keys.size):
        raise InvalidSegment(f"batch {head.number} has {head.skipped.size} skips for {head.keys.size} segments")
    return head


def column_of(data: bytes, dtype: type[Number]) -> NDArray[Number]:
    """Decodes a column's little-endian bytes to <dtype>[...]. Raises `InvalidSegment` if bytes are left over."""
    if len(data) % np.dtype(dtype).itemsize:
        raise InvalidSegment(f"{len(data)} bytes are not a multiple of the size of {np.dtype(dtype).name}")
    # Copied, because an array over `bytes` is read-only.
    return np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).astype(dtype)


def _bytes_of(column: NDArray[np.generic]) -> bytes:
    return column.astype(column.dtype.newbyteorder("<"), copy=False).tobytes()


class BatchAssembler:
    """Assembler of SampleBatches responses into batches. One per stream."""

    def __init__(self, max_bytes: int, pool: PayloadPool | None = None) -> None:
        self._blocks = BlockAssembler(max_bytes, pool)
        self._head: BatchHead | None = None

    def add(self, schema: Schema, response: SampleResponse) -> Batch | None:
        """Takes the next response. Returns the batch once complete. Raises `InvalidSegment` if it does not fit."""
        if response.block is None:
            raise InvalidSegment(f"the response with batch {response.message.batch} has no block")
        # A batch may have no segments, but every head has counts.
        if response.message.HasField("counts"):
            self._head = decode_batch_head(response.message)
        columns = self._blocks.add(schema, response.block)
        if columns is None:
            return None
        if self._head is None or columns.segments != self._head.keys.size:
            raise InvalidSegment(
                f"batch {response.message.batch} has {columns.segments} segments, but its head has another number"
            )
        return Batch(self._head, columns)


def encode_counts(counts: StoreCounts) -> replay_pb2.StoreCounts:
    """Encodes a store's counts."""
    return encoded(replay_pb2.StoreCounts, counts)


def decode_counts(message: replay_pb2.StoreCounts) -> StoreCounts:
    """Decodes a store's counts."""
    return StoreCounts(*(getattr(message, field.name) for field in fields(StoreCounts)))


# Requests of clients and what they read of the responses

CommitRequest = replay_pb2.CommitBatchRequest
SampleRequest = replay_pb2.SampleBatchesRequest


def encode_open_append(schema: Schema, assignment: Assignment) -> replay_pb2.AppendSegmentsRequest:
    """Encodes the first request of an actor's stream, which announces its windows."""
    place, segments = {"slot": assignment.slot, "incarnation": assignment.incarnation}, len(assignment.environments)
    opening = replay_pb2.OpenAppend(schema=encode_schema(schema), window_segments=segments, **place)
    return replay_pb2.AppendSegmentsRequest(open=opening)


def encode_staging_proof(number: int) -> replay_pb2.AppendSegmentsRequest:
    """Encodes the client's proof of its staging area."""
    return replay_pb2.AppendSegmentsRequest(staging=replay_pb2.StagingProof(number=number))


def encode_heartbeat(steps: int) -> replay_pb2.AppendSegmentsRequest:
    """Encodes an actor's heartbeat with the environment steps that it has taken."""
    return replay_pb2.AppendSegmentsRequest(heartbeat=replay_pb2.Heartbeat(steps=steps))


@dataclass(frozen=True, slots=True)
class AppendResponse:
    """A response on an actor's stream.

    The fields are those of the contract's AppendSegmentsResponse; `staging_proof` is the number alone.
    """

    stored_sequence: int
    grants: tuple[Grant, ...]
    returned_grants: int
    staging: StagingOffer | None
    staging_proof: int | None


def decode_append_response(message: replay_pb2.AppendSegmentsResponse) -> AppendResponse:
    """Decodes a response on an actor's stream."""
    return AppendResponse(
        message.stored_sequence,
        tuple(Grant(grant.batch, grant.minimum_version) for grant in message.grants),
        message.returned_grants,
        decoded(StagingOffer, message.staging) if message.HasField("staging") else None,
        message.staging_proof.number if message.HasField("staging_proof") else None,
    )


def encode_plan_request(plan: SamplingPlan) -> SampleRequest:
    """Encodes the request that opens a learner's stream or changes its plan."""
    return SampleRequest(plan=encode_plan(plan))


def encode_proof_request() -> SampleRequest:
    """Encodes the request for a proof of the mapped store."""
    return SampleRequest(prove=replay_pb2.ProveStore())


def encode_batch_request(
    number: int, head_only: bool, replay_segments: int | None = None, commit: CommitRequest | None = None
) -> SampleRequest:
    """Encodes the request for a batch.

    Args:
        number: Number of the batch.
        head_only: Whether the client reads the columns from the mapped store.
        replay_segments: Segments to replay in it; None for the plan's number.
        commit: Commit that the service processes first.
    """
    return SampleRequest(
        batch=replay_pb2.BatchRequest(
            batch=number, part=0, parts=1, head_only=head_only, replay_segments=replay_segments, commit=commit
        )
    )


def encode_commit(
    session: int, number: int, keys: NDArray[np.uint64], priorities: NDArray[np.float64]
) -> CommitRequest:
    """Encodes the commit of a batch: <uint64>[B] keys and <float64>[B] priorities."""
    return CommitRequest(session=session, batch=number, keys=_bytes_of(keys), priorities=_bytes_of(priorities))


def encode_commit_request(commit: CommitRequest) -> SampleRequest:
    """Encodes a commit that no request for a batch carries."""
    return SampleRequest(commit=commit)


@dataclass(frozen=True, slots=True)
class CommitAnswer:
    """Answer to the oldest unanswered commit of a stream.

    Attributes:
        number: Number of the committed batch; None if the answer is part of another batch's head.
        outcome: Outcome of the commit.
    """

    number: int | None
    outcome: CommitOutcome


def decode_commit_answer(response: SampleResponse) -> CommitAnswer | None:
    """Decodes the answer to a commit in a response; None without one."""
    message = response.message
    if not message.HasField("committed"):
        return None
    answer = message.committed
    return CommitAnswer(
        None if message.HasField("counts") else message.batch,
        CommitOutcome(answer.updated, answer.overwritten, answer.repeated_commit),
    )
