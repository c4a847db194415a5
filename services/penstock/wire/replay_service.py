"""The replay service's side of its control messages: requests that it decodes and responses that it encodes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.errors import InvalidSegment
from penstock.types.block import Schema
from penstock.types.replay import CommitOutcome, MappedStore, SamplingPlan, StoreCounts
from penstock.types.waits import Awaited
from penstock.v1 import replay_pb2
from penstock.wire.replay import MAX_BATCH, AppendRequest, column_of, decode_plan, encode_counts, encode_mapped_store
from penstock.wire.schema import decode_schema

SampleResponseMessage = replay_pb2.SampleBatchesResponse


@dataclass(frozen=True, slots=True)
class Opening:
    """First request of an actor's stream.

    Attributes:
        slot: Place of the actor in the run.
        incarnation: Stay of the actor in its slot.
        schema: Schema of its segments.
        window_segments: Segments in each of its windows.
    """

    slot: int
    incarnation: int
    schema: Schema
    window_segments: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Sign of life of an actor, with the environment steps that it has taken."""

    steps: int


@dataclass(frozen=True, slots=True)
class StagingProof:
    """Number that an actor has written to its staging area."""

    number: int


@dataclass(frozen=True, slots=True)
class ProofRequest:
    """Request for a proof of the mapped store."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit of a batch; the fields are the arguments of `Leases.commit`."""

    session: int
    number: int
    keys: NDArray[np.uint64]
    priorities: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """Request for one part of a batch.

    Attributes:
        number: Number of the batch.
        part: Index of the part.
        parts: Number of parts of the batch, at least 1.
        head_only: Whether the client reads the columns from the mapped store.
        replay_segments: Segments to replay in the batch; None for the plan's number.
        commit: Commit to process first.
    """

    number: int
    part: int
    parts: int
    head_only: bool
    replay_segments: int | None
    commit: Commit | None


def decode_opening(request: AppendRequest) -> Opening:
    """Decodes the first request of an actor's stream. Raises `InvalidSegment` for any other."""
    if request.message.WhichOneof("message") != "open":
        raise InvalidSegment("an append stream must begin with `open`")
    message = request.message.open
    return Opening(message.slot, message.incarnation, decode_schema(message.schema), message.window_segments)


def decode_append_request(request: AppendRequest, *, staged: bool) -> Heartbeat | StagingProof:
    """Decodes a later request without a window; `staged` is whether the stream has a staging area.

    Raises:
        InvalidSegment: The request is another, or proves a staging area that the stream does not have.
    """
    match request.message.WhichOneof("message"):
        case "heartbeat":
            return Heartbeat(request.message.heartbeat.steps)
        case "staging" if staged:
            return StagingProof(request.message.staging.number)
    raise InvalidSegment("after `open`, an append stream carries windows, heartbeats and a proof of the staging area")


def decode_first_plan(message: replay_pb2.SampleBatchesRequest) -> SamplingPlan:
    """Decodes the first request of a learner's stream. Raises `InvalidSegment` for any other."""
    if message.WhichOneof("message") != "plan":
        raise InvalidSegment("a sampling stream must begin with `plan`")
    return decode_plan(message.plan)


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
        case "batch" if message.batch.part < max(1, message.batch.parts):
            batch = message.batch
            return BatchRequest(
                batch.batch,
                batch.part,
                max(1, batch.parts),
                batch.head_only,
                batch.replay_segments if batch.HasField("replay_segments") else None,
                decode_commit(batch.commit) if batch.HasField("commit") else None,
            )
    raise InvalidSegment(
        "after `plan`, a sampling stream carries plans, commits, `prove`, and requests for part 0 to parts - 1"
    )


def decode_commit(message: replay_pb2.CommitBatchRequest) -> Commit:
    """Decodes a commit. Raises `InvalidSegment` for values out of range."""
    if message.batch > MAX_BATCH:
        raise InvalidSegment(f"batch {message.batch} can't be committed: the largest number is {MAX_BATCH}")
    keys, priorities = column_of(message.keys, np.uint64), column_of(message.priorities, np.float64)
    return Commit(message.session, message.batch, keys, priorities)


def encode_opened(store: MappedStore | None) -> SampleResponseMessage:
    """Encodes the acceptance of a plan, with the offer of the store's file."""
    return SampleResponseMessage(opened=replay_pb2.SamplingOpened(store=encode_mapped_store(store)))


def encode_proof(number: int) -> SampleResponseMessage:
    """Encodes the proof of the mapped store."""
    return SampleResponseMessage(proof=replay_pb2.StoreProof(number=number))


def encode_waiting(reason: Awaited, request: BatchRequest | None = None) -> SampleResponseMessage:
    """Encodes the reason for which a requested batch, or the first one, is not ready."""
    if request is None:
        return SampleResponseMessage(waiting=reason)
    return SampleResponseMessage(batch=request.number, part=request.part, parts=request.parts, waiting=reason)


def encode_commit_answer(number: int, outcome: CommitOutcome) -> SampleResponseMessage:
    """Encodes the answer to a commit on a learner's stream."""
    return SampleResponseMessage(batch=number, committed=encode_outcome(outcome))


def encode_outcome(outcome: CommitOutcome) -> replay_pb2.CommitBatchResponse:
    """Encodes the outcome of a commit."""
    return replay_pb2.CommitBatchResponse(
        updated=outcome.updated, overwritten=outcome.overwritten, repeated_commit=outcome.repeated
    )


def encode_finished() -> replay_pb2.FinishRunResponse:
    """Encodes the answer to the end of a run."""
    return replay_pb2.FinishRunResponse()


def encode_status(
    counts: StoreCounts, *, version: int, actors: int, collection_waits_for: Awaited, training_waits_for: Awaited
) -> replay_pb2.GetReplayStatusResponse:
    """Encodes the status of a replay service."""
    return replay_pb2.GetReplayStatusResponse(
        counts=encode_counts(counts),
        version=version,
        actors=actors,
        collection_waits_for=collection_waits_for,
        training_waits_for=training_waits_for,
    )
