"""Conversion of the learner's calls: plans, batches and commits, and the status of a replay service."""

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.errors import InvalidSegment
from penstock.types.block import Schema
from penstock.types.codecs import ENCODINGS, Codec
from penstock.types.location import Location, Place
from penstock.types.payloads import PayloadPool, Places, allocate, places
from penstock.types.replay import (
    MAX_BATCH_SEGMENTS,
    MAX_SLOTS,
    Batch,
    BatchHead,
    CommitOutcome,
    MappedStore,
    Mass,
    SamplingPlan,
    StoreCounts,
)
from penstock.types.run import KEY_BYTES
from penstock.types.waits import Awaited
from penstock.v1 import block_pb2, replay_pb2
from penstock.wire import block
from penstock.wire.block import BlockAssembler, EncodedColumns, split_final
from penstock.wire.fields import decoded, encoded
from penstock.wire.location import decode_location, decode_place, encode_location, encode_place

MAX_BATCH = 2**62
"""Largest number of a batch, which leaves room in 64 bits for those that follow it."""

_PLAN_RANGES: dict[str, tuple[float, float]] = {
    "session": (1, 2**64 - 1),
    "next_batch": (0, MAX_BATCH),
    "batch_segments": (1, MAX_BATCH_SEGMENTS),
    "publish_interval": (1, 2**32 - 1),
    "alpha": (0, 100),
    "epsilon": (math.ulp(0.0), 1e100),
    "half_life": (1e-6, math.inf),
    "largest_magnitude": (0, math.inf),
}
"""Least and largest values in a sampling plan, far beyond useful ones."""

_LARGEST_WEIGHT = 1e100
"""Largest weight of a slot. The sum over all slots is finite."""

_HEAD_COLUMNS: dict[str, type[np.generic]] = {
    "keys": np.uint64,
    "versions": np.int64,
    "priorities": np.float64,
    "probabilities": np.float64,
    "environments": np.uint32,
    "slots": np.uint32,
    "skipped": np.int64,
}
"""Columns of a batch's head by name, with their element types."""

_LITTLE_ENDIAN = {dtype: np.dtype(dtype).newbyteorder("<") for dtype in _HEAD_COLUMNS.values()}

_COUNTS = tuple(field.name for field in fields(StoreCounts))

SampleRequest = replay_pb2.SampleBatchesRequest

SampleResponseMessage = replay_pb2.SampleBatchesResponse

CommitRequest = replay_pb2.CommitBatchRequest


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
        return message.WhichOneof("notice") or "batch"


def read_sample_response(data: bytes) -> SampleResponse:
    """Parses all but the block. Raises `InvalidSegment`, or protobuf's DecodeError."""
    head, content = split_final(data)
    return SampleResponse(replay_pb2.SampleBatchesResponse.FromString(head), content)


def encode_plan(plan: SamplingPlan) -> replay_pb2.SamplingPlan:
    """Encodes a sampling plan."""
    return encoded(replay_pb2.SamplingPlan, plan)


def decode_plan(message: replay_pb2.SamplingPlan) -> SamplingPlan:
    """Decodes a sampling plan. Raises `InvalidSegment` for values out of range."""
    plan = decoded(SamplingPlan, message)
    for name, (least, most) in {**_PLAN_RANGES, "fresh_segments": (0, plan.batch_segments)}.items():
        if not least <= getattr(plan, name) <= most:
            raise InvalidSegment(f"invalid plan: {name} {getattr(plan, name)}; {name} must be from {least} to {most}")
    if len(plan.actor_key) not in (0, KEY_BYTES):
        raise InvalidSegment(f"invalid plan: an actor_key of {len(plan.actor_key)} bytes; it must have {KEY_BYTES}")
    if plan.slot_weights:
        _check_weights(plan.slot_weights)
    return plan


def _check_weights(weights: tuple[float, ...]) -> None:
    if len(weights) > MAX_SLOTS:
        raise InvalidSegment(f"invalid plan: {len(weights)} slot_weights; at most {MAX_SLOTS} slots exist")
    for slot, weight in enumerate(weights):
        if not 0.0 <= weight <= _LARGEST_WEIGHT:
            raise InvalidSegment(
                f"invalid plan: slot_weights[{slot}] is {weight:g}; weights must be from 0 to {_LARGEST_WEIGHT:g}"
            )
    if not any(weights):
        raise InvalidSegment("invalid plan: all slot_weights are 0; one must be positive, or leave them out")


def encode_plan_request(plan: SamplingPlan, codecs: Sequence[Codec] = ()) -> SampleRequest:
    """Encodes the request that opens a learner's stream, with the codecs that it reads, or changes its plan."""
    return SampleRequest(plan=encode_plan(plan), codecs=[block_pb2.Codec.Name(codec) for codec in codecs])


def decode_first_plan(message: replay_pb2.SampleBatchesRequest) -> SamplingPlan:
    """Decodes the first request of a learner's stream. Raises `InvalidSegment` for any other."""
    if message.WhichOneof("message") != "plan":
        raise InvalidSegment("a sampling stream must begin with `plan`")
    return decode_plan(message.plan)


