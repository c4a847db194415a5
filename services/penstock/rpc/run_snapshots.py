"""Snapshots of a run over gRPC. The learner serves them, a command asks for them.

A snapshot that was begun goes on when the command leaves.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from penstock.errors import Unavailable
from penstock.learning.run_snapshots import RunSnapshots
from penstock.rpc import methods
from penstock.rpc.channel import connect, open_responses, translated
from penstock.rpc.loop import LoopThread
from penstock.rpc.service import Context, Method, write_whole
from penstock.types import RunSnapshot, SnapshotProgress
from penstock.v1 import run_pb2
from penstock.wire import snapshots as wire

_PROGRESS_S = 0.1
_SILENCE_S = 10.0
"""The learner tells how far it is several times a second."""


class RunSnapshotServicer:
    """Serves the snapshots of a run. On the server's event loop."""

    def __init__(self, snapshots: RunSnapshots) -> None:
        self._snapshots = snapshots

    @property
    def behaviours(self) -> dict[Method, Callable[..., Awaitable[Any]]]:
        """Its methods, for a server of the learner."""
        return {methods.TAKE_RUN_SNAPSHOT: self._take}

    async def _take(self, request: run_pb2.TakeRunSnapshotRequest, context: Context) -> None:
        asked = self._snapshots.request(request.name)
        while not asked.outcome.done():
            progress = wire.encode_progress(asked.progress)
            await write_whole(context, run_pb2.TakeRunSnapshotResponse(progress=progress))
            await asyncio.sleep(_PROGRESS_S)
        snapshot = wire.encode_run_snapshot(asked.outcome.result())
        await write_whole(context, run_pb2.TakeRunSnapshotResponse(snapshot=snapshot))


class RunSnapshotClient:
    """Asks a learner for snapshots of its run. Used by commands, from their main thread."""

    def __init__(self, thread: LoopThread, address: str) -> None:
        self._thread, self._peer = thread, f"the learner at {address}"
        self._channel = thread.run(self._connect(address))

    @staticmethod
    async def _connect(address: str) -> grpc.aio.Channel:
        return connect(address)

    def take(self, name: str = "", show: Callable[[SnapshotProgress], None] = lambda progress: None) -> RunSnapshot:
        """Has a snapshot taken, and waits for it.

        Args:
            name: Its name; empty: the time, in UTC, and the version.
            show: Called on the loop's thread with how far it is.

        Raises:
            PenstockError: What the learner raised, or `Unavailable` if it does not answer.
        """
        return self._thread.run(self._take(name, show))

    def close(self) -> None:
        """Closes the channel; a snapshot that is on its way goes on."""
        self._thread.run(self._channel.close())

    async def _take(self, name: str, show: Callable[[SnapshotProgress], None]) -> RunSnapshot:
        async with translated(self._peer):
            request = run_pb2.TakeRunSnapshotRequest(name=name)
            responses = open_responses(self._channel, methods.TAKE_RUN_SNAPSHOT, request)
            while True:
                try:
                    async with asyncio.timeout(_SILENCE_S):
                        response = await anext(responses)
                except TimeoutError:
                    raise Unavailable(f"{self._peer} said nothing for {_SILENCE_S:.0f} s") from None
                if response.HasField("snapshot"):
                    return wire.decode_run_snapshot(response.snapshot)
                show(wire.decode_progress(response.progress))
