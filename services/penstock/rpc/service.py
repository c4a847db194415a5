"""Wrapper that turns servicers' methods into gRPC handlers, with metrics and mapped errors."""

import asyncio
import contextlib
import math
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from penstock.errors import ConfigurationError, InvalidSegment, Overloaded, PenstockError, Unavailable
from penstock.machine.addresses import client_host
from penstock.rpc.contract import check_contract, check_identity, contract_of, stamped
from penstock.rpc.direct_offers import Offer
from penstock.rpc.direct_socket import DirectSocket, SocketEnded
from penstock.rpc.errors import is_passing, to_status, trailing_metadata
from penstock.telemetry import logs, metrics
from penstock.types.location import Origin

CHALLENGE = "penstock-challenge"
"""Key in the initial metadata of a stream whose first request needs a proof."""

_CHALLENGE_BYTES = 32
_OPENING_TIMEOUT_S = 10.0
_MOST_ARRIVING = 32
"""Messages of clients that have not been checked yet which may arrive at the same time: 128 MiB at most."""

_LARGE_BYTES = 2**16
"""Size in bytes above which a refused message is costly."""

_UNREAD_FOR_S = 60.0
"""Seconds for which a connection's calls are refused unread after a costly message."""

_MOST_REMEMBERED = 1_000
_CANCELLATION_DELAY_S = 0.005
"""Seconds to wait for gRPC to report a cancellation. A cancelled stream's requests end like a finished one's."""

_GONE_S = 1.0
"""Seconds to wait for gRPC to cancel a call that can't be read or written any more. It takes milliseconds."""

T = TypeVar("T")
if TYPE_CHECKING:
    ServicerContext = grpc.aio.ServicerContext[Any, Any]
    Handler = grpc.RpcMethodHandler[Any, Any]
else:
    # grpcio's types are generic only in its stubs.
    ServicerContext, Handler = grpc.aio.ServicerContext, grpc.RpcMethodHandler


class Context:
    """A call as servicers use it. The first message of a stream carries the contract number.

    Attributes:
        call: gRPC's object for the call.
        direct: Direct socket to which the stream has moved; None while all messages are sent by gRPC.
        opened: Whether the first request has been read.
        challenge: Challenge that the client was sent, to which its proof answers; empty in a unary call.
    """

    def __init__(self, call: ServicerContext) -> None:
        self.call, self.opened = call, False
        self.challenge = b""
        self.direct: DirectSocket | None = None
        self._written = 0

    def peer(self) -> str:
        """Returns the client's address."""
        return self.call.peer()

    def origin(self) -> Origin:
        """Returns where the client is connected from."""
        names = self.call.auth_context().get("x509_subject_alternative_name", ())
        return Origin(client_host(self.peer()), frozenset(name.decode(errors="replace") for name in names))

    def open(self, first: Any) -> None:
        """Checks the first request. Raises `ConfigurationError` if the client uses another contract."""
        self.opened = True
        try:
            check_contract(contract_of(first), "the client")
        except ConfigurationError as error:
            logs.note("client refused", peer=self.peer(), reason=str(error))
            raise

    async def write(self, message: Message | bytes) -> None:
        """Sends the next response of a stream."""
        if self.direct is not None:
            await self.direct.write(serialise(message))
            return
        self._written += 1
        await self.call.write(message if self._written > 1 else stamped(message))

    def move(self, direct: DirectSocket) -> int:
        """Directs all later responses to this socket. Returns the number of responses by gRPC, with one in transit."""
        self.direct = direct
        return self._written

    def leave(self) -> None:
        """Ends the stream's direct socket, if there is one, after the responses."""
        if self.direct is not None:
            self.direct.end()


@dataclass(frozen=True, slots=True)
class Method:
    """One RPC of the contract.

    Attributes:
        service: Full name of the service.
        name: Name of the method.
        request, response: Message types.
        request_stream, response_stream: Whether each side streams.
        read_request, read_response: Parsers used where protobuf's own would copy payloads.
    """

    service: str
    name: str
    request: type[Message]
    response: type[Message]
    request_stream: bool = False
    response_stream: bool = False
    read_request: Callable[[bytes], Any] | None = None
    read_response: Callable[[bytes], Any] | None = None

    @property
    def path(self) -> str:
        """Path of the method in HTTP/2."""
        return f"/{self.service}/{self.name}"

    @property
    def kind(self) -> str:
        """Type of the method in metrics. In the contract, both sides of a call stream or neither."""
        return "bidi_stream" if self.request_stream else "unary"

    @property
    def is_challenged(self) -> bool:
        """Whether the server sends a challenge, to which the proof in the first request answers."""
        return self.request_stream and "proof" in self.request.DESCRIPTOR.fields_by_name


