"""Snapshots of a run over gRPC. The learner serves them, and commands request them.

A snapshot that has begun continues when the command disconnects.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from penstock.errors import Unavailable
from penstock.learning.run_snapshots import RunSnapshots
from penstock.rpc import methods
from penstock.rpc.channel import open_responses, translated
from penstock.rpc.clients.connection import Connection
from penstock.rpc.loop import LoopThread
from penstock.rpc.service import Context, Method, write_whole
from penstock.types.snapshots import RunSnapshot, SnapshotProgress
from penstock.v1 import run_pb2
from penstock.wire import snapshots as wire

_PROGRESS_S = 0.1
_SILENCE_S = 10.0
"""Seconds without a message after which the call fails. The learner reports progress several times per second."""


class RunSnapshotServicer:
    """Servicer of a run's snapshots. Runs on the server's event loop."""

    def __init__(self, snapshots: RunSnapshots) -> None:
        self._snapshots = snapshots

    @property
    def behaviours(self) -> dict[Method, Callable[..., Awaitable[Any]]]:
        """Methods for the learner's server."""
        return {methods.TAKE_RUN_SNAPSHOT: self._take}

    async def _take(self, request: run_pb2.TakeRunSnapshotRequest, context: Context) -> None:
        asked = self._snapshots.request(request.name)
        while not asked.outcome.done():
            await write_whole(context, wire.encode_run_taking(asked.progress))
            await asyncio.sleep(_PROGRESS_S)
        await write_whole(context, wire.encode_run_taking(asked.outcome.result()))


class RunSnapshotClient:
    """Client that requests snapshots of a run from its learner. Commands use it from their main thread."""

    def __init__(self, thread: LoopThread, address: str) -> None:
        self._thread, self._connection = thread, Connection(thread, "learner", address)

    def take(self, name: str = "", show: Callable[[SnapshotProgress], None] = lambda progress: None) -> RunSnapshot:
        """Requests a snapshot and waits until it is complete.

        Args:
            name: Name of the snapshot; if empty, it is named after the UTC time and the version.
            show: Callback for its progress. Called on the loop.

        Raises:
            PenstockError: The learner's error, or `Unavailable` if it does not answer.
        """
        return self._thread.run(self._take(name, show))

    def close(self) -> None:
        """Closes the channel. A snapshot in progress continues."""
        self._connection.close()

    async def _take(self, name: str, show: Callable[[SnapshotProgress], None]) -> RunSnapshot:
        peer = self._connection.peer
        async with translated(peer):
            responses = open_responses(self._connection.channel, methods.TAKE_RUN_SNAPSHOT, name=name)
            while True:
                try:
                    async with asyncio.timeout(_SILENCE_S):
                        state = wire.decode_run_taking(await anext(responses))
                except TimeoutError:
                    raise Unavailable(f"{peer} sent nothing for {_SILENCE_S:.0f} s") from None
                if isinstance(state, RunSnapshot):
                    return state
                show(state)
