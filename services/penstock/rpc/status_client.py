"""Client for the status of a run."""

import grpc

from penstock.rpc import methods
from penstock.rpc.channel import call_unary, connect
from penstock.rpc.loop import LoopThread
from penstock.types import RunStatus
from penstock.v1 import run_pb2
from penstock.wire import run as wire


class StatusClient:
    """Client that requests the status of a run from its learner."""

    def __init__(self, thread: LoopThread, address: str) -> None:
        self._thread, self._peer = thread, f"the learner at {address}"
        self._channel = thread.run(self._connect(address))

    @staticmethod
    async def _connect(address: str) -> grpc.aio.Channel:
        return connect(address)

    def get(self, timeout_s: float) -> RunStatus:
        """Returns the current status. Raises `Unavailable` if the learner does not answer within `timeout_s`."""
        request = run_pb2.GetRunStatusRequest()
        message = self._thread.run(call_unary(self._channel, methods.GET_RUN_STATUS, request, self._peer, timeout_s))
        return wire.decode_status(message)

    def close(self) -> None:
        """Closes the channel."""
        self._thread.run(self._channel.close())
