"""Definitions of the contract's RPCs, for servers and clients."""

from penstock.rpc.service import Method
from penstock.v1 import evaluation_pb2, replay_pb2, run_pb2
from penstock.wire import replay as wire

REPLAY = "penstock.v1.ReplayService"
RUN = "penstock.v1.RunService"
EVALUATION = "penstock.v1.EvaluationService"

APPEND_SEGMENTS = Method(
    REPLAY,
    "AppendSegments",
    replay_pb2.AppendSegmentsRequest,
    replay_pb2.AppendSegmentsResponse,
    True,
    True,
    read_request=wire.read_append_request,
)
SAMPLE_BATCHES = Method(
    REPLAY,
    "SampleBatches",
    replay_pb2.SampleBatchesRequest,
    replay_pb2.SampleBatchesResponse,
    True,
    True,
    read_response=wire.read_sample_response,
)
COMMIT_BATCH = Method(REPLAY, "CommitBatch", replay_pb2.CommitBatchRequest, replay_pb2.CommitBatchResponse)
FINISH_RUN = Method(REPLAY, "FinishRun", replay_pb2.FinishRunRequest, replay_pb2.FinishRunResponse)
GET_REPLAY_STATUS = Method(
    REPLAY, "GetReplayStatus", replay_pb2.GetReplayStatusRequest, replay_pb2.GetReplayStatusResponse
)
TAKE_SNAPSHOT = Method(
    REPLAY, "TakeSnapshot", replay_pb2.TakeSnapshotRequest, replay_pb2.TakeSnapshotResponse, True, True
)
LIST_SNAPSHOTS = Method(REPLAY, "ListSnapshots", replay_pb2.ListSnapshotsRequest, replay_pb2.ListSnapshotsResponse)
JOIN = Method(RUN, "Join", run_pb2.JoinRequest, run_pb2.JoinResponse, True, True)
GET_RUN_STATUS = Method(RUN, "GetRunStatus", run_pb2.GetRunStatusRequest, run_pb2.GetRunStatusResponse)
TAKE_RUN_SNAPSHOT = Method(
    RUN, "TakeRunSnapshot", run_pb2.TakeRunSnapshotRequest, run_pb2.TakeRunSnapshotResponse, response_stream=True
)
RUN_EVALUATIONS = Method(
    EVALUATION,
    "RunEvaluations",
    evaluation_pb2.RunEvaluationsRequest,
    evaluation_pb2.RunEvaluationsResponse,
    True,
    True,
)
