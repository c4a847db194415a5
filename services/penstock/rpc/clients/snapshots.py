"""Clients for snapshots of stores. The learner requests a snapshot from all stores of its run at once."""

import asyncio
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from penstock.errors import Unavailable
from penstock.rpc import methods
from penstock.rpc.channel import Stream
from penstock.rpc.clients.connection import Connection, Peer
from penstock.rpc.loop import LoopThread
from penstock.rpc.service import unwrap
from penstock.types.records import total
from penstock.types.run import Weights
from penstock.types.snapshots import Snapshot, SnapshotProgress, SnapshotRequest
from penstock.wire import snapshots as wire

SILENCE_S = 10.0
"""Seconds without a message after which a call fails. Services report progress several times per second."""

_FROZEN_TIMEOUT_S = 8.0
"""Seconds to freeze a store. The service waits up to 5 s for the last commit and freezes at memory speed."""

_POLICY_TIMEOUT_S = 60.0


class SnapshotClient:
    """Client for the snapshots of one replay service. Those of a run's store need the run's key."""

    def __init__(self, thread: LoopThread, peer: Peer, key: bytes = b"") -> None:
        self._connection, self._key = Connection(thread, "replay", peer), key

    def complete(self) -> list[Snapshot]:
        """Lists complete snapshots, oldest first. Raises the service's error, or `Unavailable` without an answer."""
        return wire.decode_list(self._connection.call(methods.LIST_SNAPSHOTS))

    def close(self) -> None:
        """Closes the channel. The service abandons a snapshot in progress."""
        self._connection.close()

    async def take(
        self,
        request: SnapshotRequest,
        policy: Weights,
        *,
        frozen: Callable[[], None] = lambda: None,
        show: Callable[[SnapshotProgress], None] = lambda progress: None,
    ) -> Snapshot:
        """Requests a snapshot with a policy of the request's version, and returns the complete one. Runs on the loop.

        Calls `frozen` once when later changes of the store no longer affect the snapshot, and `show` with its progress.
        Raises the service's error, or `Unavailable` if it does not answer.
        """
        connection = self._connection
        async with connection.streaming(methods.TAKE_SNAPSHOT, self._key) as call:
            opening, *chunks = wire.encode_requests(request, policy)
            async with connection.answered_within(_FROZEN_TIMEOUT_S):
                await call.write(opening)
                state = await self._read(call)
            frozen()
            # Sent only now, because a refused call would end during these writes and hide the service's error.
            async with connection.answered_within(_POLICY_TIMEOUT_S):
                for chunk in chunks:
                    await call.write(chunk)
                await call.done_writing()
            while isinstance(state, SnapshotProgress):
                show(state)
                async with connection.answered_within(SILENCE_S):
                    state = await self._read(call)
            return state

    async def _read(self, call: Stream) -> SnapshotProgress | Snapshot:
        response = await anext(aiter(call), None)
        if response is None:
            raise Unavailable(f"{self._connection.peer} ended the call without a snapshot")
        return wire.decode_taking(response)


class StoreSnapshots:
    """Client that takes one snapshot of all stores of a run; implements `learning.protocols.SnapshotDesk`."""

    def __init__(self, thread: LoopThread, peers: Sequence[Peer], key: bytes = b"") -> None:
        self._thread = thread
        self._clients = [SnapshotClient(thread, peer, key) for peer in peers]

    def begin(
        self, request: SnapshotRequest, policy: Weights, show: Callable[[SnapshotProgress], None]
    ) -> "Future[list[Snapshot]]":
        """Begins a snapshot, as `SnapshotDesk.begin` specifies. Must not be called on the loop."""
        frozen: Future[None] = Future()
        outcome = asyncio.run_coroutine_threadsafe(self._take(request, policy, frozen, show), self._thread.loop)
        # A failure before all stores are frozen ends this wait too. Each wait in the task has a deadline.
        outcome.add_done_callback(lambda done: None if frozen.done() else frozen.set_result(None))
        frozen.result()
        if outcome.done():
            outcome.result()
        return outcome

    def close(self) -> None:
        """Closes the channels. The services abandon a snapshot in progress."""
        for client in self._clients:
            client.close()

    async def _take(
        self,
        request: SnapshotRequest,
        policy: Weights,
        frozen: "Future[None]",
        show: Callable[[SnapshotProgress], None],
    ) -> list[Snapshot]:
        missing, progress = len(self._clients), [SnapshotProgress()] * len(self._clients)

        def note_frozen() -> None:
            nonlocal missing
            missing -= 1
            if missing == 0:
                frozen.set_result(None)

        def note_progress(store: int, of_store: SnapshotProgress) -> None:
            progress[store] = of_store
            show(total(progress))

        try:
            # A failure cancels the others, because a snapshot of only some stores would be useless.
            async with asyncio.TaskGroup() as group:
                takings = [
                    group.create_task(
                        client.take(request, policy, frozen=note_frozen, show=functools.partial(note_progress, store))
                    )
                    for store, client in enumerate(self._clients)
                ]
        except BaseExceptionGroup as errors:
            raise unwrap(errors) from None
        return [taking.result() for taking in takings]