class Capacity:
    """Limit on a server's concurrent calls. Used on one event loop."""

    def __init__(self, most: int) -> None:
        self._most, self._calls = most, 0

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Occupies room for one call. Raises `Overloaded` if there is none."""
        if self._calls >= self._most:
            raise Overloaded(f"{self._most} calls are open, which is the limit of this service")
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1


class Reception:
    """Bounds on the bytes that clients may send before their message is checked. Used on one event loop.

    gRPC receives a whole message, of up to `MAX_MESSAGE_BYTES`, before anything can check it. So calls are refused by
    their metadata, few messages arrive at the same time, and a connection that has sent a large message in vain can't
    send others for a while.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._places = asyncio.Semaphore(_MOST_ARRIVING)
        self._refused: dict[str, float] = {}

    def admit(self, peer: str) -> None:
        """Raises `Overloaded` if a connection has recently sent a costly message in vain."""
        if self._refused and self._refused.get(peer, -math.inf) > self._clock():
            raise Overloaded(
                f"this connection has sent a message of more than {_LARGE_BYTES} bytes that was refused; its calls are"
                f" refused for {_UNREAD_FOR_S:.0f} s, correct the client"
            )

    def refused(self, peer: str, size: int) -> None:
        """Notes that a message of this size in bytes was refused."""
        # All clients of a socket file have the same name.
        if size > _LARGE_BYTES and not peer.startswith("unix:"):
            self._refused[peer] = self._clock() + _UNREAD_FOR_S
            if len(self._refused) > _MOST_REMEMBERED:
                del self._refused[next(iter(self._refused))]

    async def only(self, requests: AsyncIterator[bytes]) -> bytes:
        """Returns the request of a call that has one.

        Raises `InvalidSegment` if it does not arrive in time, or `Overloaded` if there is no place for it meanwhile.
        """
        try:
            async with asyncio.timeout(_OPENING_TIMEOUT_S):
                await self._places.acquire()
        except TimeoutError:
            raise Overloaded(f"{_MOST_ARRIVING} messages are arriving, which is the limit of this service") from None
        try:
            async with asyncio.timeout(_OPENING_TIMEOUT_S):
                return await anext(requests)
        except (TimeoutError, StopAsyncIteration):
            raise InvalidSegment(f"a call must send its message within {_OPENING_TIMEOUT_S:.0f} s") from None
        finally:
            self._places.release()

    async def first(self, requests: AsyncIterator[bytes]) -> bytes | None:
        """Returns the first request of a call, when there is a place for it; None if the client sends none."""
        async with self._places:
            return await anext(requests, None)

    async def drop_first(self, requests: AsyncIterator[bytes]) -> None:
        """Waits for the first request of a refused stream: a client that is still writing it would get no status."""
        with contextlib.suppress(TimeoutError, grpc.aio.BaseError):
            async with asyncio.timeout(_GONE_S):
                await self.first(requests)


def serialise(message: Message | bytes) -> bytes:
    """Serialises a message; returns bytes unchanged."""
    return message if isinstance(message, bytes) else message.SerializeToString()


_HANDLERS = {
    "unary": grpc.stream_unary_rpc_method_handler,
    "bidi_stream": grpc.stream_stream_rpc_method_handler,
}
"""Constructors of gRPC's handlers by the type of a method.

A single request is the same in HTTP/2 as a stream of one, and a stream is read when the server wants it.
"""


def handler(
    method: Method,
    behaviour: Callable[..., Awaitable[Any]],
    *,
    capacity: Capacity,
    reception: Reception,
    most_bytes: int,
    offered: Callable[[Context], contextlib.AbstractContextManager[Offer | None]],
    identity: Callable[[], int],
    admit: Callable[[Method, ServicerContext], float | None],
) -> Handler:
    """Returns the gRPC handler of a servicer's function, (request or requests, context) -> response or None.

    Each of its calls occupies room in `capacity`, its first message arrives by `reception`, and no message is longer
    than `most_bytes`. A stream of requests runs in the context `offered`, which has the direct socket that it may use.
    Calls that are meant for a service with another `identity` are refused. `admit` checks the client, and returns the
    seconds after which it must connect again; None: never.
    """
    parse = method.read_request or method.request.FromString

    async def observed(received: AsyncIterator[bytes], call: ServicerContext) -> Any:
        context, size = Context(call), 0
        labels = (method.kind, method.service, method.name)
        metrics.RPC_STARTED.labels(*labels).inc()
        started, code = time.monotonic(), grpc.StatusCode.CANCELLED
        try:
            reception.admit(call.peer())
            stays_s = admit(method, call)
            check_identity(tuple(call.invocation_metadata() or ()), identity())

            def read(data: bytes) -> Any:
                if len(data) > most_bytes:
                    reception.refused(call.peer(), len(data))
                    raise Overloaded(f"a message of {method.name} has {len(data)} bytes; the maximum is {most_bytes}")
                return parse(data)

            with capacity.taken(), contextlib.ExitStack() as stay:
                if method.request_stream:
                    request = _read_all(received, read, context, reception)
                    await _begin(method, context, stay.enter_context(offered(context)), stay)
                else:
                    data = await reception.only(received)
                    size = len(data)
                    request = read(data)
                response = await _ended_after(stays_s, behaviour(request, context))
            if method.request_stream:
                await asyncio.sleep(_CANCELLATION_DELAY_S)
            code = grpc.StatusCode.CANCELLED if call.cancelled() else grpc.StatusCode.OK
            return response
        except Exception as raised:
            error = unwrap(raised)
            if isinstance(error, DecodeError):
                error = InvalidSegment(f"malformed message: {error}")
            if isinstance(error, grpc.aio.BaseError):
                # The client is gone or this server has stopped. gRPC has cancelled this call or is about to.
                await _cancellation()
                if isinstance(error, SocketEnded):
                    error = Unavailable("the connection that carried the stream was lost; the client opens it again")
            if not isinstance(error, PenstockError):
                code = grpc.StatusCode.UNKNOWN
                raise
            code = to_status(error)
            if not is_passing(error):
                reception.refused(call.peer(), size)
            if method.request_stream and not context.opened:
                await reception.drop_first(received)
            await call.abort(code, str(error), trailing_metadata(error))
        finally:
            metrics.RPC_SECONDS.labels(*labels).observe(time.monotonic() - started)
            metrics.RPC_HANDLED.labels(*labels, code.name).inc()

    return _HANDLERS[method.kind](observed, response_serializer=serialise)


