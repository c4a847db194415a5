"""Streams move to a direct socket (a Unix socket, TCP or TLS), and behave there as they do over gRPC."""

import asyncio
import contextlib
import errno
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.errors import InvalidSegment, Overloaded, PenstockError, Unavailable
from penstock.rpc import direct_offers, methods
from penstock.rpc.channel import Stream, connect, open_stream, translated
from penstock.rpc.direct_offers import Called, Offer
from penstock.rpc.server import Server
from penstock.rpc.service import Context, Method
from penstock.rpc.tls import client_credentials
from penstock.security.credentials import Credentials
from penstock.security.roles import Role
from penstock.v1 import replay_pb2
from tests.support.machine.timing import PATIENCE_S
from tests.support.segments.segments import make_window
from tests.support.services.another_host import as_from_another_host
from tests.support.services.certificates import certificates_of
from tests.support.services.servers import LiveMethods, Loopback, PlainClient, pass_windows, plan_with, until

Response = replay_pb2.AppendSegmentsResponse
MESSAGES = 300
PLAN = plan_with(batch_segments=2, fresh_segments=2)


def heartbeat(steps: int) -> replay_pb2.AppendSegmentsRequest:
    return replay_pb2.AppendSegmentsRequest(heartbeat=replay_pb2.Heartbeat(steps=steps))


@pytest.fixture(params=["unix", "tcp", "tls"])
def way(request: pytest.FixtureRequest) -> str:
    """The kind of direct socket."""
    return str(request.param)


@pytest.fixture
def credentials(way: str, tmp_path: Path) -> dict[Role, Credentials]:
    """Credentials of a run; none in plain text."""
    roles: tuple[Role, ...] = ("actor", "learner", "replay") if way == "tls" else ()
    files = certificates_of(tmp_path / "certificates") if roles else {}
    return {role: Credentials(files[role], role) for role in roles}


@pytest.fixture
def loopback(way: str, credentials: dict[Role, Credentials]) -> Iterator[Loopback]:
    """Servers and clients of a test, on one host for Unix sockets only."""
    place = contextlib.nullcontext() if way == "unix" else as_from_another_host()
    with place, Loopback(credentials.get("actor")) as loopback:
        yield loopback


class DirectMethods(LiveMethods):
    """A server with arbitrary behaviours that offers direct sockets. `moved` has the calls that use one."""

    def __init__(self, behaviour: Any, credentials: dict[Role, Credentials]) -> None:
        self.contexts: list[Context] = []

        async def noted(requests: AsyncIterator[Any], context: Context) -> None:
            self.contexts.append(context)
            await behaviour(requests, context)

        super().__init__({methods.APPEND_SEGMENTS: noted}, credentials=credentials.get("replay"))

    @staticmethod
    async def _make(behaviours: dict[Method, Any], max_streams: int, credentials: Credentials | None) -> Server:
        return Server(behaviours, max_streams=max_streams, direct=True, credentials=credentials)

    @property
    def moved(self) -> int:
        return sum(context.direct is not None for context in self.contexts)


async def echo(requests: AsyncIterator[Any], context: Context) -> None:
    async for request in requests:
        await context.write(Response(stored_sequence=request.message.heartbeat.steps))


def talk(loopback: Loopback, server: LiveMethods, address: str = "", count: int = MESSAGES) -> list[int]:
    """Sends heartbeats without waiting for responses, and returns the numbers in the responses."""

    async def run() -> list[int]:
        async with connect(server.address, loopback.thread.credentials, "replay") as channel:
            called = Called(address or server.address, "replay", loopback.thread.credentials)
            call = open_stream(channel, methods.APPEND_SEGMENTS, called)

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
def test_messages_keep_their_order_when_their_stream_moves(
    loopback: Loopback, credentials: dict[Role, Credentials], count: int
) -> None:
    server = loopback._serve(DirectMethods(echo, credentials))
    assert talk(loopback, server, count=count) == list(range(count))


