"""Streams on one host move to a local socket, and behave there as they do over gRPC."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.errors import Overloaded, PenstockError, Unavailable
from penstock.rpc import methods
from penstock.rpc.channel import Stream, connect, open_stream, translated
from penstock.rpc.server import Server
from penstock.rpc.service import Context, Method
from penstock.security.credentials import Credentials
from penstock.v1 import replay_pb2
from tests.support.machine.timing import PATIENCE_S
from tests.support.segments.segments import make_window
from tests.support.services.servers import LiveMethods, Loopback, pass_windows, plan_with, until

Response = replay_pb2.AppendSegmentsResponse
MESSAGES = 300
PLAN = plan_with(batch_segments=2, fresh_segments=2)


def heartbeat(steps: int) -> replay_pb2.AppendSegmentsRequest:
    return replay_pb2.AppendSegmentsRequest(heartbeat=replay_pb2.Heartbeat(steps=steps))


class LocalMethods(LiveMethods):
    """A server with arbitrary behaviours that offers local sockets. `moved` has the calls that use one."""

    def __init__(self, behaviour: Any) -> None:
        self.contexts: list[Context] = []

        async def noted(requests: AsyncIterator[Any], context: Context) -> None:
            self.contexts.append(context)
            await behaviour(requests, context)

        super().__init__({methods.APPEND_SEGMENTS: noted})

    @staticmethod
    async def _make(behaviours: dict[Method, Any], max_streams: int, credentials: Credentials | None) -> Server:
        return Server(behaviours, max_streams=max_streams, local=True, credentials=credentials)

    @property
    def moved(self) -> int:
        return sum(context.local is not None for context in self.contexts)


async def echo(requests: AsyncIterator[Any], context: Context) -> None:
    async for request in requests:
        await context.write(Response(stored_sequence=request.message.heartbeat.steps))


def talk(loopback: Loopback, server: LiveMethods, address: str = "", count: int = MESSAGES) -> list[int]:
    """Sends heartbeats without waiting for responses, and returns the numbers in the responses."""

    async def run() -> list[int]:
        async with connect(server.address) as channel:
            call = open_stream(channel, methods.APPEND_SEGMENTS, address or server.address)

            async def write() -> None:
                for steps in range(count):
                    await call.write(heartbeat(steps))
                await call.done_writing()

            writing = asyncio.create_task(write())
            received = [response.stored_sequence async for response in call]
            await writing
            return received

    return loopback.thread.run(run(), PATIENCE_S)


@pytest.mark.parametrize("count", [1, 2, MESSAGES])
def test_messages_keep_their_order_when_their_stream_moves(loopback: Loopback, count: int) -> None:
    server = loopback._serve(LocalMethods(echo))
    assert talk(loopback, server, count=count) == list(range(count))


def test_ended_streams_leave_no_descriptors(loopback: Loopback) -> None:
    server = loopback._serve(LocalMethods(echo))
    opened = psutil.Process().num_fds
    talk(loopback, server)
    before = opened()
    # A short stream may end before it moves.
    while server.moved < 100:
        assert talk(loopback, server, count=20) == list(range(20))
    # Both ends are in this process. gRPC keeps some descriptors of its own.
    until(lambda: opened() < before + 50, "the end of the sockets")


def test_responses_begun_before_the_move_keep_their_order(loopback: Loopback) -> None:
    async def many(requests: AsyncIterator[Any], context: Context) -> None:
        for number in range(MESSAGES):
            await context.write(Response(stored_sequence=number))
        async for _ in requests:
            pass

    server = loopback._serve(LocalMethods(many))
    assert talk(loopback, server, count=1) == list(range(MESSAGES))


def test_a_stream_of_a_client_that_called_another_port_stays_with_grpc(loopback: Loopback) -> None:
    server = loopback._serve(LocalMethods(echo))
    assert talk(loopback, server, "127.0.0.1:1") == list(range(MESSAGES))
    assert server.moved == 0


def test_a_stream_of_a_client_without_our_code_stays_with_grpc(loopback: Loopback) -> None:
    server = loopback._serve(LocalMethods(echo))
    stream = loopback.plain(server, methods.APPEND_SEGMENTS)
    for steps in range(3):
        stream.send(heartbeat(steps))
        assert stream.receive().stored_sequence == steps
    assert server.moved == 0


def moved_stream(loopback: Loopback, server: LocalMethods) -> tuple[Stream, AsyncIterator[Any]]:
    """Opens a stream and waits until it has moved."""

    async def run() -> tuple[Stream, AsyncIterator[Any]]:
        channel = connect(server.address)
        loopback._clients.callback(lambda: loopback.thread.run(channel.close()))
        call = open_stream(channel, methods.APPEND_SEGMENTS, server.address)
        responses = aiter(call)
        for steps in range(2):
            await call.write(heartbeat(steps))
            assert (await anext(responses)).stored_sequence == steps
        return call, responses

    opened = loopback.thread.run(run(), PATIENCE_S)
    assert server.moved == 1
    return opened


def end_of(loopback: Loopback, responses: AsyncIterator[Any]) -> tuple[list[int], PenstockError | None]:
    """Returns the numbers in the remaining responses, and the error that ended the stream."""

    async def run() -> tuple[list[int], PenstockError | None]:
        received = []
        try:
            async with translated("the server"):
                async for response in responses:
                    received += [response.stored_sequence]
        except PenstockError as error:
            return received, error
        return received, None

    return loopback.thread.run(run(), 2.0 * PATIENCE_S)


def test_the_last_responses_arrive_before_the_error_that_ends_the_stream(loopback: Loopback) -> None:
    async def fails(requests: AsyncIterator[Any], context: Context) -> None:
        async for request in requests:
            steps = request.message.heartbeat.steps
            await context.write(Response(stored_sequence=steps))
            if steps == 2:
                await context.write(Response(stored_sequence=3))
                raise Overloaded("too many")

    server = loopback._serve(LocalMethods(fails))
    call, responses = moved_stream(loopback, server)
    loopback.thread.run(call.write(heartbeat(2)))
    received, error = end_of(loopback, responses)
    assert received == [2, 3]
    assert isinstance(error, Overloaded)


def test_a_killed_server_breaks_the_stream(loopback: Loopback) -> None:
    server = loopback._serve(LocalMethods(echo))
    _, responses = moved_stream(loopback, server)
    server.kill()
    assert isinstance(end_of(loopback, responses)[1], Unavailable)


def test_a_local_socket_that_breaks_ends_the_stream(loopback: Loopback) -> None:
    server = loopback._serve(LocalMethods(echo))
    call, responses = moved_stream(loopback, server)
    local = server.contexts[0].local
    assert local is not None
    server.thread.call(local.close)
    received, _ = end_of(loopback, responses)
    assert received == []

    async def write() -> None:
        async with translated("the server"):
            while True:
                await call.write(heartbeat(9))
                await asyncio.sleep(0.001)

    with pytest.raises(Unavailable), contextlib.suppress(TimeoutError):
        loopback.thread.run(write(), PATIENCE_S)


def test_a_cancelled_stream_ends_at_the_server(loopback: Loopback) -> None:
    ended = []

    async def waits(requests: AsyncIterator[Any], context: Context) -> None:
        try:
            await echo(requests, context)
        finally:
            ended.append(True)

    server = loopback._serve(LocalMethods(waits))
    call, _ = moved_stream(loopback, server)
    loopback.thread.call(call.cancel)
    until(lambda: ended or None, "the end of the stream")


def test_windows_and_batches_pass_through_local_sockets(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.replay(folder=tmp_path, rows=40)
    source, sink = loopback.source(server, PLAN), loopback.sink(0, server)
    pass_windows(sink, source, 5)
    assert sink._call is not None
    assert sink._call._local is not None
    assert loopback.replay_status(server).counts.inserted == 10


def test_a_window_pending_at_a_break_is_stored_once(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.replay(folder=tmp_path, rows=40)
    source, sink = loopback.source(server, PLAN), loopback.sink(0, server)
    pass_windows(sink, source, 1)
    until(lambda: sink.next_grant(0.5), "a grant")
    call = sink._call
    assert call is not None
    assert call._local is not None
    loopback.thread.call(call._local.close)
    sink.send(make_window(3, version=1))
    assert sink.drain(PATIENCE_S)
    assert loopback.replay_status(server).counts.inserted == 4
