"""gRPC server with the standard health service, on one address."""

import asyncio
import contextlib
import resource
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import grpc

from penstock.errors import ConfigurationError
from penstock.machine.addresses import LOOPBACK, Address, target
from penstock.rpc.direct_offers import DirectListener, Offer
from penstock.rpc.direct_socket import MAX_MESSAGE_BYTES
from penstock.rpc.health import STORAGE
from penstock.rpc.health_service import MOST_BYTES, MOST_WATCHES, HealthService
from penstock.rpc.permissions import REQUEST_BYTES, Callers
from penstock.rpc.ready_file import ReadyFile
from penstock.rpc.service import Capacity, Context, Handler, Method, Reception, handler
from penstock.rpc.tls import server_credentials

if TYPE_CHECKING:
    from penstock.security.credentials import Credentials

KEEPALIVE = (
    ("grpc.keepalive_time_ms", 5_000),
    # The first timeout covers bytes that TCP does not acknowledge, because the link is cut or the host is dead. The
    # second covers a process that hangs while its kernel answers. A ping queues behind megabytes of windows and
    # weights, which take seconds on a slow link, so a shorter timeout would repeatedly end working connections.
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
"""Options by which both sides of a connection give up a peer within 15 s after it stops answering."""

_DRAIN_S = 0.5
"""Seconds that open calls have to end. Only unary calls need them, because streams reopen later or elsewhere."""

_SPARE_CALLS = 256
"""Additional concurrent calls: those being refused, health checks, and unary calls whose message is in transit."""

_MOST_CONNECTIONS = 8_192
_PORT_REFUSED = "the port is in use or the host is not this machine's"
_UNIX_REFUSED = "another service uses it, or its folder does not exist or is not writable"

_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Otherwise two servers on one port would share its connections. The second must fail instead.
    ("grpc.so_reuseport", 0),
    *KEEPALIVE,
    ("grpc.http2.min_ping_interval_without_data_ms", 2_500),
    # Bounds on connections that don't speak HTTP/2 or have no call. Each holds a file descriptor, and as many as are
    # allowed keep new clients out meanwhile. Penstock's clients give up an attempt to connect after 2 s themselves.
    ("grpc.server_handshake_timeout_ms", 3_000),
    ("grpc.max_connection_idle_ms", 5_000),
)


