"""Direct sockets: they carry a stream's messages between two processes for a fraction of gRPC's CPU time.

A stream opens by gRPC, and its errors and its end come by gRPC. In between, its messages may move to a direct socket:

1. The client names in the call's metadata the port or socket file that it has called. If that is the server's own, so
   that no proxy is in between, the server's metadata offer two places and a secret of the stream (`direct_offers`): a
   Unix socket, and a TCP port of the host that the client has called.
2. After the first response the client connects to the Unix socket and sends the secret. On another host, or in a
   container with its own network, it finds no such socket and connects to the port. If that is closed, or leads to
   another server, the stream stays with gRPC.
3. The server answers with the number of responses that it has sent by gRPC. All later ones are sent by the socket, and
   the client reads them once it has read those. By TCP, both sides say first that they are ready: a client that gets no
   number after that ends the stream, because responses may be lost, unless the server says that it has not moved.
4. The client signals the end of its requests by gRPC and sends later ones by the socket. The server reads these once
   gRPC's have ended. Messages of either direction therefore keep their order.

The end of the call ends the socket and the reverse, so that a stream breaks and reopens as it does by gRPC, whose
keepalive also notices a peer that hangs. Servicers and clients don't know which way a message takes.
"""

import asyncio
import contextlib
import socket
import struct
import sys
import threading
from collections import deque
from typing import Any

import grpc

from penstock.errors import InvalidSegment
from penstock.wire.block import blank

MAX_MESSAGE_BYTES = 4 * 2**20
"""Limit on a message, by gRPC and by a direct socket."""

_LAST_S = 1.0
"""Seconds after the end of the call in which the last messages are sent and received."""

_LENGTH = struct.Struct("<I")
_NO_MORE = 2**32 - 1
"""In place of a length: no more messages follow."""

_READ_BYTES = 2**16
_TURN_BYTES = 2**20
"""Bytes received in one turn of the loop, which has other work."""

_AT_ONCE_BYTES = 2**18
"""Bytes of a long message that arrive before the loop is woken for them, where the system can wait for so many."""

_IN_TLS_BYTES = 2**15
"""Bytes that TLS may have taken from the connection and not delivered: a record, of at most 16 KiB, and its frame."""

_MESSAGE_COST = 128
"""Bytes in memory of an unread message besides its content."""

_UNREAD_BYTES = 4 * MAX_MESSAGE_BYTES
_UNSENT_BYTES = 2**20


_WAITS_FOR_MORE = sys.platform == "linux"
"""Whether a socket is readable only when SO_RCVLOWAT bytes have arrived, or no more fit, or the peer has ended."""


class SocketEnded(grpc.aio.BaseError):
    """The peer or this side has ended the socket. Callers handle it like gRPC's own error for an ended call."""


