"""Tests of the offers of direct sockets, and of the connections to them."""

import asyncio
import os
from dataclasses import replace

import pytest

from penstock.machine.addresses import Address
from penstock.rpc.direct_offers import Called, DirectListener, Offer, connect
from penstock.rpc.direct_socket import DirectSocket
from penstock.telemetry import metrics
from tests.support.machine.other_user import answer_to_others

CALLED = Called("127.0.0.1:81")


def test_a_socket_is_given_to_the_stream_whose_secret_arrives_and_only_once() -> None:
    async def run() -> None:
        listener, moved = DirectListener(), list[DirectSocket]()

        def move(direct: DirectSocket) -> int:
            moved.append(direct)
            return 7

        with listener.offered(CALLED.metadata(), Address("127.0.0.1", 81), move) as offer:
            assert offer is not None
            assert Offer.of(offer.metadata()) == offer
            assert await connect(replace(offer, secret=b"x" * 16), CALLED) is None
            assert moved == []
            connected = await connect(offer, CALLED)
            assert connected is not None
            direct, count = connected
            assert count == 7
            direct.send(b"hello")
            assert await moved[0].read() == b"hello"
            assert await connect(offer, CALLED) is None
        direct.close()
        moved[0].close()
        listener.close()

    asyncio.run(run())


def test_connections_of_each_result_are_counted_from_the_first_scrape_on() -> None:
    async def run() -> None:
        metrics.STREAM_CONNECTIONS.clear()
        listener = DirectListener()
        listener.listen(Address("127.0.0.1", 81), None)
        counted = {
            (sample.labels["socket"], sample.labels["result"]): sample.value
            for family in metrics.STREAM_CONNECTIONS.collect()
            for sample in family.samples
        }
        assert counted == {(kind, result): 0.0 for kind in ("tcp", "unix") for result in ("moved", "refused")}
        listener.close()

    asyncio.run(run())


def test_a_socket_is_neither_offered_to_other_ports_nor_after_its_stream() -> None:
    async def run() -> None:
        listener = DirectListener()
        with listener.offered(Called("127.0.0.1:80").metadata(), Address("127.0.0.1", 81), lambda direct: 0) as offer:
            assert offer is None
        with listener.offered((), Address("127.0.0.1", 81), lambda direct: 0) as offer:
            assert offer is None
        with listener.offered(CALLED.metadata(), Address("127.0.0.1", 81), lambda direct: 0) as offer:
            assert offer is not None
        assert await connect(offer, CALLED) is None
        listener.close()
        assert await connect(offer, CALLED) is None

    asyncio.run(run())


def test_a_socket_is_not_given_to_another_user_who_has_the_secret() -> None:
    async def run() -> None:
        listener, moved = DirectListener(), list[DirectSocket]()

        def move(direct: DirectSocket) -> int:
            moved.append(direct)
            return 7

        with listener.offered(CALLED.metadata(), Address("127.0.0.1", 81), move) as offer:
            assert offer is not None
            message = len(offer.secret).to_bytes(4, "little") + offer.secret
            assert await asyncio.to_thread(answer_to_others, f"\0{offer.name}", message) == b""
            assert moved == []
            # The secret is still valid, so it was not read.
            connected = await connect(offer, CALLED)
            assert connected is not None and len(moved) == 1
            connected[0].close()
            moved[0].close()
        listener.close()

    asyncio.run(run())


def test_a_connection_of_another_user_is_closed_before_its_secret_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        listener, moved, own = DirectListener(), list[DirectSocket](), os.geteuid()

        def move(direct: DirectSocket) -> int:
            moved.append(direct)
            return 7

        with listener.offered(CALLED.metadata(), Address("127.0.0.1", 81), move) as offer:
            assert offer is not None
            with monkeypatch.context() as patch:
                # For the listener, this process is another user's.
                patch.setattr(os, "geteuid", lambda: own + 1)
                assert await connect(offer, CALLED) is None
            assert moved == []
            connected = await connect(offer, CALLED)
            assert connected is not None and len(moved) == 1
            connected[0].close()
            moved[0].close()
        listener.close()

    asyncio.run(run())


def test_only_names_of_penstock_are_connected_to() -> None:
    assert Offer.of((("penstock-local-socket", "other/00"),)) is None
    assert Offer.of((("penstock-local-socket", "penstock-1/zz"),)) is None
    assert Offer.of((("another-key", "penstock-1/00"),)) is None
