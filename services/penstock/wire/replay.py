"""Messages of the replay service."""

import dataclasses
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from penstock.errors import InvalidSegment
from penstock.types import Batch, Columns, Grant, SamplingPlan, Schema, StoreCounts, Window
from penstock.v1 import replay_pb2
from penstock.wire import block
from penstock.wire.block import BlockAssembler


def encode_window(window: Window) -> Iterator[bytes]:
    """Serialised AppendSegmentsRequests, one a part."""
    schema, segments = window.columns.schema, window.columns.segments
    payload = block.pack(window.columns)
    for head, part in block.heads(schema, segments):
        first = head.part == 0
        message = replay_pb2.Window(
            first_sequence=window.first_sequence,
            version=window.version,
            environments=window.environments.tolist() if first else (),
        )
        yield block.append_payload([b"", message.SerializeToString(), head.SerializeToString()], payload[part])


class WindowAssembler:
    """Turns an actor's window messages into windows. One a stream."""

    def __init__(self, *, schema: Schema, slot: int, incarnation: int, window_segments: int) -> None:
        self._schema, self._slot, self._incarnation = schema, slot, incarnation
        self._segments = window_segments
        _, total = block.layout(schema, window_segments)
        self._blocks = BlockAssembler(total)
        self._environments: NDArray[np.uint32] = np.zeros(0, np.uint32)

    def add(self, message: replay_pb2.Window) -> Window | None:
        """Takes the next message; returns the window when it is whole. Raises `InvalidSegment` if it does not fit."""
        if message.block.part == 0:
            self._environments = np.array(message.environments, np.uint32)
        if message.block.segments != self._segments or self._environments.size != self._segments:
            raise InvalidSegment(
                f"a window of {message.block.segments} segments and {self._environments.size} environments; slot"
                f" {self._slot} announced {self._segments}"
            )
        if message.first_sequence < 1 or message.version < 0:
            raise InvalidSegment(
                f"sequences start at 1 and versions at 0, got {message.first_sequence} and {message.version}"
            )
        columns = self._blocks.add(self._schema, message.block)
        if columns is None:
            return None
        block.check_values(columns)
        return Window(
            self._slot, self._incarnation, message.first_sequence, message.version, self._environments, columns
        )


def encode_append_response(stored_sequence: int, grants: list[Grant]) -> replay_pb2.AppendSegmentsResponse:
    """The message of an acknowledgement and new grants."""
    return replay_pb2.AppendSegmentsResponse(
        stored_sequence=stored_sequence,
        grants=[replay_pb2.Grant(batch=grant.batch, minimum_version=grant.minimum_version) for grant in grants],
    )


def encode_plan(plan: SamplingPlan) -> replay_pb2.SamplingPlan:
    """The message of a sampling plan."""
    return replay_pb2.SamplingPlan(**dataclasses.asdict(plan))


def decode_plan(message: replay_pb2.SamplingPlan) -> SamplingPlan:
    """The plan of a message. Raises `InvalidSegment` for values out of range."""
    plan = SamplingPlan(**{field.name: getattr(message, field.name) for field in dataclasses.fields(SamplingPlan)})
    numbers = (plan.alpha, plan.epsilon, plan.half_life)
    if not np.isfinite(numbers).all() or plan.alpha < 0.0 or plan.epsilon <= 0.0 or plan.half_life <= 0.0:
        raise InvalidSegment(f"alpha must be at least 0, epsilon and half_life positive; got {numbers}")
    if not 1 <= plan.fresh_segments <= plan.batch_segments or plan.publish_interval < 1 or plan.next_batch < 0:
        raise InvalidSegment(
            f"a batch of {plan.batch_segments} segments with {plan.fresh_segments} fresh ones, published every"
            f" {plan.publish_interval}, from batch {plan.next_batch} on, makes no sense"
        )
    if plan.session == 0:
        raise InvalidSegment("a session must not be 0")
    return plan


def encode_batch(batch: Batch, payload: NDArray[np.uint8], part: int, parts: int) -> Iterator[bytes]:
    """Serialised SampleBatchesResponses, one a part of the payload, in which `batch.columns` lie."""
    for head, section in block.heads(batch.columns.schema, batch.columns.segments):
        message = replay_pb2.SampleBatchesResponse(batch=batch.number, part=part, parts=parts)
        if head.part == 0:
            message.fresh_segments = batch.fresh_segments
            message.keys.extend(batch.keys.tolist())
            message.versions.extend(batch.versions.tolist())
            message.priorities.extend(batch.priorities.tolist())
            message.probabilities.extend(batch.probabilities.tolist())
            message.counts.CopyFrom(encode_counts(batch.counts))
        yield block.append_payload([message.SerializeToString(), head.SerializeToString()], payload[section])


class BatchAssembler:
    """Turns the responses of SampleBatches into batches. One a stream."""

    def __init__(self, max_bytes: int) -> None:
        self._blocks = BlockAssembler(max_bytes)
        self._head = replay_pb2.SampleBatchesResponse()

    def add(self, schema: Schema, message: replay_pb2.SampleBatchesResponse) -> Batch | None:
        """Takes the next message; returns the batch when it is whole. Raises `InvalidSegment` if it does not fit."""
        if message.block.part == 0:
            self._head = message
        columns = self._blocks.add(schema, message.block)
        return None if columns is None else _decode_batch(self._head, columns)


def _decode_batch(head: replay_pb2.SampleBatchesResponse, columns: Columns) -> Batch:
    batch = Batch(
        number=head.batch,
        fresh_segments=head.fresh_segments,
        keys=np.array(head.keys, np.uint64),
        versions=np.array(head.versions, np.int64),
        priorities=np.array(head.priorities, np.float64),
        probabilities=np.array(head.probabilities, np.float64),
        counts=decode_counts(head.counts),
        columns=columns,
    )
    sizes = {batch.keys.size, batch.versions.size, batch.priorities.size, batch.probabilities.size, columns.segments}
    if len(sizes) != 1:
        raise InvalidSegment(f"batch {batch.number} has columns of different lengths: {sorted(sizes)}")
    return batch


def encode_counts(counts: StoreCounts) -> replay_pb2.StoreCounts:
    """The message of a store's numbers."""
    return replay_pb2.StoreCounts(**dataclasses.asdict(counts))


def decode_counts(message: replay_pb2.StoreCounts) -> StoreCounts:
    """A store's numbers, of a message."""
    return StoreCounts(**{field.name: getattr(message, field.name) for field in dataclasses.fields(StoreCounts)})