class DirectSocket:
    """One side of a connection that carries messages, each as its length in four bytes and its bytes.

    All methods but `send` run on the event loop. At most `_UNREAD_BYTES` and one message are received and not read.
    """

    def __init__(self, connection: socket.socket, most_bytes: int = MAX_MESSAGE_BYTES) -> None:
        """Starts to receive on the running event loop. The connection does not block, and TLS has shaken hands.

        A message has at most `most_bytes` bytes. With fewer than the usual, one message is received before `trust`.
        """
        connection.setblocking(False)
        self._connection, self._loop = connection, asyncio.get_running_loop()
        self._most_bytes = most_bytes
        self.is_local = connection.family == socket.AF_UNIX
        # A process without certificates does not load ssl.
        self._is_secure = hasattr(connection, "do_handshake")
        # Bytes of a message that has begun. Those of a long one are received into its memory.
        self._begun = b""
        self._long, self._room, self._filled = b"", memoryview(b""), 0
        self._least = 1
        self._unread: deque[bytes] = deque()
        self._unread_bytes = self._oversized = 0
        self._arrival: asyncio.Future[None] | None = None
        self._paused = self._ended = self._lost = self._gone = False
        # Guards the sending side, which the main thread shares with the loop, and all of a connection by TLS.
        self._lock = threading.Lock()
        self._unsent: deque[memoryview] = deque()
        self._sent = asyncio.Event()
        self._finished = self._ending = self._closed = False
        self._loop.add_reader(connection, self._receive)

    @property
    def is_behind(self) -> bool:
        """Whether the kernel has not accepted all messages yet. Any thread may ask."""
        return bool(self._unsent)

    def trust(self) -> None:
        """Admits messages of the usual size from now on."""
        self._most_bytes = MAX_MESSAGE_BYTES

    def send(self, message: bytes) -> None:
        """Sends a message, or keeps the bytes that the kernel does not accept yet. Any thread may call this.

        Raises `SocketEnded` if the socket has ended.
        """
        with self._lock:
            if not self._finished and not self._lost:
                self._send_or_keep(_LENGTH.pack(len(message)), message)
            if self._finished or self._lost or self._gone:
                raise SocketEnded("the direct socket has ended")

    async def write(self, message: bytes) -> None:
        """Sends a message, and waits while too much is unsent. Raises as `send`."""
        self.send(message)
        while self._bytes_unsent() > _UNSENT_BYTES:
            self._sent.clear()
            await self._sent.wait()

    async def read(self) -> bytes | None:
        """Returns the next message; None once the peer has finished or the socket is closed. One task may read.

        Raises `InvalidSegment` for a message above the limit, and `SocketEnded` if the connection was lost.
        """
        while not self._unread:
            if self._oversized:
                raise InvalidSegment(
                    f"malformed message: it has {self._oversized} bytes; the maximum is {self._most_bytes}"
                )
            if self._lost:
                raise SocketEnded("the connection was lost")
            if self._ended:
                return None
            self._arrival = self._loop.create_future()
            await self._arrival
        message = self._unread.popleft()
        self._unread_bytes -= len(message) + _MESSAGE_COST
        if self._paused and not self._ended and self._unread_bytes < self._most_unread:
            self._paused = False
            self._loop.add_reader(self._connection, self._receive)
            # What TLS has received already makes no socket readable.
            self._loop.call_soon(self._receive)
        return message

    def finish(self) -> None:
        """Signals after the unsent messages that no more follow. The peer's are still received."""
        with self._lock:
            if self._finished:
                return
            self._finished = True
            if self.is_local:
                # As the releases expect that know Unix sockets alone.
                if not self._unsent:
                    self._shut()
            else:
                self._send_or_keep(_LENGTH.pack(_NO_MORE))

    def end(self) -> None:
        """Closes the socket after the unsent messages, at the latest after a second. What still arrives is dropped."""
        self._ending = True
        self.finish()
        self._loop.call_later(_LAST_S, self.close)
        if self._paused and not self._ended:
            self._paused = False
            self._loop.add_reader(self._connection, self._receive)
        self._close_if_done()

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
        self._sent.set()

    def _close_if_done(self) -> None:
        """Closes a socket that has ended and sent all.

        TCP takes back what the peer has not received yet if a connection is closed with bytes that were not read.
        """
        if self._ending and not self._unsent and (self.is_local or self._ended):
            self.close()

    @property
    def _most_unread(self) -> int:
        return _UNREAD_BYTES if self._most_bytes == MAX_MESSAGE_BYTES else 1

    def _bytes_unsent(self) -> int:
        with self._lock:
            return sum(map(len, self._unsent))

    def _send_or_keep(self, *pieces: bytes) -> None:
        """Sends pieces after the unsent ones. The caller holds the lock."""
        if self._is_secure:
            # TLS can't gather, and an attempt that is not accepted must be repeated with the same bytes.
            pieces = (b"".join(pieces),)
        if not self._unsent:
            sent = self._accepted(pieces)
            for piece in pieces:
                if sent < len(piece):
                    self._unsent.append(memoryview(piece)[sent:])
                sent = max(0, sent - len(piece))
            if self._unsent:
                self._loop.call_soon_threadsafe(self._send_when_possible)
        else:
            self._unsent.extend(map(memoryview, pieces))

    def _accepted(self, pieces: "tuple[bytes | memoryview, ...]") -> int:
        """Returns how many bytes the kernel accepts now."""
        try:
            return self._connection.send(pieces[0]) if self._is_secure else self._connection.sendmsg(pieces)
        except BlockingIOError:
            return 0
        except OSError as error:
            if _is_wait(error):
                return 0
            # What was received before the peer has gone can still be read.
            self._gone = True
            return sum(map(len, pieces))

    def _send_when_possible(self) -> None:
        if not self._closed:
            self._loop.add_writer(self._connection, self._send_more)

    def _send_more(self) -> None:
        with self._lock:
            while self._unsent and (sent := self._accepted((self._unsent[0],))):
                self._unsent[0] = self._unsent[0][sent:]
                if not self._unsent[0]:
                    self._unsent.popleft()
            done = not self._unsent
            if done and self._finished and self.is_local:
                self._shut()
        self._sent.set()
        if done:
            self._loop.remove_writer(self._connection)
            self._close_if_done()

    def _shut(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def _receive(self) -> None:
        """Receives what has arrived, up to `_TURN_BYTES`."""
        received = 0
        while not self._paused and not self._ended:
            try:
                if self._is_secure:
                    with self._lock:
                        size = self._receive_once()
                else:
                    size = self._receive_once()
            except BlockingIOError:
                return
            except OSError as error:
                if _is_wait(error):
                    return
                size = 0
            if not size:
                # A Unix socket is shut down by a peer that finishes; another peer says so.
                self._lost = not self.is_local
                self._end_of_messages()
                return
            if self._unread_bytes >= self._most_unread:
                self._paused = True
                self._loop.remove_reader(self._connection)
            received += size
            if not self._is_secure:
                return
            if received >= _TURN_BYTES:
                self._loop.call_soon(self._receive)
                return

    def _receive_once(self) -> int:
        """Receives some bytes; returns their number, 0 at the end of the connection."""
        if self._long:
            size = self._connection.recv_into(self._room[self._filled :])
            self._filled += size
            self._wait_for(len(self._room) - self._filled)
            if self._filled == len(self._room):
                message, self._long, self._room = self._long, b"", memoryview(b"")
                self._arrived(message)
                self._wake()
            return size
        data = self._connection.recv(_READ_BYTES)
        if data:
            self._split(self._begun + data if self._begun else data)
        return len(data)

    def _split(self, received: bytes) -> None:
        """Splits received bytes into messages."""
        start, end = 0, len(received)
        while end - start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(received, start)
            if size > self._most_bytes:
                self._oversized = 0 if size == _NO_MORE else size
                self._end_of_messages()
                break
            stop = start + _LENGTH.size + size
            if stop > end:
                if size > _READ_BYTES:
                    self._long, self._room = blank(size)
                    self._filled = end - start - _LENGTH.size
                    self._room[: self._filled] = received[start + _LENGTH.size :]
                    self._wait_for(size - self._filled)
                    start = end
                break
            self._arrived(received[start + _LENGTH.size : stop])
            start = stop
        self._begun = received[start:]
        self._wake()

    def _wait_for(self, missing: int) -> None:
        """Has the system wake the loop when so many bytes have arrived, or a large part of them."""
        if self._is_secure:
            missing -= _IN_TLS_BYTES
        least = min(max(1, missing), _AT_ONCE_BYTES)
        if least != self._least and _WAITS_FOR_MORE and not self.is_local:
            self._least = least
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)

    def _arrived(self, message: bytes) -> None:
        if not self._ending:
            self._unread.append(message)
            self._unread_bytes += len(message) + _MESSAGE_COST

    def _end_of_messages(self) -> None:
        if not self._ended:
            self._ended = True
            self._loop.remove_reader(self._connection)
            self._wake()
            if not self._closed:
                self._loop.call_soon(self._close_if_done)

    def _wake(self) -> None:
        if self._unread or self._ended:
            arrival = self._arrival
            if arrival is not None and not arrival.done():
                arrival.set_result(None)


def _is_wait(error: Any) -> bool:
    """Returns whether TLS asks to wait until the connection can be read or written."""
    return type(error).__name__ in ("SSLWantReadError", "SSLWantWriteError")