async def _begin(method: Method, context: Context, offer: Offer | None, stay: contextlib.ExitStack) -> None:
    """Sends the metadata that a client needs before its stream: the direct socket, and the challenge for its proof."""
    metadata: list[tuple[str, str]] = []
    if offer is not None:
        stay.callback(context.leave)
        metadata += offer.metadata()
    if method.is_challenged:
        context.challenge = secrets.token_bytes(_CHALLENGE_BYTES)
        metadata.append((CHALLENGE, context.challenge.hex()))
    if metadata:
        await context.call.send_initial_metadata(tuple(metadata))


async def _read_all(
    requests: AsyncIterator[bytes], read: Callable[[bytes], T], context: Context, reception: Reception
) -> AsyncIterator[T]:
    """Parses the requests. gRPC's own parsing would answer UNKNOWN to malformed bytes, which no metric counts."""
    first = await reception.first(requests)
    if first is not None:
        message = read(first)
        context.open(message)
        yield message
        async for request in requests:
            yield read(request)
    if context.direct is not None:
        while (data := await context.direct.read()) is not None:
            yield read(data)


async def opening_message(requests: AsyncIterator[T]) -> T:
    """Returns the first message of a stream. Raises `InvalidSegment` if none arrives in time."""
    try:
        async with asyncio.timeout(_OPENING_TIMEOUT_S):
            return await anext(requests)
    except (TimeoutError, StopAsyncIteration):
        raise InvalidSegment(f"a stream must open with a first message within {_OPENING_TIMEOUT_S:.0f} s") from None


async def write_whole(context: Context, message: Message | bytes) -> None:
    """Writes a whole message even when cancelled, because gRPC accepts no other message or status meanwhile."""
    if context.direct is not None:
        # A direct socket takes the whole message before it waits.
        await context.write(message)
        return
    writing = asyncio.ensure_future(context.write(message))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.gather(writing, return_exceptions=True)
        raise


async def _ended_after(seconds: float | None, work: Awaitable[T]) -> T:
    """Awaits the work of a call. Raises `Unavailable` if the client's certificate expires before its end."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await work
    except TimeoutError:
        if not limit.expired():
            raise
        raise Unavailable("the client's certificate has expired; the client connects again with a new one") from None


async def _cancellation() -> None:
    """Waits `_GONE_S` for this task to be cancelled. Raises `asyncio.CancelledError` if it is or was."""
    task = asyncio.current_task()
    assert task is not None
    # A group whose tasks failed raises their errors even when it was cancelled. Only this count then shows it.
    if task.cancelling():
        raise asyncio.CancelledError
    await asyncio.sleep(_GONE_S)


@contextlib.contextmanager
def logged_stay(who: str, *, returned: bool, **where: str) -> Iterator[None]:
    """Logs that a peer of the kind `who` has joined or returned and, when its stream ends, that it has left and why.

    `where` contains further fields of the events, such as its name and slot.
    """
    logs.note(f"{who} returned" if returned else f"{who} joined", **where)
    reason = "its stream ended"
    try:
        yield
    except BaseException as raised:
        error = unwrap(raised)
        lost = isinstance(error, (asyncio.CancelledError, grpc.aio.BaseError))
        reason = "it ended its stream, or its connection was lost" if lost else f"{type(error).__name__}: {error}"
        raise
    finally:
        logs.note(f"{who} left", **where, reason=reason)


def unwrap(error: BaseException) -> BaseException:
    """Returns the first error of an exception group, because tasks that fail together have one cause."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
