"""Tests of the local sockets that carry a stream's messages on one host."""

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from penstock.errors import InvalidSegment
from penstock.machine.addresses import Address
from penstock.rpc import local_socket
from penstock.rpc.local_socket import MAX_MESSAGE_BYTES, LocalListener, LocalSocket, Offer, SocketEnded, called
from tests.support.machine.other_user import answer_to_others
from tests.support.machine.timing import PATIENCE_S

Pair = Callable[[LocalSocket, LocalSocket], Coroutine[Any, Any, None]]


def with_pair(test: Pair) -> None:
    """Runs a test with both sides of a connection."""

    async def run() -> None:
        one, other = (LocalSocket(side) for side in socket.socketpair())
        try:
            async with asyncio.timeout(PATIENCE_S):
                await test(one, other)
        finally:
            one.close()
            other.close()

    asyncio.run(run())


def test_messages_of_any_size_arrive_whole_and_in_order() -> None:
    sent = [b"", b"a", bytes(range(256)) * 40, b"x" * MAX_MESSAGE_BYTES, b"last"]

    async def test(one: LocalSocket, other: LocalSocket) -> None:
        writing = asyncio.create_task(_write(one, sent))
        assert [await other.read() for _ in sent] == sent
        await writing

    with_pair(test)


def test_messages_sent_by_another_thread_follow_those_that_wait_for_room() -> None:
    async def test(one: LocalSocket, other: LocalSocket) -> None:
        one.send(b"x" * MAX_MESSAGE_BYTES)
        await asyncio.to_thread(one.send, b"second")
        assert await other.read() == b"x" * MAX_MESSAGE_BYTES
        assert await other.read() == b"second"

    with_pair(test)


def test_a_writer_waits_while_its_peer_does_not_read() -> None:
    async def test(one: LocalSocket, other: LocalSocket) -> None:
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


def test_a_message_above_the_limit_is_refused_without_receiving_it() -> None:
    async def test(one: LocalSocket, other: LocalSocket) -> None:
        one.send(b"fine")
        one._connection.send((MAX_MESSAGE_BYTES + 1).to_bytes(4, "little"))
        assert await other.read() == b"fine"
        with pytest.raises(InvalidSegment, match=f"{MAX_MESSAGE_BYTES + 1} bytes"):
            await other.read()

    with_pair(test)


def test_after_finishing_a_side_still_receives() -> None:
    async def test(one: LocalSocket, other: LocalSocket) -> None:
        one.send(b"x" * MAX_MESSAGE_BYTES)
        one.finish()
        with pytest.raises(SocketEnded):
            one.send(b"late")
        other.send(b"answer")
        assert await one.read() == b"answer"
        assert await other.read() == b"x" * MAX_MESSAGE_BYTES
        assert await other.read() is None

    with_pair(test)


def test_an_ended_socket_delivers_what_was_sent() -> None:
    async def test(one: LocalSocket, other: LocalSocket) -> None:
        one.send(b"x" * MAX_MESSAGE_BYTES)
        one.send(b"last")
        one.end()
        assert await other.read() == b"x" * MAX_MESSAGE_BYTES
        assert await other.read() == b"last"
        assert await other.read() is None

    with_pair(test)


def test_messages_of_a_full_socket_can_be_read_after_it_was_closed() -> None:
    async def test(one: LocalSocket, other: LocalSocket) -> None:
        writing = asyncio.create_task(_write(one, 8 * [b"x" * MAX_MESSAGE_BYTES]))
        while not other._paused:
            await asyncio.sleep(0.001)
        received = len(other._unread)
        other.close()
        assert [await other.read() for _ in range(received)] == received * [b"x" * MAX_MESSAGE_BYTES]
        assert await other.read() is None
        writing.cancel()

    with_pair(test)


async def _write(one: LocalSocket, messages: list[bytes]) -> None:
    for message in messages:
        await one.write(message)


