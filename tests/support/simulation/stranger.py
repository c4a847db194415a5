"""Calls of a stranger to the replay service of a run: none may be answered, or have an effect."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random

import numpy as np

from penstock.errors import PenstockError
from penstock.replay.buffer import ReplayBuffer
from penstock.rpc import methods
from penstock.rpc.channel import call_unary, connect, open_stream, translated
from penstock.types.block import Schema
from penstock.types.replay import SamplingPlan
from penstock.types.run import Assignment
from penstock.wire import batches, windows

_KEY = bytes(range(32))
_SESSION = 5


class Stranger:
    """A client that knows all about a run but its key and the tokens of its actors."""

    def __init__(self, address: str, plan: SamplingPlan, schema: Schema, buffer: ReplayBuffer, random: Random) -> None:
        self._plan, self._schema, self._buffer, self._random = plan, schema, buffer, random
        self._channel = connect(address, service="replay")

    async def call(self) -> str:
        """Makes one call. Returns its name if it is answered, and "" if it is refused or the connection ends."""
        if not self._buffer.store.owner.run:
            # Until a learner comes, a store is nobody's.
            return ""
        calls: tuple[tuple[str, Callable[[], Awaitable[None]]], ...] = (
            ("plan", self._open_plan),
            ("commit", self._commit),
            ("end of the run", self._finish),
            ("opening", self._open_append),
        )
        name, call = calls[int(self._random.random() * len(calls))]
        try:
            async with translated("the replay service"):
                await call()
        except PenstockError:
            return ""
        finally:
            await self._channel.close()
        return name

    async def _open_plan(self) -> None:
        record = self._buffer.store.session
        ahead = self._random.choice((0, 1, 50))
        owner = self._buffer.store.owner
        plan = replace(self._plan, session=_SESSION, next_batch=record.version + ahead, run=owner.run)
        # Any key may begin a store that has no folder, after its service has restarted.
        key = b"" if self._buffer.store.folder is None else self._random.choice((b"", _KEY))
        call = open_stream(self._channel, methods.SAMPLE_BATCHES, key=key, wait_for_ready=False)
        await call.write(batches.encode_plan_request(plan))
        await anext(call.__aiter__())

    async def _commit(self) -> None:
        record = self._buffer.store.session
        keys = self._buffer.store.headers["key"]
        keys = keys[keys != 0]
        request = batches.encode_commit(record.session, record.next_batch, keys, np.full(keys.size, 1e6))
        await call_unary(self._channel, methods.COMMIT_BATCH, request, "the replay service")

    async def _finish(self) -> None:
        request = methods.FINISH_RUN.request(session=self._buffer.session)
        await call_unary(self._channel, methods.FINISH_RUN, request, "the replay service")

    async def _open_append(self) -> None:
        place = Assignment(
            slot=self._random.choice((0, 1, 7)),
            incarnation=self._random.choice((1, 2, 9)),
            environments=tuple(range(self._plan.fresh_segments)),
            token=b"",
            seed=0,
            run=self._buffer.store.owner.run,
            replay_token=bytes(16),
        )
        call = open_stream(self._channel, methods.APPEND_SEGMENTS, wait_for_ready=False)
        await call.write(windows.encode_open_append(self._schema, place))
        await anext(call.__aiter__())
