"""Prometheus's text format over HTTP/1, with one request per connection.

One thread with an event loop serves all connections, so an idle connection costs a file descriptor but no thread. A
connection is closed when its time is over, or earlier if a newer one needs its place.
"""

import asyncio
import contextlib
import http.client
import io
import itertools
import math
import os
import socket
import threading
import time
from collections import deque
from typing import Literal
from urllib.parse import urlsplit

import prometheus_client
from prometheus_client import REGISTRY, CollectorRegistry

from penstock.errors import ConfigurationError
from penstock.machine.addresses import shown_host

_TIMEOUT_S = 10.0
_MOST_CONNECTIONS = 64
_RECENT_SCRAPES = 4
_LONGEST_INTERVAL_S = 60.0
"""Longest interval at which a scraper counts as regular. Prometheus' default is a minute."""
_HEAD_BYTES = 2**14


class MetricsServer:
    """Server of this process's metrics, in its own thread.

    Attributes:
        port: Port on which it serves; 0 if it does not serve.
        scraped_at: Time (`time.monotonic`) of the last request that was answered; minus infinity without one.
    """

    def __init__(self, host: str, port: int | Literal["auto"], registry: CollectorRegistry = REGISTRY) -> None:
        """Starts to serve a registry on a port of this host, on any free one with "auto", or not at all with 0.

        An IPv6 `host` has no brackets. Raises `ConfigurationError` if the address is not available.
        """
        self.port, self.scraped_at = 0, -math.inf
        self._scrapes: deque[float] = deque(maxlen=_RECENT_SCRAPES)
        self._app = prometheus_client.make_wsgi_app(registry)
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        # Oldest first, without those that are being closed.
        self._connections: dict[asyncio.Task[None], None] = {}
        if port == 0:
            return
        try:
            self._server = self._loop.run_until_complete(self._start(host, 0 if port == "auto" else port))
        except OSError as error:
            self._loop.close()
            # asyncio prefixes the system's message with its own.
            reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
            raise ConfigurationError(
                f"can't serve metrics on {shown_host(host)}:{port}: {reason}; choose another metrics_port, auto for any"
                " free one, or 0 for none"
            ) from None
        self.port = int(self._server.sockets[0].getsockname()[1])
        self._thread = threading.Thread(target=self._loop.run_forever, name="metrics", daemon=True)
        self._thread.start()

    def next_scrape_within_s(self) -> float:
        """Returns the seconds within which a regular scraper asks again; 0 if there is none. Any thread may call."""
        times = list(self._scrapes)
        interval_s = max((later - earlier for earlier, later in itertools.pairwise(times)), default=math.inf)
        # A scraper that has missed its last turn may be gone.
        if interval_s > _LONGEST_INTERVAL_S or time.monotonic() - times[-1] > 2.0 * interval_s:
            return 0.0
        return 2.0 * interval_s

    def close(self) -> None:
        """Stops serving and closes all connections."""
        if self._thread is not None:
            asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._thread = None
        self._loop.close()

    async def _start(self, host: str, port: int) -> asyncio.Server:
        if host == "::":
            # asyncio would serve IPv6 alone, and gRPC serves both here.
            both = socket.create_server(
                (host, port), family=socket.AF_INET6, dualstack_ipv6=socket.has_dualstack_ipv6()
            )
            return await asyncio.start_server(self._serve, sock=both, limit=_HEAD_BYTES)
        return await asyncio.start_server(self._serve, host, port, limit=_HEAD_BYTES)

    async def _stop(self) -> None:
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = None
        if len(self._connections) > _MOST_CONNECTIONS:
            # It leaves the list now, because more connections may arrive before it has ended.
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest.cancel()
        # Makes `drain` wait until the kernel has all bytes.
        writer.transport.set_write_buffer_limits(0)
        try:
            # A task that ends as cancelled lets asyncio of Python 3.11 log a traceback.
            ended = (asyncio.CancelledError, TimeoutError, OSError, EOFError, ValueError, http.client.HTTPException)
            with contextlib.suppress(*ended):
                async with asyncio.timeout(_TIMEOUT_S):
                    head, asked_at = await _read_head(reader), time.monotonic()
                    writer.write(self._answer(head))
                    await writer.drain()
                    self._scrapes.append(asked_at)
                    self.scraped_at = asked_at
                    writer.close()
        finally:
            self._connections.pop(task, None)
            writer.transport.abort()

    def _answer(self, head: bytes) -> bytes:
        """Returns the whole answer to a request. Raises `ValueError` or `HTTPException` for a malformed request."""
        request, _, fields = head.partition(b"\r\n")
        method, target, _ = request.decode("latin-1").split(" ")
        headers, url = http.client.parse_headers(io.BytesIO(fields)), urlsplit(target)
        answer: list[str] = []

        def begin(status: str, given: list[tuple[str, str]]) -> None:
            answer.extend([f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in given)])

        body = b"".join(
            self._app(
                {
                    "REQUEST_METHOD": method,
                    "PATH_INFO": url.path,
                    "QUERY_STRING": url.query,
                    "HTTP_ACCEPT": headers.get("Accept", ""),
                    "HTTP_ACCEPT_ENCODING": headers.get("Accept-Encoding", ""),
                },
                begin,
            )
        )
        answer += [f"Content-Length: {len(body)}", "Connection: close", "", ""]
        return "\r\n".join(answer).encode("latin-1") + body


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    """Returns the request's line and headers. Raises `ValueError` if they are too long."""
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise ValueError(str(error)) from None
