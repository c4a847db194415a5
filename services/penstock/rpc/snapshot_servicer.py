"""Snapshots over gRPC: decodes, calls `replay.snapshots`, encodes. One that was begun goes on without its client.

On the server's event loop; folders are read in a thread.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from penstock.replay.snapshots import Snapshots
from penstock.rpc import methods
from penstock.rpc.service import Context, Method, write_whole
from penstock.v1 import replay_pb2
from penstock.wire import snapshots as wire

_PROGRESS_S = 0.1


class SnapshotServicer:
    """Serves the snapshots of one store."""

    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots

    @property
    def behaviours(self) -> dict[Method, Callable[..., Awaitable[Any]]]:
        """Its methods, for a server of the replay service."""
        return {methods.TAKE_SNAPSHOT: self._take, methods.LIST_SNAPSHOTS: self._list}

    async def _take(self, request: replay_pb2.TakeSnapshotRequest, context: Context) -> None:
        running = self._snapshots.begin(request.name)
        while not running.outcome.done():
            await write_whole(context, wire.encode_progress(running.progress))
            await asyncio.sleep(_PROGRESS_S)
        snapshot = wire.encode_snapshot(running.outcome.result())
        await write_whole(context, replay_pb2.TakeSnapshotResponse(snapshot=snapshot))

    async def _list(
        self, request: replay_pb2.ListSnapshotsRequest, context: Context
    ) -> replay_pb2.ListSnapshotsResponse:
        complete = await asyncio.to_thread(self._snapshots.complete)
        return replay_pb2.ListSnapshotsResponse(snapshots=[wire.encode_snapshot(each) for each in complete])
