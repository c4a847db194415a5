"""Offers of direct sockets to streams: what servers offer, and how clients connect (`direct_socket` has the protocol).

A Unix socket has an abstract name, which is specific to Linux and leaves no file. Its server admits connections of its
own user alone, because abstract names have no permissions. A TCP port is on the host at which the server listens. With
certificates its connections use TLS with those of gRPC, and both sides are verified as there.
"""

import asyncio
import contextlib
import math
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from penstock.errors import ConfigurationError, InvalidSegment
from penstock.machine.addresses import Address
from penstock.rpc.direct_socket import DirectSocket, SocketEnded
from penstock.rpc.tls import client_context, expected_name, server_context
from penstock.security.roles import Role
from penstock.telemetry import logs, metrics

if TYPE_CHECKING:
    import ssl

    from penstock.security.credentials import Credentials

_KEY = "penstock-local-socket"
"""Key in the metadata of both sides: what the client has called, and the Unix socket with the stream's secret. Older
releases have it too."""

_PORT_KEY = "penstock-stream-port"
"""Key in the metadata of the server: the port for the same secret."""

_HANDSHAKE_S = 2.0
_SECRET_BYTES = 16
_NAME = "penstock-"
_MOST_STRANGERS = 64
"""Limit on connections that have not sent their secret yet."""

_READY, _NOT_MOVED = b"", b"\0"
_COUNT = struct.Struct("<Q")
_CREDENTIALS = struct.Struct("3i")
"""Process, user and group at the other end of a connection (unix(7))."""

_BACKLOG = 1_024
_NO_DESCRIPTOR_S = 1.0
"""Seconds without accepting connections after the system had no descriptor for one."""

_SILENT_FOR_S = 60.0
"""Seconds for which no stream tries a port that did not answer, as behind a firewall that drops what it does not admit.
"""

_IDLE_S, _PROBE_S, _PROBES = 5, 5, 2
"""Keepalive of TCP, as of gRPC's connection beside: seconds until the first probe and between probes, and probes."""

_STUCK_S = 120
"""Seconds after which a connection ends whose peer takes no more bytes: it was lost, as by a middlebox that forgot it,
or it waits, as a service for a learner. A stream that opens again continues; one that is stuck would never."""


@dataclass(frozen=True, slots=True)
class Called:
    """What a client has called: a service of the role `service` at an address, with its credentials if it has any."""

    address: str
    service: Role = "learner"
    credentials: "Credentials | None" = None

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Returns the client's metadata for the call, with which it accepts an offer."""
        return ((_KEY, _own_part(Address.parse(self.address))),)


@dataclass(frozen=True, slots=True)
class Offer:
    """A server's offer to one stream.

    Attributes:
        secret: Secret of the stream.
        name: Abstract name of the Unix socket; empty: there is none.
        port: TCP port; 0: there is none.
    """

    secret: bytes
    name: str = ""
    port: int = 0

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Returns the server's metadata for the call."""
        return ((_KEY, f"{self.name}/{self.secret.hex()}"), (_PORT_KEY, str(self.port)))

    @classmethod
    def of(cls, metadata: Sequence[tuple[str, str | bytes]]) -> "Offer | None":
        """Returns the offer in a server's metadata; None without one."""
        name, _, secret = _value(metadata, _KEY).partition("/")
        port = _value(metadata, _PORT_KEY)
        try:
            offer = cls(
                bytes.fromhex(secret),
                name if name.startswith(_NAME) else "",
                int(port) if port.isdecimal() and int(port) < 2**16 else 0,
            )
        except ValueError:
            return None
        return offer if len(offer.secret) == _SECRET_BYTES and (offer.name or offer.port) else None


_silent: dict[tuple[str, int], float] = {}
"""Ports that did not answer, and the time of the attempt."""


async def connect(offer: Offer, called: Called) -> tuple[DirectSocket, int] | None:
    """Connects as a server offers. Returns the socket, and the number of responses sent by gRPC; None if it can't.

    Raises `SocketEnded` if the server may have moved the stream to a connection that is lost, so that it must end.
    """
    if offer.name and (found := await _attempt(_to_name(offer.name), offer.secret)):
        return found
    place = (Address.parse(called.address).host, offer.port)
    if not offer.port or time.monotonic() - _silent.get(place, -math.inf) < _SILENT_FOR_S:
        return None
    began = time.monotonic()
    found = await _attempt(_to_port(*place, called), offer.secret)
    now = time.monotonic()
    if found is None and now - began >= _HANDSHAKE_S:
        for former in [each for each, noted in _silent.items() if now - noted >= _SILENT_FOR_S]:
            del _silent[former]
        _silent[place] = now
    return found