class Server:
    """Server of some of the contract's methods. All calls must run on the event loop that created it.

    Attributes:
        address: Address at which it listens, once it is started, with its actual port.
        health_address: The same of the server of health checks alone, if there is one.
    """

    def __init__(
        self,
        behaviours: Mapping[Method, Callable[..., Awaitable[Any]]],
        *,
        max_streams: int,
        direct: bool = False,
        identity: Callable[[], int] = lambda: 0,
        credentials: "Credentials | None" = None,
    ) -> None:
        """Creates the server of these methods, each with its coroutine function, without starting it.

        Concurrent calls above `max_streams`, apart from health checks, get RESOURCE_EXHAUSTED. If `direct` is true,
        streams may move to a direct socket. Calls for a service with another `identity` get
        UNAVAILABLE; 0: the service has none. With `credentials`, clients connect by TLS and must have a certificate of
        the same run, whose role must allow the call.
        """
        self._credentials = credentials
        self._direct = DirectListener(credentials) if direct else None
        # The other half of the file descriptors is for files.
        connections = min(_MOST_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        calls = max_streams + MOST_WATCHES + _SPARE_CALLS
        self._server = grpc.aio.server(
            options=(
                *_OPTIONS,
                ("grpc.max_allowed_incoming_connections", connections),
                # gRPC cancels some of the calls above 1,000 that arrive at once, without a reason.
                ("grpc.server.max_pending_requests", calls),
                ("grpc.server.max_pending_requests_hard_limit", 2 * calls),
            ),
            maximum_concurrent_rpcs=calls,
        )
        self._health = HealthService()
        reception = Reception()
        self._server.add_generic_rpc_handlers((self._health.handlers(reception),))
        capacity, callers = Capacity(max_streams), Callers(credentials)
        services: dict[str, dict[str, Handler]] = {}
        for method, behaviour in behaviours.items():
            services.setdefault(method.service, {})[method.name] = handler(
                method,
                behaviour,
                capacity=capacity,
                reception=reception,
                most_bytes=REQUEST_BYTES.get(method, MAX_MESSAGE_BYTES),
                offered=self._offered,
                identity=identity,
                admit=callers.admit,
            )
        for service, handlers in services.items():
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        self._services = list(services)
        self._ready: ReadyFile | None = None
        self._probed: grpc.aio.Server | None = None
        self.address = self.health_address = Address(LOOPBACK)

    async def start(
        self,
        listen: str,
        ready_file: str | None = None,
        health_listen: str | None = None,
        stream_port: int | Literal["auto"] = "auto",
    ) -> None:
        """Starts to serve at an address and reports so, also in `ready_file`, which is touched until `stop`.

        At `health_listen`, if given, it serves the health service alone, without TLS. Streams of other hosts may move
        to a direct socket at `stream_port`; 0: they may not.

        Raises `ConfigurationError` if an address is not available or the file can't be written.
        """
        self.address = self._listen(self._server, listen, "listen", self._credentials)
        if self._direct is not None and stream_port != 0:
            self._direct.listen(self.address, None if stream_port == "auto" else stream_port)
        if health_listen is not None:
            self._probed = _health_server(self._health)
            self.health_address = self._listen(self._probed, health_listen, "health_listen", None)
            await self._probed.start()
        await self._server.start()
        await self._report_health(serving=True)
        self._ready = ReadyFile(Path(ready_file)) if ready_file else None

    @staticmethod
    def _listen(server: grpc.aio.Server, listen: str, setting: str, credentials: "Credentials | None") -> Address:
        """Adds the port of a server, and returns its address. Raises `ConfigurationError` if it is not available."""
        wanted = Address.parse(listen)
        try:
            # gRPC would remove the file of another service that is serving.
            if wanted.path and _is_served(wanted.path):
                port = 0
            elif credentials is None:
                port = server.add_insecure_port(target(listen))
            else:
                port = server.add_secure_port(target(listen), server_credentials(credentials))
        except RuntimeError:
            port = 0
        if port == 0:
            raise ConfigurationError(
                f"can't listen on {wanted}: {_UNIX_REFUSED if wanted.path else _PORT_REFUSED}; choose another with the"
                f" service's {setting} setting"
            )
        return wanted.at(port)

    async def stop(self) -> None:
        """Reports that it stops serving, gives open calls a moment to end, then cancels them."""
        if self._ready is not None:
            self._ready.close()
        await self._report_health(serving=False)
        if self._direct is not None:
            self._direct.close()
        await self._server.stop(_DRAIN_S)
        if self._probed is not None:
            await self._probed.stop(None)
        # gRPC prints a traceback for each of its own tasks that the end of the loop would cancel.
        ending = [task for task in asyncio.all_tasks() if _is_of_grpc(task)]
        if ending:
            await asyncio.wait(ending, timeout=_DRAIN_S)

    def _offered(self, context: Context) -> contextlib.AbstractContextManager[Offer | None]:
        if self._direct is None:
            return contextlib.nullcontext()
        return self._direct.offered(tuple(context.call.invocation_metadata() or ()), self.address, context.move)

    async def report_storage(self, sound: bool) -> None:
        """Reports in the health of `STORAGE` whether the service's disk can be written."""
        await self._health.report(STORAGE, serving=sound)

    async def _report_health(self, *, serving: bool) -> None:
        for service in ("", *self._services):
            await self._health.report(service, serving=serving)


def _health_server(health: HealthService) -> grpc.aio.Server:
    """Returns a server, which is not started, with the health service alone."""
    server = grpc.aio.server(
        options=(
            *(option for option in _OPTIONS if option[0] != "grpc.max_receive_message_length"),
            ("grpc.max_receive_message_length", MOST_BYTES),
            ("grpc.max_allowed_incoming_connections", MOST_WATCHES),
        ),
        maximum_concurrent_rpcs=2 * MOST_WATCHES,
    )
    server.add_generic_rpc_handlers((health.handlers(Reception()),))
    return server


def _is_served(path: str) -> bool:
    """Returns whether a process listens at a socket file, which may also be left over from one that was killed."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(path) == 0


def _is_of_grpc(task: "asyncio.Task[Any]") -> bool:
    return getattr(task.get_coro(), "__qualname__", "").startswith("_schedule_rpc_coro")


async def serve_health_only(listen: str, ready_file: str | None = None) -> Server:
    """Starts a server with the health service alone. Raises as `Server.start`."""
    server = Server({}, max_streams=16)
    await server.start(listen, ready_file)
    return server
