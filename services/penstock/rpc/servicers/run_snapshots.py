"""Snapshots of a run over gRPC, served by the learner. One that has begun continues when its client disconnects."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from penstock.learning.run_snapshots import RunSnapshots
from penstock.rpc import methods
from penstock.rpc.service import Context, Method, write_whole
from penstock.v1 import run_pb2
from penstock.wire import snapshots as wire

_PROGRESS_S = 0.1


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
