"""A network in virtual time, with what `penstock.rpc` uses of `grpc.aio`: channels, servers and their calls.

Messages of a connection arrive in order, as over TCP. A blocked link delays them until it opens, and both ends close a
connection whose keepalive is not answered. A cut loses what is under way. Calls have HTTP/2's flow control, with a
small window so that writers often wait.

Where gRPC promises no order, the seed chooses: how a server learns that a client is gone, and whether messages that
arrived before a break are still read.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from random import Random
from typing import Any

import grpc

from tests.support.simulation.loop import Process, SimulatedLoop, current_process

State = grpc.ChannelConnectivity
Metadata = Sequence[tuple[str, Any]]

_DELAY_S = (0.0002, 0.004)
_WINDOW_BYTES = 4_096
_CONNECT_S = 2.0
_FIRST_BACKOFF_S, _LONGEST_BACKOFF_S = 0.1, 1.0
_PING_S, _PONG_S = 5.0, 10.0
"""Keepalive, as `KEEPALIVE` in `penstock.rpc.server` sets it."""

_CANCEL_S = 0.004
"""Longest time from the end of a client to the cancellation of its call, within `_CANCELLATION_DELAY_S` of
`penstock.rpc.service`."""


class Network:
    """All connections. Its methods `channel` and `server` replace those of `grpc.aio`.

    Attributes:
        servers: Servers that listen, by address.
        links: Open connections.
    """

    def __init__(self, loop: SimulatedLoop, random: Random) -> None:
        self.loop, self.random = loop, random
        self.servers: dict[str, Server] = {}
        self.links: list[Link] = []
        self.calls: list[ClientCall] = []
        self._blocked: dict[tuple[str, str], float] = {}

    def channel(self, target: str, options: object = None) -> "Channel":
        """Replaces `grpc.aio.insecure_channel`."""
        return Channel(self, target)

    def server(self, **options: object) -> "Server":
        """Replaces `grpc.aio.server`."""
        return Server(self)

    def block(self, sender: str, receiver: str, seconds: float) -> None:
        """Delays all that a process sends to another until `seconds` from now."""
        self._blocked[sender, receiver] = self.loop.now + seconds

    def cut(self, one: str, other: str) -> None:
        """Breaks the connections between two processes, and loses what is under way."""
        for link in [link for link in self.links if {end.process.name for end in link.ends} == {one, other}]:
            link.cut()

    def kill(self, process: Process) -> None:
        """Ends the connections of a process that was killed, as its kernel does."""
        self.servers = {address: server for address, server in self.servers.items() if server.process is not process}
        for link in list(self.links):
            for end in link.ends:
                if end.process is process and not end.closed:
                    end.closed = True
                    end.tell(end.peer.lose, "Connection reset by peer")
        self.links = [link for link in self.links if any(not end.closed for end in link.ends)]

    def arrival(self, sender: str, receiver: str) -> float:
        """Returns when a message that is sent now arrives."""
        at = self.loop.now + self.random.uniform(*_DELAY_S)
        return max(at, self._blocked.get((sender, receiver), 0.0) + self.random.uniform(0.0, 0.05))


class Link:
    """A connection of a client to a server."""

    def __init__(self, network: Network, client: Process, server: "Server") -> None:
        self._network, self.is_cut = network, False
        self.ends = (End(network, self, client), End(network, self, server.process))
        self.server = server
        for end, peer in zip(self.ends, reversed(self.ends), strict=True):
            end.peer = peer
        network.links.append(self)

    def cut(self) -> None:
        """Breaks the connection; each end notices it a little later."""
        self.is_cut = True
        for end in self.ends:
            at = self._network.loop.now + self._network.random.uniform(0.0, 0.02)
            self._network.loop.deliver(at, end.process, end.lose, "Connection reset by peer")


class End:
    """One end of a connection, in one process."""

    peer: "End"

    def __init__(self, network: Network, link: Link, process: Process) -> None:
        self._network, self.link, self.process = network, link, process
        self.closed, self._last_arrival, self._pinged_at = False, 0.0, 0.0
        self.sides: dict[_Side, None] = {}
        self.on_lost: Callable[[], None] = lambda: None

    def open(self) -> None:
        """Begins the keepalive."""
        self._network.loop.deliver(self._network.loop.now + _PING_S, self.process, self._keep_alive)

    def send(self, function: Callable[..., None], *arguments: Any) -> None:
        """Calls a function at the other end, after all that was sent before."""
        if not self.closed:
            self.tell(self.peer._receive, function, arguments)

    def tell(self, function: Callable[..., None], *arguments: Any) -> None:
        """Calls a function in the other process, after all that was sent before, whatever the state of this end."""
        arrival = self._network.arrival(self.process.name, self.peer.process.name)
        self._last_arrival = max(self._last_arrival, arrival)
        self._network.loop.deliver(self._last_arrival, self.peer.process, function, *arguments)

    def lose(self, reason: str) -> None:
        """Closes this end, whose calls are lost."""
        if self.closed:
            return
        self.closed = True
        self.on_lost()
        for side in list(self.sides):
            side.lost(reason)
        if self.peer.closed and self.link in self._network.links:
            self._network.links.remove(self.link)

    def close(self) -> None:
        """Closes the connection from this end."""
        self.send(self.peer.lose, "Socket closed")
        self.lose("Channel closed")

    def _receive(self, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if not self.closed and not self.link.is_cut:
            function(*arguments)

    def _keep_alive(self) -> None:
        if self.closed:
            return
        now = self._network.loop.now
        if self._pinged_at and now - self._pinged_at >= _PONG_S:
            self.send(self.peer.lose, "Connection reset by peer")
            self.lose("keepalive watchdog timeout")
            return
        if not self._pinged_at:
            self._pinged_at = now
            self.send(self.peer._answer_ping)
        self.open()

    def _answer_ping(self) -> None:
        self.send(self.peer._take_pong)

    def _take_pong(self) -> None:
        self._pinged_at = 0.0


class _Side:
    """One side of a call: the messages that have arrived, and the room for those that it sends."""

    end: End
    other: Any

    def __init__(self, network: Network) -> None:
        self._network = network
        self.arrived = deque[bytes]()
        self.ended = self.done = False
        self._changed = asyncio.Event()
        self._under_way = self._read_bytes = 0
        self._writes = False

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            await self._changed.wait()

    def notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def send(self, data: bytes) -> bool:
        """Sends a message when there is room for it. Returns False if the call has ended."""
        assert not self._writes, "gRPC sends one message at a time"
        self._writes = True
        try:
            await asyncio.sleep(0)
            await self.until(lambda: self._under_way < _WINDOW_BYTES or self.done)
            if not self.done:
                self._under_way += len(data)
                self.end.send(self.other.take, data)
            return not self.done
        finally:
            self._writes = False

    def take(self, data: bytes) -> None:
        self.arrived.append(data)
        self.notify()

    def take_end(self) -> None:
        self.ended = True
        self.notify()

    def make_room(self, size: int) -> None:
        self._under_way -= size
        self.notify()

    async def read(self) -> bytes | None:
        """Returns the next message; None after the last one."""
        await self.until(lambda: self.arrived or self.ended or self.done)
        if not self.arrived:
            return None
        data = self.arrived.popleft()
        self._read_bytes += len(data)
        if self._read_bytes >= _WINDOW_BYTES // 2:
            self.end.send(self.other.make_room, self._read_bytes)
            self._read_bytes = 0
        return data

    def forget_some(self) -> None:
        """Drops what arrived before a break and was not read; or not."""
        if self._network.random.random() < 0.5:
            self.arrived.clear()

    def lost(self, reason: str) -> None:
        raise NotImplementedError


class ClientCall(_Side):
    """Client side of a call, as `grpc.aio.StreamStreamCall`."""

    def __init__(
        self, channel: "Channel", path: str, metadata: Metadata, parse: Callable[[bytes], Any], *, waits: bool
    ) -> None:
        super().__init__(channel.network)
        self.channel, self.path, self._parse = channel, path, parse
        self._metadata = metadata
        self._initial: Metadata | None = None
        self._status: tuple[grpc.StatusCode, str, Metadata] | None = None
        self._cancelled = self._wrote_last = False
        self._callbacks: list[Callable[[Any], None]] = []
        self._responses: AsyncIterator[Any] | None = None
        self._beginning = asyncio.create_task(self._begin(waits))
        channel.network.calls.append(self)

    async def _begin(self, waits: bool) -> None:
        end = await self.channel.connection(waits=waits)
        if self.done:
            return
        if end is None:
            self.finish(grpc.StatusCode.UNAVAILABLE, f"failed to connect: {self.channel.reason}")
            return
        self.end = end
        self.other = ServerCall(self._network, end.link.server, self, self._metadata)
        self.other.end = end.peer
        end.sides[self] = None
        end.send(self.other.open)
        self.notify()

    async def write(self, request: Any) -> None:
        if self.done or self._wrote_last:
            raise asyncio.InvalidStateError("RPC already finished." if self.done else "RPC is half closed.")
        try:
            await self.until(lambda: hasattr(self, "end") or self.done)
            if self.done or not await self.send(request if isinstance(request, bytes) else request.SerializeToString()):
                self.raise_for_status()
        except asyncio.CancelledError:
            self.cancel()
            raise

    async def done_writing(self) -> None:
        await self.until(lambda: hasattr(self, "end") or self.done)
        if not self.done and not self._wrote_last:
            self._wrote_last = True
            self.end.send(self.other.take_end)

    async def initial_metadata(self) -> Metadata:
        await self.until(lambda: self._initial is not None or self.done)
        return self._initial or ()

    def __aiter__(self) -> AsyncIterator[Any]:
        if self._responses is None:
            self._responses = self._all_responses()
        return self._responses

    async def _all_responses(self) -> AsyncIterator[Any]:
        try:
            while (data := await self.read()) is not None:
                yield self._parse(data)
        except asyncio.CancelledError:
            self.cancel()
            raise
        self.raise_for_status()

    async def only_response(self, request: Any, timeout_s: float) -> Any:
        """Makes a call with one request and one response."""
        timer = self._network.loop.call_later(timeout_s, self._expire)
        try:
            await self.write(request)
            await self.done_writing()
            response = await self.read()
            await self.until(lambda: self.done)
        except asyncio.CancelledError:
            self.cancel()
            raise
        finally:
            timer.cancel()
        self.raise_for_status()
        assert response is not None
        return self._parse(response)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    def cancel(self) -> bool:
        if self.done:
            return False
        self._cancelled = True
        self._break(grpc.StatusCode.CANCELLED, "Locally cancelled by application!")
        return True

    def raise_for_status(self) -> None:
        if self._cancelled:
            raise asyncio.CancelledError
        assert self._status is not None
        code, details, trailing = self._status
        if code != grpc.StatusCode.OK:
            raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), details)

    # What the network reports

    def take(self, data: bytes) -> None:
        self._initial = self._initial or ()
        super().take(data)

    def take_metadata(self, metadata: Metadata) -> None:
        self._initial = metadata
        self.notify()

    def finish(self, code: grpc.StatusCode, details: str, trailing: Metadata = ()) -> None:
        """Takes the status of the call."""
        if self.done:
            return
        self.done, self._status = True, (code, details, trailing)
        self._network.calls.remove(self)
        if hasattr(self, "end"):
            self.end.sides.pop(self, None)
        self.notify()
        for callback in self._callbacks:
            callback(self)

    def reset(self, code: grpc.StatusCode) -> None:
        """Ends the call as a proxy does, at both sides."""
        if hasattr(self, "end"):
            self._break(code, "the stream was reset")

    def lost(self, reason: str) -> None:
        self.forget_some()
        self.finish(grpc.StatusCode.UNAVAILABLE, reason)

    def _expire(self) -> None:
        self._break(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def _break(self, code: grpc.StatusCode, details: str) -> None:
        self.forget_some()
        if hasattr(self, "end") and not self.done:
            self.end.send(self.other.lost, details)
        self.finish(code, details)


class ServerCall(_Side):
    """Server side of a call, as `grpc.aio.ServicerContext`."""

    def __init__(self, network: Network, server: "Server", client: ClientCall, metadata: Metadata) -> None:
        super().__init__(network)
        self._server, self._path, self.other, self._metadata = server, client.path, client, metadata
        self._status: tuple[grpc.StatusCode, str, Metadata] = (grpc.StatusCode.OK, "", ())
        self._cancelled = False
        self._task: asyncio.Task[None] | None = None
        self._peer = f"ipv4:10.1.0.{1 + len(client.channel.process.name)}:{40_000 + client.channel.number}"
        self._serialise: Callable[[Any], bytes] = bytes

    def open(self) -> None:
        """Begins the call in the server's process."""
        self.end.sides[self] = None
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            method = self._server.method(self._path)
            self._serialise = method.response_serializer
            if method.stream_stream is not None:
                await method.stream_stream(self._requests(), self)
            else:
                await self.send(self._serialise(await method.stream_unary(self._requests(), self)))
        except grpc.aio.AbortError:
            pass
        except asyncio.CancelledError:
            self._status = (grpc.StatusCode.CANCELLED, "", ())
        except Exception as error:
            self._status = (grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}", ())
        if not self.done:
            self.end.send(self.other.finish, *self._status)
            self.end.sides.pop(self, None)
            self.done = True

    async def _requests(self) -> AsyncIterator[bytes]:
        while (data := await self.read()) is not None:
            yield data

    # The interface of servicers

    def peer(self) -> str:
        return self._peer

    def auth_context(self) -> dict[str, Any]:
        return {}

    def invocation_metadata(self) -> Metadata:
        return self._metadata

    def cancelled(self) -> bool:
        return self._cancelled

    async def send_initial_metadata(self, metadata: Metadata) -> None:
        self.end.send(self.other.take_metadata, metadata)

    async def write(self, message: Any) -> None:
        if not await self.send(self._serialise(message)):
            raise grpc.aio.InternalError("the call has ended")

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> None:
        self._status = (code, details, trailing_metadata)
        raise grpc.aio.AbortError("Locally aborted.")

    def lost(self, reason: str) -> None:
        """Learns that the client has cancelled the call or is gone. The requests end first, then the task."""
        if self.done:
            return
        self.done = True
        self.end.sides.pop(self, None)
        self.forget_some()
        self.notify()
        self._network.loop.call_later(self._network.random.uniform(0.0, _CANCEL_S), self._cancel)

    def _cancel(self) -> None:
        if self._task is not None and not self._task.done():
            self._cancelled = True
            self._task.cancel()


