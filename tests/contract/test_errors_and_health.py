import asyncio
import contextlib
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from penstock import errors
from penstock.errors import ConfigurationError, Overloaded, PenstockError, Unavailable
from penstock.rpc import methods
from penstock.rpc.clients.batch_source import ReplayBatchSource
from penstock.rpc.clients.evaluation_work import EvaluationWork
from penstock.rpc.clients.membership import Membership
from penstock.rpc.clients.segment_sink import ReplaySegmentSink
from penstock.rpc.direct_socket import MAX_MESSAGE_BYTES
from penstock.rpc.health import is_serving
from penstock.rpc.server import serve_health_only
from penstock.rpc.service import Method
from penstock.types.run import Weights
from penstock.types.waits import Awaited, WaitReason
from penstock.v1 import evaluation_pb2, replay_pb2, run_pb2
from tests.support.machine.timing import AT_ONCE, PATIENCE_S, Bound
from tests.support.segments.segments import make_window
from tests.support.services.servers import (
    LiveServer,
    Loopback,
    hello_request,
    open_request,
    plan_request,
    plan_with,
    sample,
    until,
    window_request,
)

Code = grpc.StatusCode
STATUS = replay_pb2.GetReplayStatusRequest()
Behaviour = Callable[[Any, Any], Awaitable[Any]]


@pytest.fixture
def silent_address() -> Iterator[str]:
    """Address of a listener that never sends anything."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def vacant_address() -> str:
    """Address without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


@contextlib.contextmanager
def in_time(first_answer_s: float, deadline_s: float) -> Iterator[None]:
    """Fails unless the block ends within its deadline, plus an allowance for the speed of this machine."""
    begun, bound = time.monotonic(), Bound(AT_ONCE, first_answer_s, deadline_s)
    yield
    assert time.monotonic() - begun < bound.seconds, bound


# Health


def test_a_service_reports_serving_from_its_start_to_its_end(loopback: Loopback, tmp_path: Path) -> None:
    servers: dict[LiveServer, tuple[str, ...]] = {
        loopback.replay(): (methods.REPLAY,),
        loopback.run(tmp_path / "roster.json"): (methods.RUN, methods.EVALUATION),
    }
    for server, services in servers.items():
        with grpc.insecure_channel(server.address) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            for service in ("", *services):
                answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE_S)
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
            with pytest.raises(grpc.RpcError) as caught:
                stub.Check(health_pb2.HealthCheckRequest(service="penstock.v1.Nothing"), timeout=PATIENCE_S)
            assert caught.value.code() == Code.NOT_FOUND
        assert is_serving(server.address, PATIENCE_S)
        server.stop()
        assert not is_serving(server.address, 0.5)


def test_a_service_without_methods_reports_serving(loopback: Loopback) -> None:
    server = loopback.thread.run(serve_health_only("127.0.0.1:0"))
    assert is_serving(f"127.0.0.1:{server.address.port}", PATIENCE_S)
    loopback.thread.run(server.stop())


def test_a_service_that_does_not_answer_is_unhealthy(
    silent_address: str, vacant_address: str, first_answer_s: float
) -> None:
    for address in (silent_address, vacant_address):
        with in_time(first_answer_s, 0.3):
            assert not is_serving(address, 0.3)


# Addresses


def test_a_port_in_use_is_a_user_error(loopback: Loopback) -> None:
    taken = loopback.replay()
    with pytest.raises(ConfigurationError, match=rf"127\.0\.0\.1:{taken.port}.*in use.*listen"):
        loopback.thread.run(serve_health_only(taken.address))
    assert loopback.replay_status(taken).actors == 0


def test_a_host_of_another_machine_is_a_user_error(loopback: Loopback) -> None:
    # An address that is reserved for documentation.
    with pytest.raises(ConfigurationError, match=r"192\.0\.2\.1:4711"):
        loopback.thread.run(serve_health_only("192.0.2.1:4711"))


