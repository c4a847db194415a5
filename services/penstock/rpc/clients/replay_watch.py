"""Watch of the replay services by their learner: where they are, each time that they are reached again.

A service may return at another place, or with another store. The learner hands its place to actors, so that no other
service needs to know where replay is.
"""

import asyncio
from collections.abc import Callable, Sequence

import grpc

from penstock.addresses import preferred
from penstock.errors import PenstockError
from penstock.learning.replay_places import ReplayPlaces
from penstock.rpc import methods
from penstock.rpc.channel import UNARY_TIMEOUT_S, Backoff, call_unary
from penstock.rpc.clients.connection import Connection
from penstock.rpc.clients.names import Peer
from penstock.rpc.loop import LoopThread
from penstock.types.place import Place
from penstock.wire.batches import decode_status_place


class ReplayWatch:
    """Watch of all replay services of a run, which keeps `ReplayPlaces` current. Runs on the loop thread."""

    def __init__(
        self, thread: LoopThread, peers: Sequence[Peer], places: ReplayPlaces, changed: Callable[[], None]
    ) -> None:
        """Starts the watch. After each change it calls `changed` in a worker thread."""
        self._thread, self._places, self._changed = thread, places, changed
        self._connections = [Connection(thread, "replay", peer) for peer in peers]
        self._tasks = [thread.spawn(self._watch(service)) for service in range(len(peers))]

    def close(self) -> None:
        """Ends the watch."""
        for task in self._tasks:
            self._thread.call(task.cancel)
        for connection in self._connections:
            connection.close()

    async def _watch(self, service: int) -> None:
        connection, backoff = self._connections[service], Backoff()
        while True:
            try:
                # The stream of batches logs the absence of its service.
                if await connection.attempt():
                    if self._places.note(service, await self._ask(connection)):
                        await asyncio.to_thread(self._changed)
                    backoff.reset()
                    await _lost(connection.channel)
            except PenstockError:
                await asyncio.sleep(backoff.next_s())

    @staticmethod
    async def _ask(connection: Connection) -> Place:
        request = methods.GET_REPLAY_STATUS.request()
        status = await call_unary(
            connection.channel, methods.GET_REPLAY_STATUS, request, connection.peer, UNARY_TIMEOUT_S
        )
        place = decode_status_place(status) or Place((connection.address,))
        return Place(preferred(place.addresses, connection.address), place.identity)


async def _lost(channel: grpc.aio.Channel) -> None:
    """Waits until a channel is no longer connected."""
    while channel.get_state() == grpc.ChannelConnectivity.READY:
        await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
