"""Clients of the learner for operators: the status of a run, its variants, and snapshots of a run."""

from collections.abc import Callable

from penstock.rpc import methods
from penstock.rpc.clients.connection import Connection, Peer
from penstock.rpc.clients.snapshots import SILENCE_S
from penstock.rpc.loop import LoopThread
from penstock.types.snapshots import RunSnapshot, SnapshotProgress
from penstock.types.status import RunStatus
from penstock.types.variants import RunVariant, VariantChange
from penstock.wire.run import decode_status
from penstock.wire.snapshots import decode_run_taking
from penstock.wire.variants import decode_known, encode_change


class StatusClient:
    """Client that requests the status of a run from its learner."""

    def __init__(self, thread: LoopThread, peer: Peer) -> None:
        self._connection = Connection(thread, "learner", peer)

    def get(self, timeout_s: float) -> RunStatus:
        """Returns the current status. Raises `Unavailable` if the learner does not answer within `timeout_s`."""
        return decode_status(self._connection.call(methods.GET_RUN_STATUS, timeout_s))

    def close(self) -> None:
        """Closes the channel."""
        self._connection.close()


class VariantClient:
    """Client that changes the variants of a run at its learner. Commands use it from their main thread.

    It needs the run's key, unless it has a certificate.
    """

    def __init__(self, thread: LoopThread, peer: Peer, key: bytes = b"") -> None:
        self._connection, self._key = Connection(thread, "learner", peer), key

    def change(self, change: VariantChange, timeout_s: float) -> list[RunVariant]:
        """Requests a change, and returns all variants that the run has had, with the added ones at the end.

        Raises the learner's error, or `Unavailable` if it does not answer within `timeout_s`.
        """
        return self._connection.thread.run(self._change(change, timeout_s))

    def close(self) -> None:
        """Closes the channel."""
        self._connection.close()

    async def _change(self, change: VariantChange, timeout_s: float) -> list[RunVariant]:
        connection = self._connection
        opened = connection.streaming(methods.CHANGE_VARIANTS, self._key)
        async with opened as call, connection.answered_within(timeout_s):
            await call.write(encode_change(change))
            await call.done_writing()
            return decode_known(await anext(aiter(call)))


class RunSnapshotClient:
    """Client that requests snapshots of a run from its learner. Commands use it from their main thread.

    It needs the run's key, unless it has a certificate.
    """

    def __init__(self, thread: LoopThread, peer: Peer, key: bytes = b"") -> None:
        self._connection, self._key = Connection(thread, "learner", peer), key

    def take(self, name: str = "", show: Callable[[SnapshotProgress], None] = lambda progress: None) -> RunSnapshot:
        """Requests a snapshot and returns the complete one. Without a name, it is named after UTC time and version.

        Calls `show` with its progress, on the loop. Raises the learner's error, or `Unavailable` if it does not answer.
        """
        return self._connection.thread.run(self._take(name, show))

    def close(self) -> None:
        """Closes the channel. A snapshot in progress continues."""
        self._connection.close()

    async def _take(self, name: str, show: Callable[[SnapshotProgress], None]) -> RunSnapshot:
        connection = self._connection
        async with connection.streaming(methods.TAKE_RUN_SNAPSHOT, self._key) as call:
            async with connection.answered_within(SILENCE_S):
                await call.write(methods.TAKE_RUN_SNAPSHOT.request(name=name))
                await call.done_writing()
            responses = aiter(call)
            while True:
                async with connection.answered_within(SILENCE_S):
                    state = decode_run_taking(await anext(responses))
                if isinstance(state, RunSnapshot):
                    return state
                show(state)
