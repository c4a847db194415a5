"""Messages that are larger than their method needs are refused, and soon no longer read."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from penstock.rpc import methods, service
from penstock.rpc.direct_socket import MAX_MESSAGE_BYTES
from penstock.rpc.permissions import PERMISSIONS, REQUEST_BYTES
from penstock.rpc.service import Method
from penstock.types.replay import MAX_BATCH_SEGMENTS, MAX_SLOTS
from penstock.v1 import replay_pb2
from tests.support.machine.timing import PATIENCE_S, wait_for
from tests.support.services.servers import Loopback

Code = grpc.StatusCode
LARGE = b"\xff" * (MAX_MESSAGE_BYTES - 100)
# The services of these tests take no snapshots.
UNARY = [each for each in REQUEST_BYTES if each.kind == "unary" and each != methods.LIST_SNAPSHOTS]


@contextlib.contextmanager
def connection(address: str) -> Iterator[grpc.Channel]:
    """Opens a channel that shares its connection with no other."""
    with grpc.insecure_channel(address, (("grpc.use_local_subchannel_pool", 1),)) as channel:
        yield channel


def ask(channel: grpc.Channel, method: Method, request: bytes) -> tuple[grpc.StatusCode, str]:
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method.path)
    try:
        call(request, timeout=PATIENCE_S)
    except grpc.RpcError as error:
        return error.code(), error.details() or ""
    return Code.OK, ""


def test_every_method_has_a_limit_that_its_largest_message_keeps() -> None:
    assert REQUEST_BYTES.keys() == PERMISSIONS.keys()
    commit = replay_pb2.CommitBatchRequest(
        session=2**62, batch=2**62, keys=bytes(8 * MAX_BATCH_SEGMENTS), priorities=bytes(8 * MAX_BATCH_SEGMENTS)
    )
    plan = replay_pb2.SamplingPlan(slot_weights=[1.0] * MAX_SLOTS, actor_key=bytes(64))
    assert commit.ByteSize() < REQUEST_BYTES[methods.COMMIT_BATCH]
    both = replay_pb2.SampleBatchesRequest(commit=commit).ByteSize() + plan.ByteSize()
    assert both < REQUEST_BYTES[methods.SAMPLE_BATCHES]
    assert max(REQUEST_BYTES.values()) == MAX_MESSAGE_BYTES


@pytest.mark.parametrize("method", UNARY, ids=lambda method: method.name)
def test_a_large_message_is_refused_and_the_connection_is_not_read_any_more(
    method: Method, loopback: Loopback, tmp_path: Path
) -> None:
    replay = method.service == methods.REPLAY
    server = loopback.replay() if replay else loopback.run(tmp_path / "roster.json")
    with connection(server.address) as attacker, connection(server.address) as other:
        code, reason = ask(attacker, method, LARGE)
        assert code == Code.RESOURCE_EXHAUSTED
        assert reason.endswith(f"has {len(LARGE)} bytes; the maximum is {REQUEST_BYTES[method]}")
        for request in (LARGE, b""):
            code, reason = ask(attacker, method, request)
            assert code == Code.RESOURCE_EXHAUSTED
            assert reason.startswith("this connection has sent a message of more than 65536 bytes that was refused; ")
        assert "this connection" not in ask(other, method, b"")[1]


def test_a_connection_is_read_again_after_a_while(loopback: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_UNREAD_FOR_S", 0.5)
    server = loopback.replay()
    with connection(server.address) as channel:
        assert ask(channel, methods.GET_REPLAY_STATUS, LARGE)[0] == Code.RESOURCE_EXHAUSTED
        wait_for(lambda: ask(channel, methods.GET_REPLAY_STATUS, b"")[0] == Code.OK, "an answer")


def test_a_large_commit_that_is_malformed_counts_too_and_a_small_one_does_not(loopback: Loopback) -> None:
    server = loopback.replay()
    with connection(server.address) as channel:
        for _ in range(3):
            code, reason = ask(channel, methods.COMMIT_BATCH, b"\xff" * 1_000)
            assert (code, "malformed" in reason) == (Code.INVALID_ARGUMENT, True)
        assert ask(channel, methods.COMMIT_BATCH, b"\xff" * 2**17)[0] == Code.INVALID_ARGUMENT
        assert ask(channel, methods.COMMIT_BATCH, b"")[0] == Code.RESOURCE_EXHAUSTED


def test_a_large_request_for_the_health_is_refused(loopback: Loopback) -> None:
    server = loopback.replay()
    with connection(server.address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        with pytest.raises(grpc.RpcError) as raised:
            stub.Check(health_pb2.HealthCheckRequest(service="s" * 2**20), timeout=PATIENCE_S)
        assert raised.value.code() == Code.RESOURCE_EXHAUSTED
        with pytest.raises(grpc.RpcError, match="this connection has sent"):
            stub.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
        with pytest.raises(grpc.RpcError, match="this connection has sent"):
            next(stub.Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S))
    with connection(server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_calls_that_send_nothing_occupy_their_places_for_a_bounded_time(
    loopback: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_OPENING_TIMEOUT_S", 1.0)
    server, end = loopback.replay(), threading.Event()
    with connection(server.address) as attacker, connection(server.address) as other:

        def nothing() -> Iterator[bytes]:
            end.wait(PATIENCE_S)
            yield b""

        silent: grpc.StreamUnaryMultiCallable[bytes, bytes] = attacker.stream_unary(methods.COMMIT_BATCH.path)
        calls = [silent.future(nothing(), timeout=PATIENCE_S) for _ in range(2 * service._MOST_ARRIVING)]
        wait_for(lambda: ask(other, methods.GET_REPLAY_STATUS, b"")[0] == Code.OK, "an answer to another client")
        codes = set[grpc.StatusCode]()
        for call in calls:
            with contextlib.suppress(grpc.RpcError):
                call.result()
            codes.add(call.code())
        end.set()
        assert Code.INVALID_ARGUMENT in codes
        assert codes <= {Code.INVALID_ARGUMENT, Code.RESOURCE_EXHAUSTED}
