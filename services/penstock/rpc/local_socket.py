"""Local sockets: they carry a stream's messages between two processes of one host, for a fraction of gRPC's CPU time.

A stream opens by gRPC, and its errors and its end come by gRPC. In between, its messages may move to a Unix socket:

1. The client names in the call's metadata the port or socket file that it has called. If that is the server's own, so
   that no proxy is in between, the server's metadata offer a socket and a secret of the stream.
2. After the first response the client connects to the socket and sends the secret. On another host, or in a container
   with its own network, it finds no such socket and stays with gRPC. So does a client of another user, whose
   connections the server closes: abstract names have no permissions.
3. The server answers with the number of responses that it has sent by gRPC. All later ones are sent by the socket, and
   the client reads them once it has read those.
4. The client signals the end of its requests by gRPC and sends later ones by the socket. The server reads these once
   gRPC's have ended. Messages of either direction therefore keep their order.

The end of the call ends the socket and the reverse, so that a stream breaks and reopens as it does by gRPC, whose
keepalive also notices a peer that hangs. Sockets have abstract names, which are specific to Linux and leave no files.
Servicers and clients don't know which way a message takes.
"""

import asyncio
import contextlib
import os
import secrets
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import grpc

from penstock.errors import InvalidSegment
from penstock.machine.addresses import Address

MAX_MESSAGE_BYTES = 4 * 2**20
"""Limit on a message, by gRPC and by a local socket."""

_KEY = "penstock-local-socket"
"""Key in the metadata of both sides."""

_HANDSHAKE_S = 2.0
_LAST_S = 1.0
"""Seconds after the end of the call in which the last messages are sent and received."""

_SECRET_BYTES = 16
_NAME = "penstock-"
_MOST_STRANGERS = 64
"""Limit on connections that have not sent their secret yet."""

_LENGTH, _COUNT = struct.Struct("<I"), struct.Struct("<Q")
_CREDENTIALS = struct.Struct("3i")
"""Process, user and group at the other end of a connection (unix(7))."""

_READ_BYTES = 2**18
_UNREAD_BYTES = 4 * MAX_MESSAGE_BYTES
_UNSENT_BYTES = 2**20


class SocketEnded(grpc.aio.BaseError):
    """The peer or this side has ended the socket. Callers handle it like gRPC's own error for an ended call."""