def test_closing_ends_the_own_wait_and_that_of_the_peer() -> None:
    async def test(one: LocalSocket, other: LocalSocket) -> None:
        waits = [asyncio.create_task(side.read()) for side in (one, other)]
        await asyncio.sleep(0)
        one.close()
        assert await asyncio.gather(*waits) == [None, None]

    with_pair(test)


def test_an_ended_socket_is_closed_after_its_last_message() -> None:
    async def run() -> None:
        for last in (b"last", b"x" * MAX_MESSAGE_BYTES):
            ours, theirs = socket.socketpair()
            one, other = LocalSocket(ours), LocalSocket(theirs)
            one.send(last)
            one.end()
            assert await other.read() == last
            async with asyncio.timeout(PATIENCE_S):
                while ours.fileno() >= 0:
                    await asyncio.sleep(0)
            other.close()

    asyncio.run(run())


def test_a_socket_is_given_to_the_stream_whose_secret_arrives_and_only_once() -> None:
    async def run() -> None:
        listener, moved = LocalListener(), list[LocalSocket]()

        def move(local: LocalSocket) -> int:
            moved.append(local)
            return 7

        with listener.offered(called("host:81"), Address("0.0.0.0", 81), move) as offer:
            assert offer is not None
            assert Offer.of(offer.metadata()) == offer
            assert await local_socket.connect(Offer(offer.name, b"x" * 16)) is None
            assert moved == []
            connected = await local_socket.connect(offer)
            assert connected is not None
            local, count = connected
            assert count == 7
            local.send(b"hello")
            assert await moved[0].read() == b"hello"
            assert await local_socket.connect(offer) is None
        local.close()
        moved[0].close()
        listener.close()

    asyncio.run(run())


def test_a_socket_is_neither_offered_to_other_ports_nor_after_its_stream() -> None:
    async def run() -> None:
        listener = LocalListener()
        with listener.offered(called("host:80"), Address("0.0.0.0", 81), lambda local: 0) as offer:
            assert offer is None
        with listener.offered((), Address("0.0.0.0", 81), lambda local: 0) as offer:
            assert offer is None
        with listener.offered(called("host:81"), Address("0.0.0.0", 81), lambda local: 0) as offer:
            assert offer is not None
        assert await local_socket.connect(offer) is None
        listener.close()
        assert await local_socket.connect(offer) is None

    asyncio.run(run())


def test_a_socket_is_not_given_to_another_user_who_has_the_secret() -> None:
    async def run() -> None:
        listener, moved = LocalListener(), list[LocalSocket]()

        def move(local: LocalSocket) -> int:
            moved.append(local)
            return 7

        with listener.offered(called("host:81"), Address("0.0.0.0", 81), move) as offer:
            assert offer is not None
            message = len(offer.secret).to_bytes(4, "little") + offer.secret
            assert await asyncio.to_thread(answer_to_others, f"\0{offer.name}", message) == b""
            assert moved == []
            # The secret is still valid, so it was not read.
            connected = await local_socket.connect(offer)
            assert connected is not None and len(moved) == 1
            connected[0].close()
            moved[0].close()
        listener.close()

    asyncio.run(run())


def test_a_connection_of_another_user_is_closed_before_its_secret_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        listener, moved, own = LocalListener(), list[LocalSocket](), os.geteuid()

        def move(local: LocalSocket) -> int:
            moved.append(local)
            return 7

        with listener.offered(called("host:81"), Address("0.0.0.0", 81), move) as offer:
            assert offer is not None
            with monkeypatch.context() as patch:
                # For the listener, this process is another user's.
                patch.setattr(os, "geteuid", lambda: own + 1)
                assert await local_socket.connect(offer) is None
            assert moved == []
            connected = await local_socket.connect(offer)
            assert connected is not None and len(moved) == 1
            connected[0].close()
            moved[0].close()
        listener.close()

    asyncio.run(run())


def test_only_names_of_penstock_are_connected_to() -> None:
    assert Offer.of((("penstock-local-socket", "other/00"),)) is None
    assert Offer.of((("penstock-local-socket", "penstock-1/zz"),)) is None
    assert Offer.of((("another-key", "penstock-1/00"),)) is None
