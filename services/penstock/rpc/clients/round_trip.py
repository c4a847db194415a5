"""The measured round trip to a peer, from which clients derive how far ahead they ask for work.

The measure is the shortest of the latest calls of gRPC's health service on the client's channel. The shortest one is
the least delayed by load of either host and by data that queues on the link, which asking ahead would increase.
"""

import asyncio
import time
from collections import deque

from penstock.errors import PenstockError
from penstock.rpc import methods
from penstock.rpc.channel import Stream, call_unary
from penstock.rpc.clients.connection import Connection
from penstock.telemetry import metrics

_KEPT = 6
_INTERVAL_S = 10.0
"""Seconds between calls. A longer route is noticed after a minute, when the shorter calls are forgotten."""


class RoundTrip:
    """Round trip of one connection. `watch` runs on the loop; any thread may read `seconds`.

    Attributes:
        seconds: The round trip; 0 before the first calls are answered, and for peers on the same host.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection, self._metric = connection, metrics.ROUND_TRIP.labels(connection.service)
        self.seconds = 0.0

    async def watch(self, stream: Stream) -> None:
        """Measures until it is cancelled: several times at first, then every ten seconds.

        Does not measure if `stream`, on the same channel, has moved to a socket of this host.
        """
        self._set(0.0)
        if await stream.is_local():
            return
        measured: deque[float] = deque(maxlen=_KEPT)
        while True:
            started = time.monotonic()
            try:
                await call_unary(
                    self._connection.channel,
                    methods.CHECK_HEALTH,
                    methods.CHECK_HEALTH.request(),
                    self._connection.peer,
                )
            except PenstockError:
                # The stream on the same channel reports the fault.
                await asyncio.sleep(_INTERVAL_S)
                continue
            measured.append(time.monotonic() - started)
            if len(measured) == _KEPT:
                self._set(min(measured))
                await asyncio.sleep(_INTERVAL_S)

    def _set(self, seconds: float) -> None:
        self.seconds = seconds
        self._metric.set(seconds)