async def _attempt(connecting: Coroutine[Any, Any, socket.socket], secret: bytes) -> tuple[DirectSocket, int] | None:
    direct, count, moving = None, None, False
    try:
        async with asyncio.timeout(_HANDSHAKE_S):
            direct = DirectSocket(await connecting)
            # A host does not lose what its own processes send, so a server that closes the socket has not moved.
            moving = direct.is_local
            direct.send(secret)
            if not moving and await direct.read() == _READY:
                moving = True
                direct.send(_READY)
            answer = await direct.read() if moving else None
            moving = moving and not direct.is_local and answer != _NOT_MOVED
            count = answer if answer is not None and len(answer) == _COUNT.size else None
    except (OSError, ValueError, SocketEnded, InvalidSegment):
        # A TimeoutError is an OSError.
        pass
    finally:
        if direct is not None and count is None:
            direct.close()
    if direct is not None and count is not None:
        return direct, _COUNT.unpack(count)[0]
    if moving:
        raise SocketEnded("the direct socket did not answer")
    return None


async def _to_name(name: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        # Connects or fails at once. The name begins with a null byte, so it names no file.
        connection.setblocking(False)
        connection.connect(f"\0{name}")
    except OSError:
        connection.close()
        raise
    return connection


async def _to_port(host: str, port: int, called: Called) -> socket.socket:
    connection = await _dialled(host, port)
    if called.credentials is None:
        return connection
    name = expected_name(called.credentials, called.service, host)
    return await secured(client_context(called.credentials.current), connection, server_hostname=name)


async def _dialled(host: str, port: int) -> socket.socket:
    """Connects to the first address of a host that accepts. Raises `OSError` if none does."""
    loop, refused = asyncio.get_running_loop(), OSError(f"{host} has no address")
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.setblocking(False)
            _tune(connection)
            await loop.sock_connect(connection, address)
        except OSError as error:
            connection.close()
            refused = error
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise refused


class DirectListener:
    """The sockets at which a server's streams are continued. Used on the server's event loop.

    Without abstract names, as on macOS, or without permission to listen, it offers the port alone.
    """

    def __init__(self, credentials: "Credentials | None" = None) -> None:
        """Listens at a name of its own. With `credentials`, the port uses TLS."""
        self._credentials = credentials
        self._name = f"{_NAME}{secrets.token_hex(_SECRET_BYTES)}"
        self._port = 0
        self._expected: dict[bytes, Callable[[DirectSocket], int]] = {}
        self._strangers: set[asyncio.Task[None]] = set()
        self._listening: list[socket.socket] = []
        named = socket.socket(socket.AF_UNIX)
        try:
            named.setblocking(False)
            named.bind(f"\0{self._name}")
            self._listen(named)
        except (OSError, ValueError):
            named.close()
            self._name = ""

    def listen(self, address: Address, port: int | None) -> None:
        """Listens at a TCP port on the host of an address; None: any free port. A socket file has no host.

        Raises `ConfigurationError` if the chosen port is not available.
        """
        if address.path:
            return
        try:
            for number, (family, *_, place) in enumerate(_places(address.host, port or 0)):
                listening = socket.socket(family, socket.SOCK_STREAM)
                listening.setblocking(False)
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address.host != "::"))
                try:
                    # A name such as localhost has an address of either family, and one port.
                    listening.bind((place[0], self._port, *place[2:]) if number else place)
                    self._listen(listening)
                except OSError:
                    listening.close()
                    if not number:
                        raise
                else:
                    self._port = listening.getsockname()[1]
        except OSError as error:
            if port:
                raise ConfigurationError(
                    f"can't listen on {address.at(port)}: {error.strerror}; choose another with the service's"
                    " stream_port setting"
                ) from None
            logs.note("streams stay with gRPC", reason=str(error))

    @contextlib.contextmanager
    def offered(
        self, metadata: Sequence[tuple[str, str | bytes]], address: Address, move: Callable[[DirectSocket], int]
    ) -> Iterator[Offer | None]:
        """Offers the sockets to a stream with this metadata, if its client has called the port or file of the address.

        `move` is called at most once, with the stream's side of a connection; it directs all later responses to it and
        returns how many were sent by gRPC.
        """
        if not self._listening or _value(metadata, _KEY) != _own_part(address):
            yield None
            return
        offer = Offer(secrets.token_bytes(_SECRET_BYTES), self._name, self._port)
        self._expected[offer.secret] = move
        try:
            yield offer
        finally:
            self._expected.pop(offer.secret, None)

    def close(self) -> None:
        """Ends the offers. Sockets that streams use remain open."""
        listening, self._listening = self._listening, []
        for each in listening:
            asyncio.get_running_loop().remove_reader(each)
            each.close()
        for task in self._strangers:
            task.cancel()

    def _listen(self, listening: socket.socket) -> None:
        listening.listen(_BACKLOG)
        self._listening.append(listening)
        # A counter without a first value shows no increase.
        for result in ("moved", "refused"):
            _count(listening, result, 0)
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            connection, _ = listening.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:
            loop.remove_reader(listening)
            loop.call_later(_NO_DESCRIPTOR_S, self._accept_again, listening)
            return
        is_foreign = listening.family == socket.AF_UNIX and _user_of(connection) != os.geteuid()
        if len(self._strangers) >= _MOST_STRANGERS or is_foreign:
            _count(connection, "refused")
            connection.close()
            return
        task = loop.create_task(self._admit(connection))
        self._strangers.add(task)
        task.add_done_callback(self._strangers.discard)

    def _accept_again(self, listening: socket.socket) -> None:
        if listening in self._listening:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    async def _admit(self, connection: socket.socket) -> None:
        """Gives a connection to the stream whose secret it sends, or closes it."""
        direct: DirectSocket | None = None
        admitted = False
        try:
            with contextlib.suppress(TimeoutError, InvalidSegment, SocketEnded, OSError):
                async with asyncio.timeout(_HANDSHAKE_S):
                    connection.setblocking(False)
                    if connection.family != socket.AF_UNIX:
                        _tune(connection)
                        if self._credentials is not None:
                            context = server_context(self._credentials.current)
                            connection = await secured(context, connection, server_side=True)
                    direct = DirectSocket(connection, most_bytes=_SECRET_BYTES)
                    secret = await direct.read()
                    if secret in self._expected and not direct.is_local:
                        # The client ends a stream that may have moved, so it must know that this server can move it.
                        direct.send(_READY)
                        if await direct.read() != _READY:
                            secret = None
                        elif secret not in self._expected:
                            # The stream has ended meanwhile, or moved to another connection.
                            direct.send(_NOT_MOVED)
                    move = self._expected.pop(secret, None) if secret is not None else None
                if move is not None:
                    direct.trust()
                    # If the connection was lost meanwhile, so is the stream, which ends when it writes to it.
                    direct.send(_COUNT.pack(move(direct)))
                    admitted = True
        finally:
            _count(connection, "moved" if admitted else "refused")
            if not admitted:
                (direct or connection).close()


