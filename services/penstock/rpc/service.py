"""How servicers' methods become gRPC handlers: with metrics, and with errors mapped, in one place."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from penstock.errors import ConfigurationError, InvalidSegment, Overloaded, PenstockError
from penstock.rpc.contract import CONTRACT, check_contract, contract_of, stamped
from penstock.rpc.errors import to_status, trailing_metadata
from penstock.telemetry import logs, metrics

_OPENING_TIMEOUT_S = 10.0
_CANCELLATION_DELAY_S = 0.005
"""The requests of a stream end alike when its client is done and when it gave up; gRPC tells which this much later."""

_GONE_S = 1.0
"""Where nothing can be read or written any more, gRPC cancels the call within milliseconds."""

T = TypeVar("T")
if TYPE_CHECKING:
    ServicerContext = grpc.aio.ServicerContext[Any, Any]
    Handler = grpc.RpcMethodHandler[Any, Any]
else:
    # The types of grpcio are generic in its stubs alone.
    ServicerContext, Handler = grpc.aio.ServicerContext, grpc.RpcMethodHandler


class Context:
    """A call as servicers see it. The first message of a stream carries the number of the contract.

    Attributes:
        call: As gRPC has it.
    """

    def __init__(self, call: ServicerContext) -> None:
        self.call, self._contract, self._begun = call, CONTRACT, False

    def peer(self) -> str:
        """The client's address."""
        return self.call.peer()

    def open(self, first: Any) -> None:
        """Checks the first request. Raises `ConfigurationError`: the client goes by another contract."""
        number = contract_of(first)
        try:
            check_contract(number, "the client")
        except ConfigurationError as error:
            logs.note("refused a client", peer=self.peer(), reason=str(error))
            raise
        self._contract = number

    async def write(self, message: Message | bytes) -> None:
        """Sends the next response of a stream."""
        begun, self._begun = self._begun, True
        await self.call.write(message if begun else stamped(message, self._contract))


@dataclass(frozen=True, slots=True)
class Method:
    """One RPC of the contract.

    Attributes:
        service: Full name of its service.
        name: Its name.
        request, response: The messages.
        read_request, read_response: How bytes are parsed where protobuf's own way would copy payloads.
        request_stream, response_stream: Which sides stream.
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
        """As it stands in HTTP/2."""
        return f"/{self.service}/{self.name}"

    @property
    def kind(self) -> str:
        """unary, bidi_stream and the like, for metrics."""
        if self.request_stream and self.response_stream:
            return "bidi_stream"
        return "client_stream" if self.request_stream else "server_stream" if self.response_stream else "unary"


class Capacity:
    """How many calls a server answers at once. On one event loop."""

    def __init__(self, most: int) -> None:
        self._most, self._calls = most, 0

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Takes room for one call. Raises `Overloaded` if there is none."""
        if self._calls >= self._most:
            raise Overloaded(f"{self._most} calls are open, and this service answers no more at once")
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1


def serialise(message: Message | bytes) -> bytes:
    """Messages to bytes; what is bytes already goes as it is."""
    return message if isinstance(message, bytes) else message.SerializeToString()


def handler(method: Method, behaviour: Callable[..., Awaitable[Any]], capacity: Capacity) -> Handler:
    """The gRPC handler of a servicer's coroutine: unary (request, context) -> response, server stream
    (request, context), or stream (requests, context). Its calls take room of `capacity`.
    """

    async def observed(request: Any, call: ServicerContext) -> Any:
        context = Context(call)
        labels = (method.kind, method.service, method.name)
        metrics.RPC_STARTED.labels(*labels).inc()
        started, code = time.monotonic(), grpc.StatusCode.CANCELLED
        try:
            read = method.read_request or method.request.FromString
            request = _read_all(request, read, context) if method.request_stream else read(request)
            if method.response_stream and not method.request_stream:
                context.open(request)
            with capacity.taken():
                response = await behaviour(request, context)
            if method.request_stream:
                await asyncio.sleep(_CANCELLATION_DELAY_S)
            code = grpc.StatusCode.CANCELLED if call.cancelled() else grpc.StatusCode.OK
            return response
        except Exception as raised:
            error = unwrap(raised)
            if isinstance(error, DecodeError):
                error = InvalidSegment(f"a malformed message: {error}")
            if isinstance(error, grpc.aio.BaseError):
                # The client is gone, or this server has stopped: gRPC has cancelled this call, or will any moment.
                await _cancellation(_GONE_S)
            if not isinstance(error, PenstockError):
                code = grpc.StatusCode.UNKNOWN
                raise
            code = to_status(error)
            await call.abort(code, str(error), trailing_metadata(error))
        finally:
            metrics.RPC_SECONDS.labels(*labels).observe(time.monotonic() - started)
            metrics.RPC_HANDLED.labels(*labels, code.name).inc()

    if method.request_stream:
        return grpc.stream_stream_rpc_method_handler(observed, response_serializer=serialise)
    if method.response_stream:
        return grpc.unary_stream_rpc_method_handler(observed, response_serializer=serialise)
    return grpc.unary_unary_rpc_method_handler(observed, response_serializer=serialise)


async def _read_all(requests: AsyncIterator[bytes], read: Callable[[bytes], T], context: Context) -> AsyncIterator[T]:
    """Left to itself, gRPC would answer UNKNOWN to bytes that are no message, and nothing would count it."""
    opened = False
    async for request in requests:
        message = read(request)
        if not opened:
            context.open(message)
            opened = True
        yield message


async def opening_message(requests: AsyncIterator[T]) -> T:
    """The first message of a stream. Raises `InvalidSegment` if none comes in time."""
    try:
        async with asyncio.timeout(_OPENING_TIMEOUT_S):
            return await anext(requests)
    except (TimeoutError, StopAsyncIteration):
        raise InvalidSegment(f"a stream must open with a first message within {_OPENING_TIMEOUT_S:.0f} s") from None


async def write_whole(context: Context, message: Message | bytes) -> None:
    """Writes a message to its end even when cancelled: gRPC takes no other, and no status, while it has this one."""
    writing = asyncio.ensure_future(context.write(message))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.gather(writing, return_exceptions=True)
        raise


async def _cancellation(timeout_s: float) -> None:
    """Waits so long for this task to be cancelled. Raises `asyncio.CancelledError`, also if it was so before."""
    task = asyncio.current_task()
    assert task is not None
    # A group whose tasks failed raises their errors even when it was cancelled: then this is the only trace.
    if task.cancelling():
        raise asyncio.CancelledError
    await asyncio.sleep(timeout_s)


@contextlib.contextmanager
def logged_stay(who: str, *, returned: bool, **where: str) -> Iterator[None]:
    """Logs that a peer has come or is back, and when its stream ends, that it has left and why.

    Args:
        who: What kind of peer it is.
        returned: Whether it was here before.
        where: More of it, such as its name and its slot.
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
    """The first error in a group of them: tasks that failed together have one cause."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