class LocalSocket:
    """One side of a connection that carries messages, each as its length in four bytes and its bytes.

    All methods but `send` run on the event loop. At most `_UNREAD_BYTES` and one message are received and not read.
    """

    def __init__(self, connection: socket.socket) -> None:
        """Starts to receive on the running event loop."""
        connection.setblocking(False)
        self._connection, self._loop = connection, asyncio.get_running_loop()
        self._received = bytearray()
        self._unread: deque[bytes] = deque()
        self._unread_bytes = self._oversized = 0
        self._arrival: asyncio.Future[None] | None = None
        self._paused = self._ended = False
        # Guards the sending side, which the main thread shares with the loop.
        self._lock = threading.Lock()
        self._unsent: deque[memoryview] = deque()
        self._room = asyncio.Event()
        self._finished = self._ending = self._closed = False
        self._loop.add_reader(connection, self._receive)

    def send(self, message: bytes) -> None:
        """Sends a message, or keeps the bytes that the kernel does not accept yet. Any thread may call this.

        Raises `SocketEnded` if the socket has ended.
        """
        data = memoryview(_LENGTH.pack(len(message)) + message)
        with self._lock:
            if self._finished:
                raise SocketEnded("the local socket has ended")
            if self._unsent:
                self._unsent.append(data)
                return
            sent = self._accepted(data)
            if sent == len(data):
                return
            self._unsent.append(data[sent:])
        self._loop.call_soon_threadsafe(self._send_when_possible)

    async def write(self, message: bytes) -> None:
        """Sends a message, and waits while too much is unsent. Raises as `send`."""
        self.send(message)
        while sum(map(len, self._unsent)) > _UNSENT_BYTES:
            self._room.clear()
            await self._room.wait()

    async def read(self) -> bytes | None:
        """Returns the next message; None once the peer has finished or the socket is closed. One task may read.

        Raises `InvalidSegment` for a message above the limit.
        """
        while not self._unread:
            if self._oversized:
                raise InvalidSegment(
                    f"malformed message: it has {self._oversized} bytes; the maximum is {MAX_MESSAGE_BYTES}"
                )
            if self._ended:
                return None
            self._arrival = self._loop.create_future()
            await self._arrival
        message = self._unread.popleft()
        self._unread_bytes -= len(message)
        if self._paused and not self._ended and self._unread_bytes < _UNREAD_BYTES:
            self._paused = False
            self._loop.add_reader(self._connection, self._receive)
        return message

    def finish(self) -> None:
        """Signals after the unsent messages that no more follow. The peer's are still received."""
        with self._lock:
            self._finished = True
            if not self._unsent:
                self._shut()

    def end(self) -> None:
        """Closes the socket after the unsent messages, at the latest after a second."""
        self._ending = True
        self.finish()
        if self._unsent:
            self._loop.call_later(_LAST_S, self.close)
        else:
            self.close()

    def close_soon(self) -> None:
        """Closes the socket after a second, in which the peer's last messages are received."""
        if not self._closed:
            self._loop.call_later(_LAST_S, self.close)

    def close(self) -> None:
        """Closes the socket. Messages that were received can still be read."""
        if self._closed:
            return
        self._end_of_messages()
        with self._lock:
            self._finished = self._closed = True
            self._unsent.clear()
        self._loop.remove_writer(self._connection)
        self._connection.close()
        self._room.set()

    def _accepted(self, data: memoryview) -> int:
        """Returns how many bytes the kernel accepts now."""
        try:
            return self._connection.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            # The peer has gone, which this side sees when it reads.
            return len(data)

    def _send_when_possible(self) -> None:
        if not self._closed:
            self._loop.add_writer(self._connection, self._send_more)

    def _send_more(self) -> None:
        with self._lock:
            while self._unsent and (sent := self._accepted(self._unsent[0])):
                self._unsent[0] = self._unsent[0][sent:]
                if not self._unsent[0]:
                    self._unsent.popleft()
            done = not self._unsent
            if done and self._finished:
                self._shut()
        self._room.set()
        if done:
            self._loop.remove_writer(self._connection)
            if self._ending:
                self.close()

    def _shut(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def _receive(self) -> None:
        try:
            data = self._connection.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end_of_messages()
            return
        self._received += data
        self._split()
        if self._unread_bytes >= _UNREAD_BYTES:
            self._paused = True
            self._loop.remove_reader(self._connection)

    def _split(self) -> None:
        """Splits received bytes into messages."""
        received, start = self._received, 0
        while len(received) - start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(received, start)
            if size > MAX_MESSAGE_BYTES:
                self._oversized = size
                self._end_of_messages()
                break
            stop = start + _LENGTH.size + size
            if stop > len(received):
                break
            self._unread.append(bytes(received[start + _LENGTH.size : stop]))
            self._unread_bytes += size
            start = stop
        if start:
            del received[:start]
            self._wake()

    def _end_of_messages(self) -> None:
        if not self._ended:
            self._ended = True
            self._loop.remove_reader(self._connection)
            self._wake()

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)


@dataclass(frozen=True, slots=True)
class Offer:
    """A server's offer of a local socket to one stream: its abstract name, and the secret of the stream."""

    name: str
    secret: bytes

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Returns the server's metadata for the call."""
        return ((_KEY, f"{self.name}/{self.secret.hex()}"),)

    @classmethod
    def of(cls, metadata: Sequence[tuple[str, str | bytes]]) -> "Offer | None":
        """Returns the offer in a server's metadata; None without one."""
        name, _, secret = _value(metadata).partition("/")
        try:
            return cls(name, bytes.fromhex(secret)) if name.startswith(_NAME) else None
        except ValueError:
            return None


