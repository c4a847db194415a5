"""The first message of every stream, in both directions, has the number of the contract; others are refused."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from penstock.errors import ConfigurationError
from penstock.rpc import methods
from penstock.rpc.clients.segment_sink import ReplaySegmentSink
from penstock.rpc.contract import CONTRACT, check_contract, contract_of, stamped
from penstock.rpc.service import Method
from penstock.telemetry import logs
from penstock.v1 import replay_pb2, run_pb2
from tests.support.machine.timing import PATIENCE_S
from tests.support.segments.segments import SCHEMA
from tests.support.services.servers import (
    LiveServer,
    Loopback,
    assignment,
    hello_request,
    open_request,
    plan_request,
    plan_with,
    until,
)

STREAMS = [method for method in vars(methods).values() if isinstance(method, Method) and method.kind == "bidi_stream"]


@pytest.mark.parametrize("method", STREAMS, ids=lambda method: method.name)
def test_all_streams_have_the_number_in_the_same_field(method: Method) -> None:
    for kind in (method.request, method.response):
        read = kind.FromString(stamped(kind(), 7))
        assert contract_of(read) == 7


def test_all_seven_streams_are_checked() -> None:
    assert len(STREAMS) == 7


@pytest.mark.parametrize(
    ("method", "opening"),
    [
        (methods.APPEND_SEGMENTS, open_request()),
        (methods.SAMPLE_BATCHES, plan_request(plan_with())),
        (methods.TAKE_SNAPSHOT, replay_pb2.TakeSnapshotRequest()),
    ],
)
@pytest.mark.parametrize("number", [0, CONTRACT - 1, CONTRACT + 1, 2**32 - 1])
def test_a_replay_service_refuses_a_client_of_another_contract_and_both_log_the_reason(
    loopback: Loopback, monkeypatch: pytest.MonkeyPatch, method: Method, opening: Message, number: int
) -> None:
    refuses(loopback, loopback.replay(), monkeypatch, method, opening, number)


@pytest.mark.parametrize(
    ("method", "opening"),
    [
        (methods.JOIN, hello_request()),
        (methods.RUN_EVALUATIONS, run_pb2.JoinRequest()),
    ],
)
@pytest.mark.parametrize("number", [0, CONTRACT - 1, CONTRACT + 1])
def test_a_learner_refuses_a_client_of_another_contract_and_both_log_the_reason(
    loopback: Loopback, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, method: Method, opening: Message, number: int
) -> None:
    refuses(loopback, loopback.run(tmp_path / "roster.json"), monkeypatch, method, opening, number)


def refuses(
    loopback: Loopback,
    server: LiveServer,
    monkeypatch: pytest.MonkeyPatch,
    method: Method,
    opening: Message,
    number: int,
) -> None:
    noted: list[str] = []
    monkeypatch.setattr(logs, "note", lambda event, **more: noted.append(str(more.get("reason", ""))))
    stranger = loopback.plain(server, method, contract=0)
    stranger.send(stamped(opening, number) if number else opening)
    code, details = stranger.status()
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert f"({number})" in details if number == 0 else f"contract {number}," in details
    assert f"its peer has contract {CONTRACT}; update the older" in details
    assert details in noted


def test_the_first_response_has_the_number(loopback: Loopback) -> None:
    server = loopback.replay()
    loopback.source(server, plan_with())
    stream = loopback.plain(server, methods.APPEND_SEGMENTS)
    stream.send(open_request())
    assert stream.receive().contract == CONTRACT


@pytest.mark.parametrize("number", [0, CONTRACT - 1, CONTRACT + 1])
def test_a_client_refuses_a_server_of_another_contract(loopback: Loopback, number: int) -> None:
    async def answer(requests: AsyncIterator[Any], context: Any) -> None:
        await anext(requests)
        await context.call.write(stamped(replay_pb2.AppendSegmentsResponse(), number))
        async for _ in requests:
            pass

    server = loopback.methods({methods.APPEND_SEGMENTS: answer})
    sink = ReplaySegmentSink(loopback.thread, assignment(0, server.address), SCHEMA)
    with pytest.raises(
        ConfigurationError, match=f"the server has .*{number}.* its peer has contract {CONTRACT}; update"
    ):
        until(lambda: sink.next_grant(PATIENCE_S), "the server to be refused")
    sink.close()


def test_only_the_current_contract_number_is_accepted() -> None:
    check_contract(CONTRACT, "the client")
    for number in (0, CONTRACT + 1, *range(CONTRACT)):
        with pytest.raises(ConfigurationError, match="update the older"):
            check_contract(number, "the client")
