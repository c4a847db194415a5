"""Channels to other services, and how clients come back after a break."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
from google.protobuf.message import Message

from penstock.errors import PeerFailed, PenstockError, Unavailable
from penstock.rpc.contract import check_contract, contract_of, stamped
from penstock.rpc.errors import from_rpc, is_passing
from penstock.rpc.server import KEEPALIVE, MAX_MESSAGE_BYTES
from penstock.rpc.service import Method, serialise, unwrap
from penstock.telemetry import logs, metrics

UNARY_TIMEOUT_S = 5.0
_ABSENCE_S = 3.0
"""Services that start together find one another in less."""
_PEER_FAILURES = 10
"""Streams in a row that a peer ends by an error that it did not expect. A restarted peer may be cured of it."""

_SOUND_S = 60.0
"""A stream that lives for so long shows that the peer works."""

_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    *KEEPALIVE,
    ("grpc.initial_reconnect_backoff_ms", 100),
    # In truth how long an attempt to connect may take: a busy host needs its time, and one that is gone never answers.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Peers of one run are named by loopback or cluster addresses; a proxy of the user's is not meant for them.
    ("grpc.enable_http_proxy", 0),
)


def connect(address: str) -> grpc.aio.Channel:
    """A channel that connects when it is used, and again after every break."""
    return grpc.aio.insecure_channel(address, options=_OPTIONS)


class Stream:
    """A stream of a client. The first message of either side carries the number of the contract."""

    def __init__(self, call: Any) -> None:
        self._call, self._begun = call, False
        self._responses = self._checked()

    async def write(self, message: Message | bytes) -> None:
        """Sends the next request."""
        begun, self._begun = self._begun, True
        await self._call.write(message if begun else stamped(message))

    async def done_writing(self) -> None:
        """Says that no more requests will come."""
        await self._call.done_writing()

    def cancel(self) -> None:
        """Ends the stream."""
        self._call.cancel()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._responses

    async def _checked(self) -> AsyncIterator[Any]:
        """The responses. Raises `ConfigurationError`: the server goes by another contract."""
        opened = False
        async for response in self._call:
            if not opened:
                check_contract(contract_of(response), "the server")
                opened = True
            yield response


def open_stream(channel: grpc.aio.Channel, method: Method, *, wait_for_ready: bool = True) -> Stream:
    """Begins a stream; it waits for the peer to appear, unless told otherwise."""
    call = channel.stream_stream(
        method.path,
        request_serializer=serialise,
        response_deserializer=method.read_response or method.response.FromString,
    )
    return Stream(call(wait_for_ready=wait_for_ready))


def open_responses(channel: grpc.aio.Channel, method: Method, request: Message) -> AsyncIterator[Any]:
    """Begins a stream of responses to one request."""
    call = channel.unary_stream(
        method.path, request_serializer=serialise, response_deserializer=method.response.FromString
    )
    return aiter(Stream(call(stamped(request))))


async def call_unary(
    channel: grpc.aio.Channel, method: Method, request: Any, peer: str, timeout_s: float = UNARY_TIMEOUT_S
) -> Any:
    """A unary call with a deadline. Raises the server's error, or `Unavailable`."""
    call = channel.unary_unary(
        method.path, request_serializer=serialise, response_deserializer=method.response.FromString
    )
    async with translated(peer):
        return await call(request, timeout=timeout_s)


@asynccontextmanager
async def translated(peer: str) -> AsyncIterator[None]:
    """Turns gRPC's errors, and groups of them, into Penstock's."""
    try:
        yield
    except Exception as raised:
        error = unwrap(raised)
        if isinstance(error, grpc.aio.AioRpcError):
            raise from_rpc(error, peer) from None
        if isinstance(error, (asyncio.InvalidStateError, StopAsyncIteration)):
            # A write to, or a read from, a call that has just ended.
            raise Unavailable(f"{peer} ended the call") from None
        raise error from None