def decode_codecs(message: replay_pb2.SampleBatchesRequest) -> tuple[Codec, ...]:
    """Decodes the codecs that a learner reads, of those that this release stores, from its first request."""
    return tuple(codec for codec in ENCODINGS if int(codec) in set(map(int, message.codecs)))


def encode_opened(store: MappedStore | None) -> SampleResponseMessage:
    """Encodes the acceptance of a plan, with the offer of the store's file."""
    offered = None if store is None else encoded(replay_pb2.MappedStore, store)
    return SampleResponseMessage(opened=replay_pb2.SamplingOpened(store=offered))


def decode_mapped_store(message: replay_pb2.SamplingOpened) -> MappedStore | None:
    """Decodes the store that a server offers; None without one."""
    return decoded(MappedStore, message.store) if message.HasField("store") else None


@dataclass(frozen=True, slots=True)
class ProofRequest:
    """Request for a proof of the mapped store."""


def encode_proof_request() -> SampleRequest:
    """Encodes the request for a proof of the mapped store."""
    return SampleRequest(prove=replay_pb2.ProveStore())


def encode_proof(number: int) -> SampleResponseMessage:
    """Encodes the proof of the mapped store."""
    return SampleResponseMessage(proof=replay_pb2.StoreProof(number=number))


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit of a batch; the fields are the arguments of `Leases.commit`."""

    session: int
    number: int
    keys: NDArray[np.uint64]
    priorities: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """Request for a batch, with the fields of the contract's BatchRequest."""

    number: int
    head_only: bool
    replay_segments: int | None
    commit: Commit | None


def encode_batch_request(
    number: int, head_only: bool, replay_segments: int | None = None, commit: CommitRequest | None = None
) -> SampleRequest:
    """Encodes the request for a batch. The arguments are fields of `BatchRequest`."""
    return SampleRequest(
        batch=replay_pb2.BatchRequest(batch=number, head_only=head_only, replay_segments=replay_segments, commit=commit)
    )


def encode_waiting(reason: Awaited, request: BatchRequest | None = None) -> SampleResponseMessage:
    """Encodes the reason for which a requested batch, or the first one, is not ready."""
    if request is None:
        return SampleResponseMessage(waiting=reason)
    return SampleResponseMessage(batch=request.number, waiting=reason)


def batch_messages(
    batch: BatchHead, schema: Schema, where: Places | None = None
) -> Iterator[tuple[bytes, int, NDArray[np.uint8]]]:
    """Allocates serialised SampleBatchesResponses, one per part of the payload, which the caller writes.

    `where` has the places of the columns; None if all are raw.

    Yields:
        The response, the offset of its part in the payload in bytes, and the part, <uint8>[...].
    """
    where = where or places(schema, batch.keys.size)
    for head, section in block.heads(schema, batch.keys.size, where):
        message = replay_pb2.SampleBatchesResponse(batch=batch.number)
        if head.part == 0:
            message = encode_batch_head(batch)
        heads = [message.SerializeToString(), head.SerializeToString()]
        response, payload = block.blank_message(heads, section.stop - section.start)
        block.clear_gaps(where, section.start, payload)
        yield response, section.start, payload


