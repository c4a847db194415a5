"""Asks a replay service for snapshots. Used by commands, from their main thread."""

import asyncio
from collections.abc import Callable

import grpc

from penstock.errors import Unavailable
from penstock.rpc import methods
from penstock.rpc.channel import call_unary, connect, translated
from penstock.rpc.loop import LoopThread
from penstock.rpc.service import serialise
from penstock.types import Snapshot, SnapshotProgress
from penstock.v1 import replay_pb2
from penstock.wire import snapshots as wire

_SILENCE_S = 10.0
"""The service tells how far it is several times a second."""


class SnapshotClient:
    """Asks one replay service for snapshots."""

    def __init__(self, thread: LoopThread, address: str) -> None:
        self._thread, self._peer = thread, f"the replay service at {address}"
        self._channel = thread.run(self._connect(address))

    @staticmethod
    async def _connect(address: str) -> grpc.aio.Channel:
        return connect(address)

    def take(self, name: str = "", show: Callable[[SnapshotProgress], None] = lambda progress: None) -> Snapshot:
        """Has a snapshot taken, and waits for it.

        Args:
            name: Its name; empty: the time, in UTC.
            show: Called on the loop's thread with how far it is.

        Returns:
            The complete snapshot.

        Raises:
            PenstockError: What the service raised, or `Unavailable` if it does not answer.
        """
        return self._thread.run(self._take(name, show))

    def complete(self) -> list[Snapshot]:
        """All complete ones, oldest first. Raises as `take`."""
        request = replay_pb2.ListSnapshotsRequest()
        answer = self._thread.run(call_unary(self._channel, methods.LIST_SNAPSHOTS, request, self._peer))
        return [wire.decode_snapshot(message) for message in answer.snapshots]

    def close(self) -> None:
        """Closes the channel; a snapshot that is on its way goes on."""
        self._thread.run(self._channel.close())

    async def _take(self, name: str, show: Callable[[SnapshotProgress], None]) -> Snapshot:
        stub = self._channel.unary_stream(
            methods.TAKE_SNAPSHOT.path,
            request_serializer=serialise,
            response_deserializer=replay_pb2.TakeSnapshotResponse.FromString,
        )
        async with translated(self._peer):
            responses = aiter(stub(replay_pb2.TakeSnapshotRequest(name=name)))
            while True:
                try:
                    async with asyncio.timeout(_SILENCE_S):
                        response = await anext(responses)
                except TimeoutError:
                    raise Unavailable(f"{self._peer} said nothing for {_SILENCE_S:.0f} s") from None
                if response.HasField("snapshot"):
                    return wire.decode_snapshot(response.snapshot)
                show(wire.decode_progress(response.progress))
