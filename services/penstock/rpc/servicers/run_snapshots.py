"""Snapshots of a run over gRPC, served by the learner. One that has begun continues when its client disconnects.

A client without a certificate must prove the run's key, because a snapshot takes room on the disk.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from penstock.learning.run.run_snapshots import RunSnapshots
from penstock.rpc import methods
from penstock.rpc.errors import logged_refusal
from penstock.rpc.proofs import require_operator
from penstock.rpc.service import Context, Method, opening_message, write_whole
from penstock.v1 import run_pb2
from penstock.wire import snapshots as wire

_PROGRESS_S = 0.1


class RunSnapshotServicer:
    """Servicer of a run's snapshots. Runs on the server's event loop."""

    def __init__(self, snapshots: RunSnapshots, prover: bytes = b"") -> None:
        """Creates the servicer. Its clients must prove the run's key.

        `prover` is the public half of that key; empty: the clients have certificates instead.
        """
        self._snapshots, self._prover = snapshots, prover

    @property
    def behaviours(self) -> dict[Method, Callable[..., Awaitable[Any]]]:
        """Methods for the learner's server."""
        return {methods.TAKE_RUN_SNAPSHOT: self._take}

    async def _take(self, requests: AsyncIterator[run_pb2.TakeRunSnapshotRequest], context: Context) -> None:
        request = await opening_message(requests)
        with logged_refusal("operator", peer=context.peer()):
            require_operator(self._prover, methods.TAKE_RUN_SNAPSHOT, context.challenge, request, "--run-dir")
        asked = self._snapshots.request(request.name)
        while not asked.outcome.done():
            await write_whole(context, wire.encode_run_taking(asked.progress))
            await asyncio.sleep(_PROGRESS_S)
        await write_whole(context, wire.encode_run_taking(asked.outcome.result()))