async def secured(context: "ssl.SSLContext", connection: socket.socket, **how: Any) -> socket.socket:
    """Shakes hands by TLS without blocking the loop. Raises `OSError`, and closes the connection, if that fails."""
    import ssl

    loop = asyncio.get_running_loop()
    secured = context.wrap_socket(connection, do_handshake_on_connect=False, **how)
    try:
        while True:
            ready = asyncio.Event()
            try:
                secured.do_handshake()
                return secured
            except ssl.SSLWantReadError:
                loop.add_reader(secured, ready.set)
                await ready.wait()
                loop.remove_reader(secured)
            except ssl.SSLWantWriteError:
                loop.add_writer(secured, ready.set)
                await ready.wait()
                loop.remove_writer(secured)
    except BaseException:
        loop.remove_reader(secured)
        loop.remove_writer(secured)
        secured.close()
        raise


def _tune(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _IDLE_S),
        ("TCP_KEEPINTVL", _PROBE_S),
        ("TCP_KEEPCNT", _PROBES),
        ("TCP_USER_TIMEOUT", 1_000 * _STUCK_S),
    ):
        # Not every system has each of them.
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _places(host: str, port: int) -> list[tuple[socket.AddressFamily, int, int, str, tuple[str, int]]]:
    """Returns the addresses of this host at which a server listens."""
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)  # type: ignore[return-value]


def _count(connection: socket.socket, result: str, number: int = 1) -> None:
    kind = "unix" if connection.family == socket.AF_UNIX else "tcp"
    metrics.STREAM_CONNECTIONS.labels(kind, result).inc(number)


def _own_part(address: Address) -> str:
    """Returns the part of an address that is the same for all names of its host."""
    return quote(str(Path(address.path).absolute())) if address.path else str(address.port)


def _user_of(connection: socket.socket) -> int:
    """Returns the user who connected, as the kernel noted it; -1 where it does not, as on macOS."""
    if not hasattr(socket, "SO_PEERCRED"):
        return -1
    _, user, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(user)


def _value(metadata: Sequence[tuple[str, str | bytes]], wanted: str) -> str:
    return next((value for key, value in metadata if key == wanted and isinstance(value, str)), "")
