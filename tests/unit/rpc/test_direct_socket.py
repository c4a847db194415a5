"""Tests of the direct sockets that carry a stream's messages: by a Unix socket, by TCP, and by TLS."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from penstock.errors import InvalidSegment
from penstock.rpc.direct_offers import secured
from penstock.rpc.direct_socket import MAX_MESSAGE_BYTES, DirectSocket, SocketEnded
from penstock.rpc.tls import client_context, server_context
from penstock.security.credentials import Credentials
from penstock.security.roles import Role
from tests.support.machine.timing import PATIENCE_S
from tests.support.services.certificates import certificates_of

Pair = Callable[[DirectSocket, DirectSocket], Coroutine[Any, Any, None]]
With = Callable[[Pair], None]


def tcp() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        # The kernel would buffer more and more.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**17)
        one = socket.create_connection(listening.getsockname())
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**17)
        return one, listening.accept()[0]


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> dict[Role, Credentials]:
    """Credentials of a run."""
    files = certificates_of(tmp_path_factory.mktemp("certificates"))
    return {role: Credentials(files[role], role) for role in ("actor", "replay")}


@pytest.fixture(params=["unix", "tcp", "tls"])
def way(request: pytest.FixtureRequest) -> str:
    """The kind of connection."""
    return str(request.param)


@pytest.fixture
def with_pair(way: str, certified: dict[Role, Credentials]) -> With:
    """Runs a test with both sides of a connection."""

    async def run(test: Pair) -> None:
        ends = socket.socketpair() if way == "unix" else tcp()
        if way == "tls":
            for end in ends:
                end.setblocking(False)
            client = client_context(certified["actor"].current)
            name = certified["replay"].identity.server_name
            ends = await asyncio.gather(
                secured(client, ends[0], server_hostname=name),
                secured(server_context(certified["replay"].current), ends[1], server_side=True),
            )
        one, other = (DirectSocket(end) for end in ends)
        assert one.is_local == (way == "unix")
        try:
            async with asyncio.timeout(PATIENCE_S):
                await test(one, other)
        finally:
            one.close()
            other.close()

    return lambda test: asyncio.run(run(test))


def test_messages_of_any_size_arrive_whole_and_in_order(with_pair: With) -> None:
    sent = [b"", b"a", bytes(range(256)) * 40, b"x" * MAX_MESSAGE_BYTES, b"last"]

    async def test(one: DirectSocket, other: DirectSocket) -> None:
        writing = asyncio.create_task(_write(one, sent))
        assert [await other.read() for _ in sent] == sent
        await writing

    with_pair(test)


def test_messages_sent_by_another_thread_follow_those_that_wait_for_room(with_pair: With) -> None:
    async def test(one: DirectSocket, other: DirectSocket) -> None:
        one.send(b"x" * MAX_MESSAGE_BYTES)
        await asyncio.to_thread(one.send, b"second")
        assert await other.read() == b"x" * MAX_MESSAGE_BYTES
        assert await other.read() == b"second"

    with_pair(test)


def test_a_writer_waits_while_its_peer_does_not_read(with_pair: With) -> None:
    async def test(one: DirectSocket, other: DirectSocket) -> None:
        written = 0

        async def write() -> None:
            nonlocal written
            while True:
                await one.write(b"x" * 2**20)
                written += 1

        writing = asyncio.create_task(write())
        while written == 0 or not other._paused:
            await asyncio.sleep(0.001)
        before = written
        for _ in range(100):
            await asyncio.sleep(0)  # One turn of the loop, in which a socket with room would be written to.
        assert written == before
        # What is received and not read, unsent, and in the kernel.
        assert before <= 2 * 16 + 4
        for _ in range(2 * before):
            assert await other.read() == b"x" * 2**20
        writing.cancel()

    with_pair(test)


def test_a_message_above_the_limit_is_refused_without_receiving_it(with_pair: With) -> None:
    async def test(one: DirectSocket, other: DirectSocket) -> None:
        one.send(b"fine")
        one._connection.send((MAX_MESSAGE_BYTES + 1).to_bytes(4, "little"))
        assert await other.read() == b"fine"
        with pytest.raises(InvalidSegment, match=f"{MAX_MESSAGE_BYTES + 1} bytes"):
            await other.read()

    with_pair(test)


def test_after_finishing_a_side_still_receives(with_pair: With) -> None:
    async def test(one: DirectSocket, other: DirectSocket) -> None:
        one.send(b"x" * MAX_MESSAGE_BYTES)
        one.finish()
        with pytest.raises(SocketEnded):
            one.send(b"late")
        other.send(b"answer")
        assert await one.read() == b"answer"
        assert await other.read() == b"x" * MAX_MESSAGE_BYTES
        assert await other.read() is None

    with_pair(test)


def test_an_ended_socket_delivers_what_was_sent(with_pair: With) -> None:
    async def test(one: DirectSocket, other: DirectSocket) -> None:
        one.send(b"x" * MAX_MESSAGE_BYTES)
        one.send(b"last")
        one.end()
        assert await other.read() == b"x" * MAX_MESSAGE_BYTES
        assert await other.read() == b"last"
        assert await other.read() is None

    with_pair(test)


def test_messages_of_a_full_socket_can_be_read_after_it_was_closed(with_pair: With) -> None:
    async def test(one: DirectSocket, other: DirectSocket) -> None:
        writing = asyncio.create_task(_write(one, 8 * [b"x" * MAX_MESSAGE_BYTES]))
        while not other._paused:
            await asyncio.sleep(0.001)
        received = len(other._unread)
        other.close()
        assert [await other.read() for _ in range(received)] == received * [b"x" * MAX_MESSAGE_BYTES]
        assert await other.read() is None
        writing.cancel()

    with_pair(test)


async def _write(one: DirectSocket, messages: list[bytes]) -> None:
    for message in messages:
        await one.write(message)


def test_closing_ends_the_own_wait_and_that_of_the_peer(with_pair: With) -> None:
    async def test(one: DirectSocket, other: DirectSocket) -> None:
        waits = [asyncio.create_task(side.read()) for side in (one, other)]
        await asyncio.sleep(0)
        one.close()
        own, peers = await asyncio.gather(*waits, return_exceptions=True)
        assert own is None
        # A peer that has finished says so, unless its Unix socket does.
        assert peers is None if other.is_local else isinstance(peers, SocketEnded)

    with_pair(test)


@pytest.mark.parametrize("last", [b"last", b"x" * MAX_MESSAGE_BYTES], ids=["short", "long"])
def test_an_ended_socket_is_closed_after_its_last_message(with_pair: With, last: bytes) -> None:
    async def test(one: DirectSocket, other: DirectSocket) -> None:
        # A close with unread bytes would take back what the peer has not received yet.
        other.send(b"unread" * 1000)
        one.send(last)
        one.end()
        assert await other.read() == last
        assert await other.read() is None
        while one._connection.fileno() >= 0:
            await asyncio.sleep(0.01)

    with_pair(test)


@pytest.mark.parametrize("way", ["tcp", "tls"], indirect=True)
def test_a_lost_connection_is_not_the_end_of_its_messages(with_pair: With) -> None:
    async def test(one: DirectSocket, other: DirectSocket) -> None:
        one.send(b"fine")
        assert await other.read() == b"fine"
        # Half of a message.
        one._connection.send((100).to_bytes(4, "little") + b"x" * 50)
        one._connection.shutdown(socket.SHUT_RDWR)
        with pytest.raises(SocketEnded, match="lost"):
            await other.read()

    with_pair(test)


def test_a_flood_of_empty_messages_is_bounded(with_pair: With) -> None:
    async def test(one: DirectSocket, other: DirectSocket) -> None:
        async def flood() -> None:
            while True:
                for _ in range(100):
                    await one.write(b"")
                await asyncio.sleep(0)

        writing = asyncio.create_task(flood())
        while not other._paused:
            await asyncio.sleep(0.001)
        assert len(other._unread) < 2**18
        writing.cancel()

    with_pair(test)


def test_both_directions_carry_large_messages_at_once(with_pair: With) -> None:
    messages = [bytes([number]) * (MAX_MESSAGE_BYTES - number) for number in range(12)]

    async def test(one: DirectSocket, other: DirectSocket) -> None:
        writing = [asyncio.create_task(_write(side, messages)) for side in (one, other)]
        for side in (one, other):
            assert [await side.read() for _ in messages] == messages
        await asyncio.gather(*writing)

    with_pair(test)