class Channel:
    """A client's channel, as `grpc.aio.Channel`."""

    def __init__(self, network: Network, target: str) -> None:
        self.network, self._target, self.process = network, target, current_process()
        self.number = len(network.links)
        self.reason = ""
        self._state, self._changed = State.IDLE, asyncio.Event()
        self._end: End | None = None
        self._attempt, self._backoff_s = 0, _FIRST_BACKOFF_S

    def unary_unary(self, path: str, request_serializer: Any, response_deserializer: Any) -> Any:
        async def call(request: Any, *, timeout: float, metadata: Metadata = ()) -> Any:
            made = ClientCall(self, path, metadata, response_deserializer, waits=False)
            return await made.only_response(request_serializer(request), timeout)

        return call

    def stream_stream(self, path: str, request_serializer: Any, response_deserializer: Any) -> Any:
        def call(*, wait_for_ready: bool, metadata: Metadata = ()) -> ClientCall:
            return ClientCall(self, path, metadata, response_deserializer, waits=wait_for_ready)

        return call

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        if try_to_connect and self._state == State.IDLE:
            self._connect()
        return self._state

    async def wait_for_state_change(self, last: grpc.ChannelConnectivity) -> None:
        while self._state == last:
            await self._changed.wait()

    async def close(self) -> None:
        end, self._end = self._end, None
        self._set(State.SHUTDOWN)
        if end is not None:
            end.close()

    async def connection(self, *, waits: bool) -> End | None:
        """Waits for a connection. Returns None after a failed attempt unless it `waits`, or when it is closed."""
        while self._end is None:
            if self._state == State.SHUTDOWN or (self._state == State.TRANSIENT_FAILURE and not waits):
                return None
            self.get_state(try_to_connect=True)
            await self._changed.wait()
        return self._end

    def _set(self, state: grpc.ChannelConnectivity) -> None:
        self._state = state
        self._changed.set()
        self._changed = asyncio.Event()

    def _connect(self) -> None:
        network, server = self.network, name_of(self._target)
        self._attempt += 1
        self._set(State.CONNECTING)
        network.loop.call_later(_CONNECT_S, self._fail, self._attempt, "connect() timed out")
        at = network.arrival(self.process.name, server)
        network.loop.deliver(at, network.loop.world, self._arrive, self._attempt, server)

    def _arrive(self, attempt: int, host: str) -> None:
        """Answers an attempt to connect, as the kernel of the server's host."""
        network = self.network
        server = network.servers.get(self._target)
        if server is None:
            at = network.arrival(host, self.process.name)
            network.loop.deliver(at, self.process, self._fail, attempt, "Connection refused")
        else:
            link = Link(network, self.process, server)
            network.loop.deliver(network.loop.now, server.process, self._greet, attempt, link)

    def _greet(self, attempt: int, link: Link) -> None:
        link.ends[1].open()
        link.ends[1].send(self._succeed, attempt, link.ends[0])

    def _succeed(self, attempt: int, end: End) -> None:
        if attempt != self._attempt or self._state != State.CONNECTING:
            end.close()
            return
        self._end, self._backoff_s = end, _FIRST_BACKOFF_S
        end.on_lost = self._lose
        end.open()
        self._set(State.READY)

    def _fail(self, attempt: int, reason: str) -> None:
        if attempt == self._attempt and self._state == State.CONNECTING:
            self.reason = reason
            self._set(State.TRANSIENT_FAILURE)
            pause_s, self._backoff_s = self._backoff_s, min(1.6 * self._backoff_s, _LONGEST_BACKOFF_S)
            self.network.loop.call_later(pause_s * self.network.random.uniform(0.8, 1.2), self._retry, attempt)

    def _retry(self, attempt: int) -> None:
        if attempt == self._attempt and self._state == State.TRANSIENT_FAILURE:
            self._connect()

    def _lose(self) -> None:
        if self._state != State.SHUTDOWN:
            self._end = None
            self._set(State.IDLE)


class Server:
    """A server, as `grpc.aio.Server`. Its address is a process's name and a port."""

    def __init__(self, network: Network) -> None:
        self._network, self.process = network, current_process()
        self._handlers: list[grpc.GenericRpcHandler] = []
        self._address = ""

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        self._handlers += handlers

    def add_insecure_port(self, address: str) -> int:
        self._address = address
        return 0 if address in self._network.servers else int(address.rpartition(":")[2])

    async def start(self) -> None:
        self._network.servers[self._address] = self

    async def stop(self, grace: float | None) -> None:
        self._network.servers.pop(self._address, None)
        await asyncio.sleep(grace or 0.0)
        for link in [link for link in self._network.links if link.server is self]:
            link.ends[1].close()

    def method(self, path: str) -> Any:
        """Returns the handler of a method."""
        details = _Details(path)
        return next(found for handler in self._handlers if (found := handler.service(details)) is not None)


class _Details(grpc.HandlerCallDetails):
    def __init__(self, method: str) -> None:
        self.method, self.invocation_metadata = method, ()


def name_of(address: str) -> str:
    """Returns the name of the process that listens at an address."""
    return address.rpartition(":")[0]
