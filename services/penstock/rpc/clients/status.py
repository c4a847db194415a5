"""Client for the status of a run."""

from penstock.rpc import methods
from penstock.rpc.clients.connection import Connection, Peer
from penstock.rpc.loop import LoopThread
from penstock.types.status import RunStatus
from penstock.wire import run as wire


class StatusClient:
    """Client that requests the status of a run from its learner."""

    def __init__(self, thread: LoopThread, peer: Peer) -> None:
        self._connection = Connection(thread, "learner", peer)

    def get(self, timeout_s: float) -> RunStatus:
        """Returns the current status. Raises `Unavailable` if the learner does not answer within `timeout_s`."""
        return wire.decode_status(self._connection.call(methods.GET_RUN_STATUS, timeout_s))

    def close(self) -> None:
        """Closes the channel."""
        self._connection.close()