def test_ended_streams_leave_no_descriptors(loopback: Loopback, credentials: dict[Role, Credentials]) -> None:
    server = loopback._serve(DirectMethods(echo, credentials))
    opened = psutil.Process().num_fds
    talk(loopback, server)
    before = opened()
    # A short stream may end before it moves.
    while server.moved < 100:
        assert talk(loopback, server, count=20) == list(range(20))
    # Both ends are in this process. gRPC keeps some descriptors of its own.
    until(lambda: opened() < before + 50, "the end of the sockets")


def test_responses_begun_before_the_move_keep_their_order(
    loopback: Loopback, credentials: dict[Role, Credentials]
) -> None:
    async def many(requests: AsyncIterator[Any], context: Context) -> None:
        for number in range(MESSAGES):
            await context.write(Response(stored_sequence=number))
        async for _ in requests:
            pass

    server = loopback._serve(DirectMethods(many, credentials))
    assert talk(loopback, server, count=1) == list(range(MESSAGES))


def test_a_stream_of_a_client_that_called_another_port_stays_with_grpc(
    loopback: Loopback, credentials: dict[Role, Credentials]
) -> None:
    server = loopback._serve(DirectMethods(echo, credentials))
    assert talk(loopback, server, "127.0.0.1:1") == list(range(MESSAGES))
    assert server.moved == 0


def test_a_stream_of_a_client_without_our_code_stays_with_grpc(
    loopback: Loopback, credentials: dict[Role, Credentials]
) -> None:
    server = loopback._serve(DirectMethods(echo, credentials))
    actor = credentials.get("actor")
    client = PlainClient(client_credentials(actor.current) if actor is not None else None)
    stream = loopback.plain(server, methods.APPEND_SEGMENTS, client=client)
    for steps in range(3):
        stream.send(heartbeat(steps))
        assert stream.receive().stored_sequence == steps
    assert server.moved == 0


def moved_stream(loopback: Loopback, server: DirectMethods) -> tuple[Stream, AsyncIterator[Any]]:
    """Opens a stream and waits until it has moved."""

    async def run() -> tuple[Stream, AsyncIterator[Any]]:
        channel = connect(server.address, loopback.thread.credentials, "replay")
        loopback._clients.callback(lambda: loopback.thread.run(channel.close()))
        called = Called(server.address, "replay", loopback.thread.credentials)
        call = open_stream(channel, methods.APPEND_SEGMENTS, called)
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


def test_the_last_responses_arrive_before_the_error_that_ends_the_stream(
    loopback: Loopback, credentials: dict[Role, Credentials]
) -> None:
    async def fails(requests: AsyncIterator[Any], context: Context) -> None:
        async for request in requests:
            steps = request.message.heartbeat.steps
            await context.write(Response(stored_sequence=steps))
            if steps == 2:
                await context.write(Response(stored_sequence=3))
                raise Overloaded("too many")

    server = loopback._serve(DirectMethods(fails, credentials))
    call, responses = moved_stream(loopback, server)
    loopback.thread.run(call.write(heartbeat(2)))
    received, error = end_of(loopback, responses)
    assert received == [2, 3]
    assert isinstance(error, Overloaded)


def test_a_killed_server_breaks_the_stream(loopback: Loopback, credentials: dict[Role, Credentials]) -> None:
    server = loopback._serve(DirectMethods(echo, credentials))
    _, responses = moved_stream(loopback, server)
    server.kill()
    assert isinstance(end_of(loopback, responses)[1], Unavailable)