# Errors


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidSegment, Code.INVALID_ARGUMENT),
        (errors.DamagedWindow, Code.INVALID_ARGUMENT),
        (errors.ConfigurationError, Code.FAILED_PRECONDITION),
        (errors.SchemaMismatch, Code.FAILED_PRECONDITION),
        (errors.PlaceLost, Code.FAILED_PRECONDITION),
        (errors.RunFinished, Code.FAILED_PRECONDITION),
        (errors.Overloaded, Code.RESOURCE_EXHAUSTED),
        (errors.NotReady, Code.UNAVAILABLE),
        (errors.Unavailable, Code.UNAVAILABLE),
    ],
)
def test_a_servers_error_has_its_status_and_is_raised_again_by_clients(
    loopback: Loopback, error: type[PenstockError], code: Code
) -> None:
    async def refuse(request: object, context: object) -> None:
        raise error("received value, expected value")

    server = loopback.methods({methods.GET_REPLAY_STATUS: refuse})
    assert loopback.plain_call(server, methods.GET_REPLAY_STATUS, STATUS) == (code, "received value, expected value")
    with pytest.raises(error, match=r"^received value, expected value$"):
        loopback.replay_status(server)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (Code.INVALID_ARGUMENT, errors.InvalidSegment),
        (Code.FAILED_PRECONDITION, errors.SchemaMismatch),
        (Code.RESOURCE_EXHAUSTED, errors.Overloaded),
        (Code.UNAVAILABLE, errors.Unavailable),
        (Code.CANCELLED, errors.Unavailable),
        (Code.DEADLINE_EXCEEDED, errors.Unavailable),
        (Code.UNKNOWN, errors.PeerFailed),
        (Code.INTERNAL, errors.Unavailable),
    ],
)
def test_a_status_from_a_proxy_is_raised_as_the_matching_error_and_names_the_peer(
    loopback: Loopback, code: Code, error: type[PenstockError]
) -> None:
    async def refuse(request: object, context: Any) -> None:
        await context.call.abort(code, "an answer of a proxy")

    server = loopback.methods({methods.GET_REPLAY_STATUS: refuse})
    with pytest.raises(error, match=server.address) as caught:
        loopback.replay_status(server)
    assert type(caught.value) is error


