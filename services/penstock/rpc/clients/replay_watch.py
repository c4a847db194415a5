"""Watch of the replay services by their learner: their statements about themselves each time that they are reached
again.

A service may return at another place, or with another store. The learner hands its place to actors, so that no other
service needs to know where replay is.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

import grpc

from penstock.errors import PenstockError
from penstock.learning.members.replay_places import ReplayPlaces
from penstock.machine.addresses import preferred
from penstock.rpc import methods
from penstock.rpc.channel import UNARY_TIMEOUT_S, Backoff, call_unary
from penstock.rpc.clients.connection import Connection, Peer
from penstock.rpc.loop import LoopThread
from penstock.types.location import Location, Place
from penstock.v1 import replay_pb2
from penstock.wire.batches import decode_status_location, decode_status_place


class ReplayWatch:
    """Watch of all replay services of a run, which keeps `ReplayPlaces` current. Runs on the loop thread."""

    def __init__(
        self,
        thread: LoopThread,
        peers: Sequence[Peer],
        places: ReplayPlaces,
        changed: Callable[[], None],
        located: Callable[[int, Location], None] = lambda service, location: None,
    ) -> None:
        """Starts the watch.

        After each change it calls `changed` in a worker thread, and `located` each time that it reaches a service, with
        the service's index and location.
        """
        self._thread, self._places, self._changed, self._located = thread, places, changed, located
        self._connections = [Connection(thread, "replay", peer) for peer in peers]
        self._tasks = [thread.spawn(self._watch(service)) for service in range(len(peers))]

    def close(self) -> None:
        """Ends the watch."""
        for task in self._tasks:
            self._thread.call(task.cancel)
        for connection in self._connections:
            connection.close()

    def connected_actors(self) -> int:
        """Asks the replay services how many actors are connected to them, and returns the sum.

        A service that can't be reached has none. Call it from other threads than the loop's. It returns within the time
        limit of a unary call.
        """
        return self._thread.run(self._connected_actors())

    async def _connected_actors(self) -> int:
        # A connection has a channel once it has an address.
        asked = [self._ask(connection) for connection in self._connections if connection.address]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found = 0
        for answer in answers:
            if isinstance(answer, replay_pb2.GetReplayStatusResponse):
                found += answer.actors
            elif not isinstance(answer, PenstockError):
                raise answer
        return found

    async def _watch(self, service: int) -> None:
        connection, backoff = self._connections[service], Backoff()
        while True:
            try:
                # The stream of batches logs the absence of its service.
                if await connection.attempt():
                    if self._note(service, connection.address, await self._ask(connection)):
                        await asyncio.to_thread(self._changed)
                    backoff.reset()
                    await _lost(connection.channel)
            except PenstockError:
                await asyncio.sleep(backoff.next_s())

    @staticmethod
    async def _ask(connection: Connection) -> replay_pb2.GetReplayStatusResponse:
        request = methods.GET_REPLAY_STATUS.request()
        status: replay_pb2.GetReplayStatusResponse = await call_unary(
            connection.channel, methods.GET_REPLAY_STATUS, request, connection.peer, UNARY_TIMEOUT_S
        )
        return status

    def _note(self, service: int, address: str, status: replay_pb2.GetReplayStatusResponse) -> bool:
        """Records the statements of a service at this address about itself. Returns whether its place is new."""
        self._located(service, decode_status_location(status))
        self._places.note_incarnations(service, status.largest_incarnation, time.monotonic())
        place = decode_status_place(status) or Place((address,))
        return self._places.note(service, Place(preferred(place.addresses, address), place.identity))


async def _lost(channel: grpc.aio.Channel) -> None:
    """Waits until a channel is no longer connected."""
    while channel.get_state() == grpc.ChannelConnectivity.READY:
        await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
