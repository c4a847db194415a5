"""A stranger that has joined a run as an actor sends a plan while the learner is dead; the run goes on."""

from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.acting.values.spaces import segment_schema
from penstock.rpc import methods
from penstock.rpc.contract import stamped
from penstock.rpc.service import Method
from penstock.runs.folder import RunFolder
from penstock.v1 import replay_pb2, run_pb2
from penstock.wire.schema import encode_schema
from penstock.wire.spaces import encode_environment
from tests.support.environments.made import make_environments
from tests.support.machine.timing import PATIENCE_S
from tests.support.services.ports import free_ports
from tests.support.services.processes import Command, run

pytestmark = pytest.mark.nightly

UNROLL_LENGTH = 8


def settings_of(place: Path, replay: str, learner: str) -> Path:
    path = place / "settings.toml"
    path.write_text(
        f"""
[environment]
id = "CartPole-v1"
[run]
dir = "{place / "run"}"
[replay]
listen = "{replay}"
metrics_port = 0
folder = "{place / "store"}"
snapshot_folder = "{place / "snapshots"}"
[learner]
listen = "{learner}"
metrics_port = 0
replay_addresses = ["{replay}"]
[evaluation]
learner_address = "{learner}"
[actor]
learner_address = "{learner}"
listen = "127.0.0.1:0"
metrics_port = 0
unroll_length = {UNROLL_LENGTH}
[sampling]
batch_segments = 64
[checkpoint]
save_interval = 1
"""
    )
    return path


def first_answer(address: str, method: Method, request: Any) -> Any:
    """Sends one message by gRPC's own client, and returns the first response. Raises `grpc.RpcError`."""
    with grpc.insecure_channel(address, (("grpc.enable_http_proxy", 0),)) as channel:
        call: Any = channel.stream_stream(method.path, response_deserializer=method.response.FromString)
        return next(call(iter([stamped(request)]), timeout=PATIENCE_S, wait_for_ready=True))


def refused(address: str, method: Method, request: Any) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        first_answer(address, method, request)
    error: Any = raised.value
    assert (error.code(), "\n" in error.details()) == (grpc.StatusCode.PERMISSION_DENIED, False)


def version_of(address: str) -> int:
    with grpc.insecure_channel(address, (("grpc.enable_http_proxy", 0),)) as channel:
        method = methods.GET_REPLAY_STATUS
        ask: Any = channel.unary_unary(method.path, response_deserializer=method.response.FromString)
        return int(ask(b"", timeout=PATIENCE_S, wait_for_ready=True).version)


def plan(number: int, next_batch: int) -> replay_pb2.SampleBatchesRequest:
    return replay_pb2.SampleBatchesRequest(
        plan=replay_pb2.SamplingPlan(
            session=77,
            next_batch=next_batch,
            batch_segments=64,
            fresh_segments=16,
            off_policy_degree=4,
            publish_interval=1,
            alpha=0.6,
            epsilon=1e-3,
            half_life=1e4,
            max_staleness=1000,
            min_replay_segments=1,
            run=number,
        )
    )


def test_a_stranger_can_neither_end_the_store_of_a_dead_learner_nor_take_a_snapshot_of_the_run(tmp_path: Path) -> None:
    replay, learner = (f"127.0.0.1:{port}" for port in free_ports(2))
    config = f"--config={settings_of(tmp_path, replay, learner)}"
    folder, spec = RunFolder(tmp_path / "run"), make_environments("CartPole-v1", 1, kwargs={}).spec
    hello = run_pb2.Hello(
        schema=encode_schema(segment_schema(spec, UNROLL_LENGTH)), environment=encode_environment(spec), environments=1
    )
    with (
        Command("replay", config, directory=tmp_path),
        Command("learner", config, directory=tmp_path) as first,
        Command("actor", config, directory=tmp_path),
    ):
        first.until(folder.numbered_checkpoints, "a checkpoint")
        joined = first_answer(learner, methods.JOIN, run_pb2.JoinRequest(hello=hello))
        refused(learner, methods.TAKE_RUN_SNAPSHOT, run_pb2.TakeRunSnapshotRequest(name="strangers"))
        taken = run("replay", "snapshot", "owners", config, f"--run-dir={folder.root}")
        assert (taken.code, "snapshot owners" in taken.stdout) == (0, True), taken
        assert {path.name for path in (tmp_path / "snapshots").iterdir()} >= {"owners"}
        assert not (tmp_path / "snapshots" / "strangers").exists()
        first.kill()
        first.wait()
        before = version_of(replay)
        refused(replay, methods.SAMPLE_BATCHES, plan(joined.assignment.run, before + 10**6))
        assert version_of(replay) == before
        with Command("learner", config, directory=tmp_path) as again:
            again.until(lambda: version_of(replay) > before + 2, "the run's own learner to go on")
