"""Snapshots of a store over gRPC, served by the replay service. Decodes, calls `replay.snapshots.taking` and encodes.

A snapshot is abandoned when its stream ends, because the learner or another store of the run has then failed. Runs on
the server's event loop, and reads folders in a thread.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from penstock.errors import PenstockError, Unavailable
from penstock.replay.snapshots.taking import Snapshots
from penstock.replay.snapshots.work import RunningSnapshot
from penstock.rpc import methods
from penstock.rpc.errors import logged_refusal
from penstock.rpc.proofs import prover_of
from penstock.rpc.service import Context, Method, opening_message, write_whole
from penstock.v1 import replay_pb2
from penstock.wire import snapshots as wire

_PROGRESS_S = 0.1
_FROZEN_CHECK_S = 0.002
"""Seconds between checks whether the store is frozen. The learner's training waits for it."""


class SnapshotServicer:
    """Servicer of one store's snapshots."""

    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots

    @property
    def behaviours(self) -> dict[Method, Callable[..., Awaitable[Any]]]:
        """Methods for the replay service's server."""
        return {methods.TAKE_SNAPSHOT: self._take, methods.LIST_SNAPSHOTS: self._list}

    async def _take(self, requests: AsyncIterator[replay_pb2.TakeSnapshotRequest], context: Context) -> None:
        opening = await opening_message(requests)
        with logged_refusal("learner", peer=context.peer()):
            prover = prover_of(methods.TAKE_SNAPSHOT, context.challenge, opening)
            running = self._snapshots.begin(wire.decode_opening(opening), prover)
        receiving = asyncio.create_task(_receive_policy(requests, running))
        try:
            while not running.frozen.is_set() and not running.outcome.done():
                await asyncio.sleep(_FROZEN_CHECK_S)
            while not running.outcome.done():
                await write_whole(context, wire.encode_taking(running.progress))
                await asyncio.sleep(_PROGRESS_S)
            await write_whole(context, wire.encode_taking(running.outcome.result()))
        finally:
            running.given_up.set()
            receiving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await receiving

    async def _list(
        self, request: replay_pb2.ListSnapshotsRequest, context: Context
    ) -> replay_pb2.ListSnapshotsResponse:
        return wire.encode_list(await asyncio.to_thread(self._snapshots.complete))


async def _receive_policy(requests: AsyncIterator[replay_pb2.TakeSnapshotRequest], running: RunningSnapshot) -> None:
    """Passes the complete policy to the snapshot, or the error that prevents it."""
    reason: PenstockError = Unavailable("the learner disconnected before it had sent the policy")
    assembler = wire.PolicyAssembler()
    try:
        async for request in requests:
            if (policy := assembler.add(request)) is not None:
                running.policy.set_result(policy)
                return
    except PenstockError as error:
        reason = error
    finally:
        if not running.policy.done():
            running.policy.set_exception(reason)
