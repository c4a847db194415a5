"""A relay between clients and a server on this host, which delays bytes, and forgets idle connections without a word.

Clients call another port than the server's, so their streams stay with gRPC. A relay needs neither root nor a network
namespace, unlike `tests.support.services.link`, but it ends both connections itself, so that no packet of either is
ever lost.
"""

import asyncio
import contextlib
import math
import time

from penstock.rpc.loop import LoopThread

_CHUNK_BYTES = 2**16


class Relay:
    """Relay to one server, with a thread of its own.

    Attributes:
        address: host:port that clients call.
        delay_s: Seconds that bytes take in each direction; may be changed at any time.
        forgets_after_s: Seconds without bytes in either direction after which the later bytes of a connection are lost.
        forgotten: Connections that have lost bytes.
    """

    def __init__(self, target: str, *, delay_s: float = 0.0, forgets_after_s: float = math.inf) -> None:
        """Listens on a free port for connections to the server at `target`, host:port."""
        self._thread, self._target = LoopThread(), target
        self.delay_s, self.forgets_after_s, self.forgotten = delay_s, forgets_after_s, 0
        self._server = self._thread.run(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        """Ends all connections."""
        self._thread.call(self._server.close)
        self._thread.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._target.rpartition(":")
        # The end of this task is the end of the connection, also if it is cancelled.
        with contextlib.suppress(OSError, asyncio.CancelledError):
            from_server, to_server = await asyncio.open_connection(host, int(port))
            connection = _Connection(self)
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(connection.carry(reader, to_server))
                    tasks.create_task(connection.carry(from_server, writer))
            finally:
                to_server.close()
        writer.close()


class _Connection:
    def __init__(self, relay: Relay) -> None:
        self._relay, self._active_at, self._forgotten = relay, time.monotonic(), False

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carries bytes in one direction, and then their end."""
        travelling: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            data = b"not empty"
            while data:
                due, data = await travelling.get()
                await asyncio.sleep(due - time.monotonic())
                writer.write(data)
                await writer.drain()
            writer.close()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(deliver())
            data = b"not empty"
            while data:
                data = await reader.read(_CHUNK_BYTES)
                if not self._loses():
                    travelling.put_nowait((time.monotonic() + self._relay.delay_s, data))

    def _loses(self) -> bool:
        now = time.monotonic()
        if not self._forgotten and now - self._active_at > self._relay.forgets_after_s:
            self._forgotten = True
            self._relay.forgotten += 1
        self._active_at = now
        return self._forgotten