def test_a_direct_socket_that_breaks_ends_the_stream(loopback: Loopback, credentials: dict[Role, Credentials]) -> None:
    server = loopback._serve(DirectMethods(echo, credentials))
    call, responses = moved_stream(loopback, server)
    direct = server.contexts[0].direct
    assert direct is not None
    server.thread.call(direct.close)
    received, _ = end_of(loopback, responses)
    assert received == []

    async def write() -> None:
        async with translated("the server"):
            while True:
                await call.write(heartbeat(9))
                await asyncio.sleep(0.001)

    with pytest.raises(Unavailable), contextlib.suppress(TimeoutError):
        loopback.thread.run(write(), PATIENCE_S)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"\xff" * 100, "malformed message"),
        (bytes([122, 100]), "it ends within a field"),
        ((2**31).to_bytes(4, "little"), f"it has {2**31} bytes"),
    ],
    ids=["no_message", "half_a_field", "too_long"],
)
def test_a_malformed_message_ends_the_stream_with_its_reason(
    loopback: Loopback, credentials: dict[Role, Credentials], sent: bytes, reason: str
) -> None:
    server = loopback._serve(DirectMethods(echo, credentials))
    call, responses = moved_stream(loopback, server)
    direct = call._direct
    assert direct is not None
    framed = sent if len(sent) == 4 else len(sent).to_bytes(4, "little") + sent

    async def send() -> None:
        with direct._lock:
            direct._send_or_keep(framed)

    loopback.thread.run(send())
    received, error = end_of(loopback, responses)
    assert received == []
    assert isinstance(error, InvalidSegment)
    assert reason in str(error)


def test_a_cancelled_stream_ends_at_the_server(loopback: Loopback, credentials: dict[Role, Credentials]) -> None:
    ended = []

    async def waits(requests: AsyncIterator[Any], context: Context) -> None:
        try:
            await echo(requests, context)
        finally:
            ended.append(True)

    server = loopback._serve(DirectMethods(waits, credentials))
    call, _ = moved_stream(loopback, server)
    loopback.thread.call(call.cancel)
    until(lambda: ended or None, "the end of the stream")


@pytest.fixture
def learner(loopback: Loopback, credentials: dict[Role, Credentials]) -> Iterator[Loopback]:
    """Clients with the learner's credentials."""
    with Loopback(credentials.get("learner")) as learner:
        yield learner


@pytest.mark.parametrize("mapped", [True, False], ids=["mapped", "in_messages"])
def test_windows_and_batches_pass_through_direct_sockets(
    loopback: Loopback, learner: Loopback, credentials: dict[Role, Credentials], tmp_path: Path, mapped: bool
) -> None:
    folder = tmp_path / "store" if mapped else None
    server = loopback.replay(folder=folder, rows=40, credentials=credentials.get("replay"))
    source, sink = learner.source(server, PLAN), loopback.sink(0, server)
    pass_windows(sink, source, 5)
    assert sink._call is not None
    assert sink._call._direct is not None
    assert learner.replay_status(server).counts.inserted == 10


def test_a_window_pending_at_a_break_is_stored_once(
    loopback: Loopback, learner: Loopback, credentials: dict[Role, Credentials], tmp_path: Path
) -> None:
    server = loopback.replay(folder=tmp_path / "store", rows=40, credentials=credentials.get("replay"))
    source, sink = learner.source(server, PLAN), loopback.sink(0, server)
    pass_windows(sink, source, 1)
    until(lambda: sink.next_grant(0.5), "a grant")
    call = sink._call
    assert call is not None
    assert call._direct is not None
    loopback.thread.call(call._direct.close)
    sink.send(make_window(3, version=1))
    assert sink.drain(PATIENCE_S)
    assert learner.replay_status(server).counts.inserted == 4


@pytest.mark.parametrize("way", ["tcp", "tls"], indirect=True)
def test_a_lost_connection_ends_the_stream_as_one_that_the_client_opens_again(
    loopback: Loopback, way: str, credentials: dict[Role, Credentials]
) -> None:
    server = loopback._serve(DirectMethods(echo, credentials))
    _, responses = moved_stream(loopback, server)
    direct = server.contexts[0].direct
    assert direct is not None
    # As a middlebox that forgets a connection, which neither side has ended.
    server.thread.call(lambda: direct._connection.shutdown(socket.SHUT_RDWR))
    received, error = end_of(loopback, responses)
    assert received == []
    assert isinstance(error, Unavailable)


class Elsewhere:
    """A port that is not the server's."""

    def __init__(self, kind: str) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        if kind == "closed":
            self._listening.close()
        elif kind == "hangs_up":
            threading.Thread(target=self._hang_up, daemon=True).start()

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._listening.accept()[0].close()

    def close(self) -> None:
        self._listening.close()