async def keep_open(
    channel: grpc.aio.Channel,
    stream: "Callable[[Backoff], Awaitable[None]]",
    *,
    peer: str,
    service: str,
    broken: Callable[[PenstockError], None],
) -> PenstockError:
    """Runs a stream, and runs it again after every break, with growing pauses. Logs why, once for each reason, and
    when the peer has not been there for a while.

    Args:
        channel: On which the stream is opened.
        stream: Opens the stream and lives on it; resets the backoff once it is answered.
        peer: Whom it goes to, for messages.
        service: The same for metrics.
        broken: Called after each break, with its reason.

    Returns:
        The error that no retry can cure.
    """
    absence = asyncio.create_task(_note_absence(channel, peer))
    try:
        return await _keep_open(stream, peer, service, broken)
    finally:
        absence.cancel()
        await asyncio.wait([absence])


async def _keep_open(
    stream: "Callable[[Backoff], Awaitable[None]]",
    peer: str,
    service: str,
    broken: Callable[[PenstockError], None],
) -> PenstockError:
    backoff, reconnections, noted, failures = Backoff(), metrics.RECONNECTIONS.labels(service), "", 0
    while True:
        began = time.monotonic()
        try:
            async with translated(peer):
                await stream(backoff)
            error: PenstockError = Unavailable(f"{peer} ended the stream")
        except PenstockError as raised:
            error = raised
        except Exception as raised:
            # Nobody awaits this task: a mistake of ours must reach the caller like any other failure.
            error = PenstockError(f"the stream to {peer} failed with {type(raised).__name__}: {raised}")
        broken(error)
        if time.monotonic() - began > _SOUND_S:
            failures = 0
        failures += isinstance(error, PeerFailed)
        if not is_passing(error):
            return error
        if failures >= _PEER_FAILURES:
            return PenstockError(f"gave up after {failures} attempts: {error}")
        reconnections.inc()
        if backoff.is_first or str(error) != noted:
            noted = str(error)
            logs.note("trying again", reason=noted)
        await asyncio.sleep(backoff.next_s())


async def _note_absence(channel: grpc.aio.Channel, peer: str) -> None:
    """Logs when a peer has not been there for a while, and when it is again; until the channel is closed."""
    with suppress(grpc.aio.UsageError):
        while True:
            try:
                async with asyncio.timeout(_ABSENCE_S):
                    await _await_peer(channel)
            except TimeoutError:
                logs.note("waiting", reason=f"{peer} can't be reached")
                await _await_peer(channel)
                logs.note("reached", peer=peer)
            await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)


async def _await_peer(channel: grpc.aio.Channel) -> None:
    while (state := channel.get_state()) != grpc.ChannelConnectivity.READY:
        await channel.wait_for_state_change(state)


async def exchange(
    call: Stream,
    opening: Message,
    *,
    beside: Sequence[Callable[[], Coroutine[Any, Any, None]]],
    take: Callable[[Any], None],
) -> None:
    """Lives on a stream until it ends: sends its opening, then writes and reads side by side.

    Args:
        call: From `open_stream`.
        opening: The first request.
        beside: Coroutines that run for as long as the stream lasts; what they raise ends it.
        take: Called with every response; what it raises ends the stream.
    """
    try:
        await call.write(opening)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run()) for run in beside]
            async for response in call:
                take(response)
            for task in tasks:
                task.cancel()
    finally:
        call.cancel()


class Backoff:
    """Growing pauses between attempts, with jitter so that many clients do not come back at once."""

    def __init__(self, first_s: float = 0.1, longest_s: float = 2.0) -> None:
        self._first_s, self._longest_s = first_s, longest_s
        self._pause_s = first_s

    @property
    def is_first(self) -> bool:
        """Whether there was no pause yet, or none since the last success."""
        return self._pause_s == self._first_s

    def reset(self) -> None:
        """After a success: the next pause is short again."""
        self._pause_s = self._first_s

    def next_s(self) -> float:
        """The next pause, in seconds."""
        pause = self._pause_s
        self._pause_s = min(2.0 * pause, self._longest_s)
        return pause * random.uniform(0.5, 1.0)
