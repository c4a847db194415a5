"""The contract's RPCs, for servers and clients. Their message types follow from `proto/`."""

from typing import Any

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from penstock.rpc.service import Method
from penstock.v1 import evaluation_pb2, health_pb2, replay_pb2, run_pb2
from penstock.wire import batches, windows

_REPLAY = replay_pb2.DESCRIPTOR.services_by_name["ReplayService"]
_RUN = run_pb2.DESCRIPTOR.services_by_name["RunService"]
_EVALUATION = evaluation_pb2.DESCRIPTOR.services_by_name["EvaluationService"]
REPLAY, RUN, EVALUATION = _REPLAY.full_name, _RUN.full_name, _EVALUATION.full_name


def _method(service: ServiceDescriptor, name: str, **readers: Any) -> Method:
    rpc = service.methods_by_name[name]
    request, response = GetMessageClass(rpc.input_type), GetMessageClass(rpc.output_type)
    streams = (rpc.client_streaming, rpc.server_streaming)
    return Method(service.full_name, name, request, response, *streams, **readers)


APPEND_SEGMENTS = _method(_REPLAY, "AppendSegments", read_request=windows.read_append_request)
SAMPLE_BATCHES = _method(_REPLAY, "SampleBatches", read_response=batches.read_sample_response)
COMMIT_BATCH = _method(_REPLAY, "CommitBatch")
FINISH_RUN = _method(_REPLAY, "FinishRun")
GET_REPLAY_STATUS = _method(_REPLAY, "GetReplayStatus")
TAKE_SNAPSHOT = _method(_REPLAY, "TakeSnapshot")
LIST_SNAPSHOTS = _method(_REPLAY, "ListSnapshots")
JOIN = _method(_RUN, "Join")
GET_RUN_STATUS = _method(_RUN, "GetRunStatus")
TAKE_RUN_SNAPSHOT = _method(_RUN, "TakeRunSnapshot")
CHANGE_VARIANTS = _method(_RUN, "ChangeVariants")
RUN_EVALUATIONS = _method(_EVALUATION, "RunEvaluations")
CHECK_HEALTH = Method("grpc.health.v1.Health", "Check", health_pb2.HealthRequest, health_pb2.HealthResponse)
