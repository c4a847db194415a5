"""Snapshots of a run over gRPC. The learner serves them, and commands request them.

A snapshot that has begun continues when the command disconnects.
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
            progress = wire.encode_progress(asked.progress)
            await write_whole(context, run_pb2.TakeRunSnapshotResponse(progress=progress))
            await asyncio.sleep(_PROGRESS_S)
        snapshot = wire.encode_run_snapshot(asked.outcome.result())
        await write_whole(context, run_pb2.TakeRunSnapshotResponse(snapshot=snapshot))


class RunSnapshotClient:
    """Client that requests snapshots of a run from its learner. Commands use it from their main thread."""

    def __init__(self, thread: LoopThread, address: str) -> None:
        self._thread, self._peer = thread, f"the learner at {address}"
        self._channel = thread.run(self._connect(address))

    @staticmethod
    async def _connect(address: str) -> grpc.aio.Channel:
        return connect(address)

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