def called(address: str) -> tuple[tuple[str, str], ...]:
    """Returns the client's metadata for a call to an address, with which it accepts an offer."""
    return ((_KEY, _own_part(Address.parse(address))),)


async def connect(offer: Offer) -> tuple[LocalSocket, int] | None:
    """Connects to an offered socket. Returns it, and the number of responses sent by gRPC; None if there is none."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        # Connects or fails at once. The name begins with a null byte, so it names no file.
        connection.setblocking(False)
        connection.connect(f"\0{offer.name}")
    except OSError:
        connection.close()
        return None
    local = LocalSocket(connection)
    try:
        async with asyncio.timeout(_HANDSHAKE_S):
            local.send(offer.secret)
            answer = await local.read()
    except TimeoutError:
        answer = None
    if answer is None or len(answer) != _COUNT.size:
        local.close()
        return None
    return local, _COUNT.unpack(answer)[0]


class LocalListener:
    """The socket at which a server's streams are continued. Used on the server's event loop.

    Without abstract names, as on macOS, or without permission to listen, it offers nothing.
    """

    def __init__(self) -> None:
        """Listens at a name of its own."""
        self._name = f"{_NAME}{secrets.token_hex(_SECRET_BYTES)}"
        self._expected: dict[bytes, Callable[[LocalSocket], int]] = {}
        self._strangers: set[asyncio.Task[None]] = set()
        self._socket: socket.socket | None = socket.socket(socket.AF_UNIX)
        try:
            self._socket.setblocking(False)
            self._socket.bind(f"\0{self._name}")
            self._socket.listen()
        except (OSError, ValueError):
            self._socket.close()
            self._socket = None
            return
        asyncio.get_running_loop().add_reader(self._socket, self._accept)

    @contextlib.contextmanager
    def offered(
        self, metadata: Sequence[tuple[str, str | bytes]], address: Address, move: Callable[[LocalSocket], int]
    ) -> Iterator[Offer | None]:
        """Offers the socket to a stream with this metadata, if its client has called the port or file of the address.

        `move` is called at most once, with the stream's side of a connection; it directs all later responses to it and
        returns how many were sent by gRPC.
        """
        if self._socket is None or _value(metadata) != _own_part(address):
            yield None
            return
        offer = Offer(self._name, secrets.token_bytes(_SECRET_BYTES))
        self._expected[offer.secret] = move
        try:
            yield offer
        finally:
            self._expected.pop(offer.secret, None)

    def close(self) -> None:
        """Ends the offers. Sockets that streams use remain open."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        for task in self._strangers:
            task.cancel()

    def _accept(self) -> None:
        assert self._socket is not None
        try:
            connection, _ = self._socket.accept()
        except OSError:
            return
        if len(self._strangers) >= _MOST_STRANGERS or _user_of(connection) != os.geteuid():
            connection.close()
            return
        task = asyncio.get_running_loop().create_task(self._admit(LocalSocket(connection)))
        self._strangers.add(task)
        task.add_done_callback(self._strangers.discard)

    async def _admit(self, local: LocalSocket) -> None:
        """Gives a connection to the stream whose secret it sends, or closes it."""
        admitted = False
        try:
            with contextlib.suppress(TimeoutError, InvalidSegment):
                async with asyncio.timeout(_HANDSHAKE_S):
                    secret = await local.read()
                move = self._expected.pop(secret, None) if secret is not None else None
                if move is not None:
                    local.send(_COUNT.pack(move(local)))
                    admitted = True
        finally:
            if not admitted:
                local.close()


def _own_part(address: Address) -> str:
    """Returns the part of an address that is the same for all names of its host."""
    return quote(str(Path(address.path).absolute())) if address.path else str(address.port)


def _user_of(connection: socket.socket) -> int:
    """Returns the user who connected, as the kernel noted it; -1 where it does not, as on macOS."""
    if not hasattr(socket, "SO_PEERCRED"):
        return -1
    _, user, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(user)


def _value(metadata: Sequence[tuple[str, str | bytes]]) -> str:
    return next((value for key, value in metadata if key == _KEY and isinstance(value, str)), "")
