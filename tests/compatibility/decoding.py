"""What the present code makes of recorded messages: their values, and which fields it accepts to be absent."""

import dataclasses
import enum
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.errors import PenstockError, RunFinished
from penstock.types.evaluation import EvaluationTask
from penstock.types.run import Weights
from penstock.v1 import evaluation_pb2, replay_pb2, run_pb2
from penstock.wire import batches, run, snapshots, windows
from tests.compatibility.messages import METHODS, Recorded, without_each_field

_MOST_VALUES = 64


def values(recorded: Recorded, earlier: Sequence[Recorded]) -> Any:
    """Returns the decoded message as plain values; `earlier` are those before it of its method and direction.

    Raises `PenstockError` if the present code refuses it.
    """
    decode = _DECODERS[METHODS[recorded.method].name, recorded.direction]
    return _plain(decode(recorded.data, [each.data for each in earlier]))


def accepted(recorded: Recorded, earlier: Sequence[Recorded]) -> list[str]:
    """Returns the paths of the fields without which the present code accepts a message."""
    paths = []
    for path, lacking in without_each_field(recorded.parsed):
        try:
            values(dataclasses.replace(recorded, data=lacking.SerializeToString()), earlier)
        except PenstockError:
            continue
        paths.append(path)
    return paths


def contains(present: Any, released: Any) -> bool:
    """Returns whether values have all those of a release; new fields may be added."""
    if isinstance(released, dict):
        return isinstance(present, dict) and all(
            name in present and contains(present[name], value) for name, value in released.items()
        )
    if isinstance(released, list):
        return isinstance(present, list) and len(present) == len(released) and all(map(contains, present, released))
    return bool(present == released)


def _append_request(data: bytes, earlier: Sequence[bytes]) -> object:
    request = windows.read_append_request(data)
    if not earlier:
        return windows.decode_opening(request)
    if request.window is None:
        return windows.decode_append_request(request, staged=True)
    opening = windows.decode_opening(windows.read_append_request(earlier[0]))
    reader = windows.WindowReader(
        schema=opening.schema,
        slot=opening.slot,
        incarnation=opening.incarnation,
        window_segments=opening.window_segments,
    )
    part = reader.add(request.window)
    return [part.head, part.payload]


def _sample_request(data: bytes, earlier: Sequence[bytes]) -> object:
    message = batches.SampleRequest.FromString(data)
    if earlier:
        return batches.decode_sample_request(message)
    return [batches.decode_first_plan(message), batches.decode_codecs(message)]


def _sample_response(data: bytes, earlier: Sequence[bytes]) -> object:
    response = batches.read_sample_response(data)
    match response.kind:
        case "opened":
            return ["opened", batches.decode_mapped_store(response.message.opened)]
        case "batch":
            head = batches.decode_batch_head(response.message)
            return [head, batches.decode_commit_answer(response), response.block]
        case "answer":
            return batches.decode_commit_answer(response)
    return [response.kind, response.message.proof.number, response.message.waiting]


def _join_request(data: bytes, earlier: Sequence[bytes]) -> object:
    message = run_pb2.JoinRequest.FromString(data)
    return run.decode_join_request(message) if earlier else run.decode_hello(message)


def _join_response(data: bytes, earlier: Sequence[bytes]) -> object:
    message = run_pb2.JoinResponse.FromString(data)
    try:
        return run.JoinReader().add(message)
    except RunFinished as finished:
        return str(finished)


def _evaluation_request(data: bytes, earlier: Sequence[bytes]) -> object:
    message = evaluation_pb2.RunEvaluationsRequest.FromString(data)
    if not earlier:
        return run.decode_evaluator_hello(message)
    result = message.result
    task = EvaluationTask(result.id, Weights(result.version, b"", b""), len(result.returns), True, 0, 1)
    return run.decode_result_request(message, task)


def _evaluation_response(data: bytes, earlier: Sequence[bytes]) -> object:
    message = evaluation_pb2.RunEvaluationsResponse.FromString(data)
    if message.HasField("task"):
        return run.decode_task(message.task, Weights(message.task.version, b"", b""))
    return run.TaskAssembler().add(message)


def _of(method: str, direction: str, decode: Callable[[Any], object]) -> Callable[[bytes, Sequence[bytes]], object]:
    kind: Any = getattr(next(each for each in METHODS.values() if each.name == method), direction)
    return lambda data, earlier: decode(kind.FromString(data))


def _replay_status(message: Any) -> object:
    place, location = batches.decode_status_place(message), batches.decode_status_location(message)
    return [batches.decode_counts(message.counts), place, location, message.version, message.actors]


def _snapshot_request(data: bytes, earlier: Sequence[bytes]) -> object:
    message = replay_pb2.TakeSnapshotRequest.FromString(data)
    return snapshots.PolicyAssembler().add(message) if earlier else snapshots.decode_opening(message)


_DECODERS: Mapping[tuple[str, str], Callable[[bytes, Sequence[bytes]], object]] = {
    ("AppendSegments", "request"): _append_request,
    ("AppendSegments", "response"): _of("AppendSegments", "response", windows.decode_append_response),
    ("SampleBatches", "request"): _sample_request,
    ("SampleBatches", "response"): _sample_response,
    ("CommitBatch", "request"): _of("CommitBatch", "request", batches.decode_commit),
    ("CommitBatch", "response"): _of("CommitBatch", "response", str),
    ("FinishRun", "request"): _of("FinishRun", "request", str),
    ("FinishRun", "response"): _of("FinishRun", "response", str),
    ("GetReplayStatus", "request"): _of("GetReplayStatus", "request", str),
    ("GetReplayStatus", "response"): _of("GetReplayStatus", "response", _replay_status),
    ("TakeSnapshot", "request"): _snapshot_request,
    ("TakeSnapshot", "response"): _of("TakeSnapshot", "response", snapshots.decode_taking),
    ("ListSnapshots", "request"): _of("ListSnapshots", "request", str),
    ("ListSnapshots", "response"): _of("ListSnapshots", "response", snapshots.decode_list),
    ("Join", "request"): _join_request,
    ("Join", "response"): _join_response,
    ("GetRunStatus", "request"): _of("GetRunStatus", "request", str),
    ("GetRunStatus", "response"): _of("GetRunStatus", "response", run.decode_status),
    ("TakeRunSnapshot", "request"): _of("TakeRunSnapshot", "request", str),
    ("TakeRunSnapshot", "response"): _of("TakeRunSnapshot", "response", snapshots.decode_run_taking),
    ("RunEvaluations", "request"): _evaluation_request,
    ("RunEvaluations", "response"): _evaluation_response,
}


def _plain(value: Any) -> Any:
    """Returns values that JSON has, with floats as text so that infinities and NaN are equal to themselves."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist()) if value.size <= _MOST_VALUES else _plain(value.tobytes())
    if isinstance(value, (bytes, memoryview)):
        return f"{len(bytes(value))} bytes, SHA-256 {hashlib.sha256(bytes(value)).hexdigest()[:16]}"
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return "nan" if math.isnan(value) else repr(value)
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