@pytest.mark.parametrize("kind", ["closed", "hangs_up", "silent"])
@pytest.mark.parametrize("way", ["tcp", "tls"], indirect=True)
def test_a_stream_stays_with_grpc_if_the_port_does_not_lead_to_its_server(
    loopback: Loopback, way: str, credentials: dict[Role, Credentials], kind: str
) -> None:
    server = loopback._serve(DirectMethods(echo, credentials))
    assert server.server._direct is not None
    with contextlib.closing(Elsewhere(kind)) as elsewhere:
        server.server._direct._port = elsewhere.port
        for _ in range(2):
            assert talk(loopback, server) == list(range(MESSAGES))
        # A port that does not answer is not tried again soon.
        assert (("127.0.0.1", elsewhere.port) in direct_offers._silent) == (kind == "silent")
    assert server.moved == 0


@pytest.mark.parametrize("way", ["tcp", "tls"], indirect=True)
def test_a_stream_that_ends_while_its_connection_is_made_ends_as_it_would(
    loopback: Loopback, credentials: dict[Role, Credentials]
) -> None:
    server = loopback._serve(DirectMethods(echo, credentials))
    listener = server.server._direct
    assert listener is not None

    class Once(dict[bytes, Any]):
        """Forgets a secret as soon as it was found, as when its stream ends then."""

        def __contains__(self, secret: object) -> bool:
            found = super().__contains__(secret)
            if found:
                del self[secret]  # type: ignore[arg-type]
            return found

    listener._expected = Once()
    assert talk(loopback, server) == list(range(MESSAGES))
    assert server.moved == 0


@pytest.mark.parametrize("way", ["tcp", "tls"], indirect=True)
def test_a_stream_does_not_move_to_another_server_of_its_run(
    loopback: Loopback, way: str, credentials: dict[Role, Credentials]
) -> None:
    server, other = (loopback._serve(DirectMethods(echo, credentials)) for _ in range(2))
    assert server.server._direct is not None
    assert other.server._direct is not None
    server.server._direct._port = other.server._direct._port
    assert talk(loopback, server) == list(range(MESSAGES))
    assert server.moved == other.moved == 0


@pytest.mark.parametrize("way", ["tcp", "tls"], indirect=True)
def test_strangers_at_the_port_get_nothing_and_do_not_keep_streams_from_it(
    loopback: Loopback, way: str, credentials: dict[Role, Credentials]
) -> None:
    server = loopback._serve(DirectMethods(echo, credentials))
    assert server.server._direct is not None
    port = server.server._direct._port
    for sent in (b"", b"GET / HTTP/1.1\r\n\r\n", (16).to_bytes(4, "little") + b"x" * 16, b"\xff" * 2**16):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.settimeout(PATIENCE_S)
            try:
                stranger.sendall(sent)
                stranger.shutdown(socket.SHUT_WR)
                answer = stranger.recv(2**16)
                # An alert of TLS has seven bytes.
                assert answer == b"" or (way == "tls" and len(answer) == 7)
            except OSError as error:
                # The server may end the connection before all of it is sent.
                assert error.errno in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN)
    moved_stream(loopback, server)


@pytest.mark.parametrize("way", ["tls"], indirect=True)
def test_a_client_without_a_certificate_of_the_run_can_not_reach_the_port(
    loopback: Loopback, way: str, credentials: dict[Role, Credentials], tmp_path: Path
) -> None:
    server = loopback._serve(DirectMethods(echo, credentials))
    listener = server.server._direct
    assert listener is not None
    strangers = certificates_of(tmp_path / "strangers")
    secret = b"s" * 16
    listener._expected[secret] = lambda direct: pytest.fail("a stranger was admitted")
    for stranger in (None, Credentials(strangers["actor"], "actor")):
        called = Called(server.address, "replay", stranger)
        offer = Offer(secret, port=listener._port)
        assert loopback.thread.run(direct_offers.connect(offer, called), PATIENCE_S) is None
    assert secret in listener._expected