def encode_batch_head(
    draw: BatchHead, answer: replay_pb2.SampleBatchesResponse | None = None
) -> replay_pb2.SampleBatchesResponse:
    """Encodes a batch without its columns, with the answer to a commit if there is one."""
    columns: dict[str, Any] = {name: _bytes_of(getattr(draw, name)) for name in _HEAD_COLUMNS}
    return replay_pb2.SampleBatchesResponse(
        batch=draw.number,
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
    for name in ("environments", "slots"):
        if (size := getattr(head, name).size) not in (0, head.fresh_segments):
            raise InvalidSegment(f"batch {head.number} has {size} {name} for {head.fresh_segments} fresh segments")
    if head.skipped.size not in (0, head.keys.size):
        raise InvalidSegment(f"batch {head.number} has {head.skipped.size} skips for {head.keys.size} segments")
    return head


def encode_counts(counts: StoreCounts) -> replay_pb2.StoreCounts:
    """Encodes a store's counts. Heads have them, so that the general `encoded` would take a tenth of their time."""
    return replay_pb2.StoreCounts(**{name: getattr(counts, name) for name in _COUNTS})


def decode_counts(message: replay_pb2.StoreCounts) -> StoreCounts:
    """Decodes a store's counts."""
    return StoreCounts(*map(message.__getattribute__, _COUNTS))


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """A received batch with encoded columns."""

    head: BatchHead
    columns: EncodedColumns

    def decode(self, pool: PayloadPool) -> tuple[Batch, int]:
        """Returns the batch with columns in memory of the pool, and how many segments' columns were damaged.

        Those are replaced as in `EncodedColumns.decode`.
        """
        columns = allocate(self.columns.schema, self.columns.segments, pool)
        damaged = self.columns.decode(columns)
        return Batch(self.head, columns), damaged


class BatchAssembler:
    """Assembler of SampleBatches responses into batches. One per stream."""

    def __init__(self, max_bytes: int, pool: PayloadPool | None = None) -> None:
        self._blocks = BlockAssembler(max_bytes, pool)
        self._head: BatchHead | None = None

    def add(self, schema: Schema, response: SampleResponse) -> Batch | EncodedBatch | None:
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
        if isinstance(columns, EncodedColumns):
            return EncodedBatch(self._head, columns)
        return Batch(self._head, columns)


def encode_commit(
    session: int, number: int, keys: NDArray[np.uint64], priorities: NDArray[np.float64]
) -> CommitRequest:
    """Encodes the commit of a batch: <uint64>[B] keys and <float64>[B] priorities."""
    return CommitRequest(session=session, batch=number, keys=_bytes_of(keys), priorities=_bytes_of(priorities))


def encode_commit_request(commit: CommitRequest) -> SampleRequest:
    """Encodes a commit that no request for a batch carries."""
    return SampleRequest(commit=commit)


def decode_commit(message: replay_pb2.CommitBatchRequest) -> Commit:
    """Decodes a commit. Raises `InvalidSegment` for values out of range."""
    if message.batch > MAX_BATCH:
        raise InvalidSegment(f"batch {message.batch} can't be committed: the largest number is {MAX_BATCH}")
    keys, priorities = column_of(message.keys, np.uint64), column_of(message.priorities, np.float64)
    return Commit(message.session, message.batch, keys, priorities)


def decode_sample_request(
    message: replay_pb2.SampleBatchesRequest,
) -> SamplingPlan | BatchRequest | Commit | ProofRequest:
    """Decodes a later request of a learner's stream. Raises `InvalidSegment` if it is none or has invalid values."""
    match message.WhichOneof("message"):
        case "plan":
            return decode_plan(message.plan)
        case "commit":
            return decode_commit(message.commit)
        case "prove":
            return ProofRequest()
        case "batch":
            batch = message.batch
            return BatchRequest(
                batch.batch,
                batch.head_only,
                batch.replay_segments if batch.HasField("replay_segments") else None,
                decode_commit(batch.commit) if batch.HasField("commit") else None,
            )
    raise InvalidSegment("after `plan`, a sampling stream carries plans, commits, `prove`, and requests for batches")


def encode_commit_answer(number: int, outcome: CommitOutcome) -> SampleResponseMessage:
    """Encodes the answer to a commit on a learner's stream."""
    return SampleResponseMessage(batch=number, committed=encode_outcome(outcome))


def encode_outcome(outcome: CommitOutcome) -> replay_pb2.CommitBatchResponse:
    """Encodes the outcome of a commit."""
    return replay_pb2.CommitBatchResponse(
        updated=outcome.updated, overwritten=outcome.overwritten, repeated_commit=outcome.repeated
    )


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


def encode_finished() -> replay_pb2.FinishRunResponse:
    """Encodes the answer to the end of a run."""
    return replay_pb2.FinishRunResponse()


def encode_status(
    counts: StoreCounts,
    *,
    version: int,
    actors: int,
    collection_waits_for: Awaited,
    training_waits_for: Awaited,
    place: Place,
    location: Location,
    largest_incarnation: int,
) -> replay_pb2.GetReplayStatusResponse:
    """Encodes the status of a replay service."""
    return replay_pb2.GetReplayStatusResponse(
        counts=encoded(replay_pb2.StoreCounts, counts),
        version=version,
        actors=actors,
        collection_waits_for=collection_waits_for,
        training_waits_for=training_waits_for,
        place=encode_place(place),
        location=encode_location(location),
        largest_incarnation=largest_incarnation,
    )


def decode_status_place(status: replay_pb2.GetReplayStatusResponse) -> Place | None:
    """Decodes where a replay service is; None if it is an older one, which does not say. Raises as `decode_place`."""
    return decode_place(status.place) if status.HasField("place") else None


def decode_status_location(status: replay_pb2.GetReplayStatusResponse) -> Location:
    """Decodes where a replay service runs. Raises as `decode_location`."""
    return decode_location(status.location)


Number = TypeVar("Number", bound=np.generic)


def column_of(data: bytes, dtype: type[Number]) -> NDArray[Number]:
    """Decodes a column's little-endian bytes to <dtype>[...]. Raises `InvalidSegment` if bytes are left over."""
    if len(data) % np.dtype(dtype).itemsize:
        raise InvalidSegment(f"{len(data)} bytes are not a multiple of the size of {np.dtype(dtype).name}")
    # Copied, because an array over `bytes` is read-only.
    return np.frombuffer(data, _LITTLE_ENDIAN.get(dtype) or np.dtype(dtype).newbyteorder("<")).astype(dtype)


def _bytes_of(column: NDArray[np.generic]) -> bytes:
    return (column if sys.byteorder == "little" else column.astype(column.dtype.newbyteorder("<"))).tobytes()