def test_a_peer_without_the_service_is_a_user_error(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.run(tmp_path / "roster.json")
    with pytest.raises(ConfigurationError, match=server.address):
        loopback.replay_status(server)
    sink = loopback.sink(0, server)
    with pytest.raises(ConfigurationError, match=server.address):
        sink.next_grant(PATIENCE_S)


@pytest.mark.parametrize("folder", ["project", "handshake", "hostname", "http_request", "not known", "späce ünd"])
def test_the_reason_of_a_failed_connection_is_not_read_from_the_path_of_a_socket(
    loopback: Loopback, folder: str
) -> None:
    # The path of a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as place:
        address = f"unix:{place}/{folder}/service"
        with pytest.raises(Unavailable) as caught:
            loopback.ask(address, methods.GET_REPLAY_STATUS, STATUS, timeout_s=PATIENCE_S)
    ended = "it is not listening yet, or it has ended; see its log"
    assert str(caught.value) == f"the peer at {address} can't be reached: {ended}"


def test_bytes_that_are_not_a_message_are_invalid(loopback: Loopback) -> None:
    code, details = loopback.plain_call(loopback.replay(), methods.COMMIT_BATCH, b"\xff\xff\xff")
    assert (code, "malformed message" in details) == (Code.INVALID_ARGUMENT, True)


def test_a_message_larger_than_the_limit_is_refused(loopback: Loopback) -> None:
    request = replay_pb2.CommitBatchRequest(session=1, keys=bytes(MAX_MESSAGE_BYTES))
    assert loopback.plain_call(loopback.replay(), methods.COMMIT_BATCH, request)[0] == Code.RESOURCE_EXHAUSTED


def test_calls_above_the_servers_limit_are_refused(loopback: Loopback) -> None:
    leave = asyncio.Event()

    async def linger(requests: AsyncIterator[object], context: Any) -> None:
        await context.write(replay_pb2.AppendSegmentsResponse())
        await leave.wait()

    async def answer(request: object, context: object) -> replay_pb2.GetReplayStatusResponse:
        return replay_pb2.GetReplayStatusResponse()

    behaviours = {methods.APPEND_SEGMENTS: linger, methods.GET_REPLAY_STATUS: answer}
    server = loopback.methods(behaviours, max_streams=2)
    streams = [loopback.plain(server, methods.APPEND_SEGMENTS) for _ in range(2)]
    for stream in streams:
        stream.receive()
    with pytest.raises(Overloaded):
        loopback.replay_status(server)
    server.thread.call(leave.set)
    assert [stream.status()[0] for stream in streams] == [Code.OK] * 2

    def answered() -> bool:
        # A client may receive the end of its call before the server has counted it.
        with contextlib.suppress(Overloaded):
            return bool(loopback.replay_status(server).actors == 0)
        return False

    until(answered, "room for another call")


def test_calls_below_the_limit_are_answered_if_they_arrive_while_the_server_is_busy(loopback: Loopback) -> None:
    async def answer(request: object, context: object) -> replay_pb2.GetReplayStatusResponse:
        return replay_pb2.GetReplayStatusResponse()

    method = methods.GET_REPLAY_STATUS
    server = loopback.methods({method: answer}, max_streams=3_000)
    with grpc.insecure_channel(server.address) as channel:
        stub: Any = channel.unary_unary(method.path, lambda request: b"", method.response.FromString)
        stub(STATUS, timeout=PATIENCE_S)
        server.thread.call(lambda: time.sleep(2.0))
        calls = [stub.future(STATUS, timeout=PATIENCE_S) for _ in range(3_000)]
        assert {call.code() for call in calls} == {Code.OK}


@pytest.mark.parametrize("opening", [open_request(), plan_request(plan_with()), hello_request()])
def test_a_stream_that_ends_before_its_first_message_is_invalid(
    loopback: Loopback, tmp_path: Path, opening: Message
) -> None:
    method = {
        replay_pb2.AppendSegmentsRequest: methods.APPEND_SEGMENTS,
        replay_pb2.SampleBatchesRequest: methods.SAMPLE_BATCHES,
        run_pb2.JoinRequest: methods.JOIN,
    }[type(opening)]
    server = loopback.run(tmp_path / "roster.json") if method is methods.JOIN else loopback.replay()
    stream = loopback.plain(server, method)
    stream.leave()
    code, details = stream.status()
    assert (code, "first message" in details) == (Code.INVALID_ARGUMENT, True)


# Deadlines


def test_a_call_to_a_port_without_a_listener_or_an_answer_ends_in_time(
    loopback: Loopback, silent_address: str, vacant_address: str, first_answer_s: float
) -> None:
    for address in (silent_address, vacant_address):
        with in_time(first_answer_s, 0.3), pytest.raises(Unavailable, match=address):
            loopback.ask(address, methods.GET_REPLAY_STATUS, STATUS, timeout_s=0.3)
        with in_time(first_answer_s, 0.3), pytest.raises(Unavailable, match=address):
            loopback.status(address).get(0.3)


def test_a_server_that_accepts_a_call_and_never_answers_is_unavailable_in_time(
    loopback: Loopback, first_answer_s: float
) -> None:
    async def ponder(request: object, context: object) -> None:
        await asyncio.Event().wait()

    server = loopback.methods({methods.GET_REPLAY_STATUS: ponder})
    with in_time(first_answer_s, 0.3), pytest.raises(Unavailable, match="DEADLINE_EXCEEDED"):
        loopback.ask(server.address, methods.GET_REPLAY_STATUS, STATUS, timeout_s=0.3)


def test_a_wait_for_an_absent_service_ends_in_time(loopback: Loopback, tmp_path: Path, first_answer_s: float) -> None:
    run = loopback.run(tmp_path / "roster.json")
    run.kill()
    sink, source = loopback.sink(0, run), loopback.source(run, plan_with())
    member, work = loopback.membership(run), loopback.work(run)
    with in_time(first_answer_s, 6 * 0.05):
        assert sink.next_grant(0.05) is None
        sink.send(make_window())
        assert not sink.drain(0.05)
        assert source.next(0.05) is None
        assert source.waiting_for == WaitReason(Awaited.REPLAY_SERVICE)
        assert member.assignment(0.05) is None
        assert member.at_least(0, 0.05) is None
        assert work.next(0.05) is None
    loopback.run(tmp_path / "roster.json", port=run.port)
    assert until(lambda: member.assignment(0.5), "an assignment").slot == 0


# Breaks


def abort_with(code: Code) -> Behaviour:
    async def abort(requests: object, context: Any) -> None:
        await context.call.abort(code, "the end of the first stream")

    return abort


async def end_well(requests: object, context: object) -> None:
    """Ends the stream without a message."""


async def end_badly(requests: object, context: object) -> None:
    raise RuntimeError("a fault of the server")


ENDS = [abort_with(Code.UNAVAILABLE), abort_with(Code.CANCELLED), abort_with(Code.UNKNOWN), end_well, end_badly]


def one_end_then(end: Behaviour, response: object) -> Behaviour:
    """Ends the first stream at once, and sends a response on the next."""
    streams = 0

    async def serve(requests: AsyncIterator[object], context: Any) -> None:
        nonlocal streams
        streams += 1
        await anext(requests)
        if streams == 1:
            await end(requests, context)
            return
        await context.write(response)
        await asyncio.Event().wait()

    return serve


GRANT = replay_pb2.AppendSegmentsResponse(grants=[replay_pb2.Grant(batch=3, minimum_version=2)])
WAITING = replay_pb2.SampleBatchesResponse(waiting="actors")
PLACE = run_pb2.JoinResponse(assignment=run_pb2.Assignment(slot=3, incarnation=4, environments=[5, 6]))
FINISHED = evaluation_pb2.RunEvaluationsResponse(finished=run_pb2.Finished(reason="enough"))


def grant_of(sink: ReplaySegmentSink) -> bool:
    grant = sink.next_grant(0.5)
    return grant is not None and grant.batch == 3


def waits_for_actors(source: ReplayBatchSource) -> bool:
    return source.next(0.01) is None and source.waiting_for == WaitReason(Awaited.ACTORS)


def slot_of(member: Membership) -> bool:
    place = member.assignment(0.5)
    return place is not None and place.slot == 3


def is_finished(work: EvaluationWork) -> bool:
    try:
        return work.next(0.5) is not None
    except errors.RunFinished:
        return True


CLIENTS: list[tuple[Method, object, Callable[[Loopback, LiveServer], Any], Callable[[Any], bool]]] = [
    (methods.APPEND_SEGMENTS, GRANT, lambda loopback, server: loopback.sink(0, server), grant_of),
    (methods.SAMPLE_BATCHES, WAITING, lambda loopback, server: loopback.source(server, plan_with()), waits_for_actors),
    (methods.JOIN, PLACE, lambda loopback, server: loopback.membership(server), slot_of),
    (methods.RUN_EVALUATIONS, FINISHED, lambda loopback, server: loopback.work(server), is_finished),
]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(("method", "response", "make", "has_come"), CLIENTS)
def test_a_client_opens_its_stream_again_after_any_end(
    loopback: Loopback,
    method: Method,
    response: object,
    make: Callable[[Loopback, LiveServer], Any],
    has_come: Callable[[Any], bool],
    end: Behaviour,
) -> None:
    server = loopback.methods({method: one_end_then(end, response)})
    client = make(loopback, server)
    until(lambda: has_come(client), "the response on the second stream")


def test_an_actor_survives_the_end_of_its_stream_while_it_sends(loopback: Loopback) -> None:
    streams = 0
    came: list[int] = []

    async def serve(requests: AsyncIterator[Any], context: Any) -> None:
        nonlocal streams
        streams += 1
        await anext(requests)
        await context.write(replay_pb2.AppendSegmentsResponse())
        if streams < 8:
            # The stream ends while windows are in transit.
            return
        async for request in requests:
            # Heartbeats are sent in addition to windows.
            windows = [] if request.window is None else [replay_pb2.Window.FromString(request.window)]
            came.extend(window.first_sequence for window in windows)

    server = loopback.methods({methods.APPEND_SEGMENTS: serve})
    sink = loopback.sink(0, server)
    for sequence in (1, 3, 5):
        sink.send(make_window(sequence))
    until(lambda: came[-3:] == [1, 3, 5], "the windows to be sent again in order")


# Metrics


def test_calls_are_counted_by_method_and_status(loopback: Loopback) -> None:
    server = loopback.replay()
    loopback.source(server, plan_with())

    def handled(method: Method, code: Code | None = None) -> float:
        labels = {"grpc_type": method.kind, "grpc_service": method.service, "grpc_method": method.name}
        if code is None:
            return sample("grpc_server_started_total", **labels)
        return sample("grpc_server_handled_total", **labels, grpc_code=code.name)

    def seconds(method: Method) -> float:
        labels = {"grpc_type": method.kind, "grpc_service": method.service, "grpc_method": method.name}
        return sample("grpc_server_handling_seconds_count", **labels)

    unary, stream = methods.COMMIT_BATCH, methods.APPEND_SEGMENTS
    assert (unary.kind, stream.kind) == ("unary", "bidi_stream")
    codes = [
        (methods.GET_REPLAY_STATUS, Code.OK),
        (unary, Code.FAILED_PRECONDITION),
        (unary, Code.INVALID_ARGUMENT),
        (stream, Code.INVALID_ARGUMENT),
        (stream, Code.CANCELLED),
        (stream, Code.OK),
    ]
    before = {key: handled(*key) for key in codes}
    started, observed = handled(unary), seconds(unary)

    loopback.replay_status(server)
    loopback.plain_call(server, unary, replay_pb2.CommitBatchRequest(session=1))
    for _ in range(2):
        loopback.plain_call(server, unary, b"\xff\xff\xff")
    refused = loopback.plain(server, stream)
    refused.send(window_request(1))
    refused.status()
    left = loopback.plain(server, stream)
    left.send(open_request())
    left.receive()
    left.leave()
    left.status()
    broken = loopback.plain(server, stream)
    broken.send(open_request())
    broken.receive()
    broken.close()

    expected = [1, 1, 2, 1, 1, 1]
    until(
        lambda: [handled(*key) - before[key] for key in codes] == expected,
        f"calls are counted as {expected}",
    )
    assert (handled(unary) - started, seconds(unary) - observed) == (3, 3)


def test_answers_on_streams_are_timed_without_waits_for_other_peers(
    loopback: Loopback, tmp_path: Path, first_answer_s: float
) -> None:
    def answers(service: str, method: Method) -> tuple[float, float]:
        labels = {"grpc_service": service, "grpc_method": method.name}
        name = "penstock_stream_answer_seconds"
        return sample(f"{name}_count", **labels), sample(f"{name}_sum", **labels)

    storing, drawing = (methods.REPLAY, methods.APPEND_SEGMENTS), (methods.REPLAY, methods.SAMPLE_BATCHES)
    sending = (methods.RUN, methods.JOIN)

    def waited_s() -> float:
        return sample("penstock_replay_wait_seconds_total", who="actor", reason="grant")

    before = [answers(*each) for each in (storing, drawing, sending)]
    weights_before, waited_before_s = sample("penstock_learner_weights_sent_bytes_total"), waited_s()
    begun = time.monotonic()

    replay, run = loopback.replay(), loopback.run(tmp_path / "roster.json")
    source = loopback.source(replay, plan_with(fresh_segments=2, batch_segments=2, off_policy_degree=0))
    loopback.sink(1, replay).send(make_window(slot=1))
    batch = until(lambda: source.next(0.1), "a batch")
    sink = loopback.sink(0, replay)
    sink.send(make_window(1))
    long_s = 1.0 + AT_ONCE * first_answer_s
    until(lambda: waited_s() - waited_before_s > long_s, "the window waits for a grant")
    source.commit(batch, np.ones(2))
    assert sink.drain(PATIENCE_S)
    run.servicer.publish(Weights.of(1, b"weights"))
    member = loopback.membership(run)
    until(lambda: member.at_least(1, 0.5), "weights")
    until(lambda: sample("penstock_learner_weights_sent_bytes_total") == weights_before + 7, "the weights are counted")

    after = [answers(*each) for each in (storing, drawing, sending)]
    assert all(now[0] > then[0] for now, then in zip(after, before, strict=True))
    # No duration includes the wait.
    assert all(now[1] - then[1] < long_s for now, then in zip(after, before, strict=True))
    assert 0.0 <= sample("penstock_actor_weights_age_seconds") <= time.monotonic() - begun


def test_a_stream_that_is_read_after_its_server_has_stopped_counts_as_cancelled(loopback: Loopback) -> None:
    method, stopped = methods.APPEND_SEGMENTS, asyncio.Event()

    def handled(code: Code) -> float:
        labels = {"grpc_type": method.kind, "grpc_service": method.service, "grpc_method": method.name}
        return sample("grpc_server_handled_total", **labels, grpc_code=code.name)

    async def serve(requests: AsyncIterator[Any], context: Any) -> None:
        await anext(requests)
        await context.write(replay_pb2.AppendSegmentsResponse())
        # As if the cancellation arrived a moment late.
        with contextlib.suppress(asyncio.CancelledError):
            await stopped.wait()
        await stopped.wait()
        await anext(requests)

    async def stop() -> None:
        await server.server.stop()
        stopped.set()

    server = loopback.methods({method: serve})
    stream = loopback.plain(server, method)
    stream.send(open_request())
    stream.receive()
    before = handled(Code.UNKNOWN), handled(Code.CANCELLED)
    server.thread.run(stop(), PATIENCE_S)
    until(lambda: (handled(Code.UNKNOWN), handled(Code.CANCELLED)) != before, "the end of the stream")
    assert (handled(Code.UNKNOWN), handled(Code.CANCELLED)) == (before[0], before[1] + 1)


def test_a_fault_of_a_server_is_counted_and_affects_no_other_call(loopback: Loopback) -> None:
    async def fail(request: object, context: object) -> None:
        raise ZeroDivisionError

    async def answer(request: object, context: object) -> replay_pb2.CommitBatchResponse:
        return replay_pb2.CommitBatchResponse(updated=3)

    server = loopback.methods({methods.GET_REPLAY_STATUS: fail, methods.COMMIT_BATCH: answer})
    labels = {"grpc_type": "unary", "grpc_service": methods.REPLAY, "grpc_method": "GetReplayStatus"}
    before = sample("grpc_server_handled_total", **labels, grpc_code="UNKNOWN")
    with pytest.raises(Unavailable):
        loopback.replay_status(server)
    assert sample("grpc_server_handled_total", **labels, grpc_code="UNKNOWN") == before + 1
    assert loopback.ask(server.address, methods.COMMIT_BATCH, replay_pb2.CommitBatchRequest()).updated == 3


@pytest.mark.parametrize("answers_first", [False, True])
def test_a_server_that_fails_repeatedly_is_given_up_and_its_answer_is_reported(
    loopback: Loopback, answers_first: bool
) -> None:
    streams = 0

    async def fail(requests: AsyncIterator[object], context: Any) -> None:
        nonlocal streams
        streams += 1
        await anext(requests)
        if answers_first:
            await context.write(replay_pb2.AppendSegmentsResponse())
        raise RuntimeError("a fault of the server")

    server = loopback.methods({methods.APPEND_SEGMENTS: fail})
    sink = loopback.sink(0, server)

    def given_up() -> str:
        try:
            sink.next_grant(0.1)
        except PenstockError as error:
            return f"{type(error).__name__}: {error}"
        return ""

    said = until(given_up, "the sink to give up")
    assert said.startswith("PenstockError: gave up after 10 attempts")
    assert server.address in said and "a fault of the server" in said
    assert streams == 10
