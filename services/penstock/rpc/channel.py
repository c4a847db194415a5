"""Client channels to other services, and the calls on them."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import Message

from penstock.errors import Unavailable
from penstock.machine.addresses import target
from penstock.rpc import direct_offers
from penstock.rpc.contract import check_contract, claimed, contract_of, stamped
from penstock.rpc.direct_offers import Called, Offer
from penstock.rpc.direct_socket import MAX_MESSAGE_BYTES, DirectSocket, SocketEnded
from penstock.rpc.errors import from_rpc
from penstock.rpc.proofs import prove
from penstock.rpc.server import KEEPALIVE
from penstock.rpc.service import CHALLENGE, Method, serialise, unwrap
from penstock.rpc.tls import channel_options, client_credentials
from penstock.security.roles import Role

if TYPE_CHECKING:
    from penstock.security.credentials import Credentials

UNARY_TIMEOUT_S = 5.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_JITTER = random.SystemRandom()
"""Numbers that differ between forked services, and do not come from the global generator, from which environments draw.
"""

_CHALLENGE_S = 5.0
"""Seconds to wait for a challenge, which servers of older contracts do not send; their refusal names the remedy.

A server of this contract that was slow refuses the proof, and the call is made again.
"""

_STATUS_S = 5.0
"""Seconds within which a call ends after its direct socket."""

_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    *KEEPALIVE,
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Despite its name, gRPC's bound on one connection attempt: a busy host takes time, and a dead one never answers.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Peers of a run have loopback or cluster addresses, for which the user's HTTP proxy is not meant.
    ("grpc.enable_http_proxy", 0),
    # gRPC's own retries repeat a call that never left the client at once. On a connection whose keepalive has expired
    # while the process was paused, they end only when another thread removes it, and take all memory meanwhile.
    ("grpc.enable_retries", 0),
)


def connect(address: str, credentials: "Credentials | None" = None, service: Role = "learner") -> grpc.aio.Channel:
    """Returns a channel that connects on first use and reconnects after every break.

    With `credentials` it uses TLS, with the certificate that is current now, and expects a certificate of the role
    `service`.
    """
    if credentials is None:
        return grpc.aio.insecure_channel(target(address), options=_OPTIONS)
    return grpc.aio.secure_channel(
        target(address),
        client_credentials(credentials.current),
        options=(*_OPTIONS, *channel_options(credentials, service)),
    )


class Stream:
    """Client side of a stream. The first message of either side carries the contract number.

    Later messages use a direct socket if the server offers one that can be reached.
    """

    def __init__(self, call: Any, method: Method, key: bytes = b"", called: Called | None = None) -> None:
        """Takes over a call of this method. With a run's `key`, its first request proves that key.

        The stream may move to a direct socket of the server that was `called`.
        """
        self._called = called
        self._call, self._method, self._key, self._begun = call, method, key, False
        self._unchallenged = False
        self._read = method.read_response or method.response.FromString
        self._direct: DirectSocket | None = None
        self._finished = False
        self._opened = asyncio.Event()
        # A request must not be sent by gRPC after its requests have been ended for those in the direct socket.
        self._writing = asyncio.Lock()
        self._responses = self._checked()

    async def is_local(self) -> bool:
        """Waits for the first response. Returns whether the stream has moved to a socket of this host by then."""
        await self._opened.wait()
        return self._direct is not None and self._direct.is_local

    async def write(self, message: Message | bytes) -> None:
        """Sends the next request."""
        async with self._writing:
            if self._direct is not None:
                await self._direct.write(serialise(message))
                return
            begun, self._begun = self._begun, True
            if begun:
                await self._call.write(message)
                return
            if self._key:
                assert isinstance(message, Message)
                prove(self._method, await self._challenge(), message, self._key)
            await self._call.write(stamped(message))

    def write_now(self, messages: Sequence[bytes]) -> bool:
        """Sends the next requests at once, from any thread, if the stream has moved to a direct socket with room.

        Returns False if it does neither. Raises `SocketEnded` if it has ended. The caller must write nothing else
        meanwhile.
        """
        if self._direct is None or self._direct.is_behind:
            return False
        for message in messages:
            self._direct.send(message)
        return True

    async def done_writing(self) -> None:
        """Signals that no more requests follow."""
        async with self._writing:
            self._finished = True
            if self._direct is not None:
                self._direct.finish()
            else:
                await self._call.done_writing()

    def cancel(self) -> None:
        """Cancels the stream."""
        self._call.cancel()
        if self._direct is not None:
            self._direct.close()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._responses

    async def _challenge(self) -> bytes:
        sent: dict[str, str | bytes] = {}
        try:
            async with asyncio.timeout(_CHALLENGE_S):
                # A mapping whose keys are pairs, in older releases of gRPC.
                sent = dict(tuple(await self._call.initial_metadata()))
        except TimeoutError:
            self._unchallenged = True
        try:
            return bytes.fromhex(str(sent.get(CHALLENGE, "")))
        except ValueError:
            return b""

    async def _checked(self) -> AsyncIterator[Any]:
        """Yields the responses.

        Raises `ConfigurationError` if the server uses another contract, or `Unavailable` if it refuses a proof that was
        made without its challenge.
        """
        received = by_grpc = 0
        responses = aiter(self._call)
        try:
            async for response in responses:
                received += 1
                if received == 1:
                    check_contract(contract_of(response), "the server")
                    by_grpc = await self._move()
                    self._opened.set()
                yield response
                if received == by_grpc:
                    break
        except grpc.aio.AioRpcError as error:
            if self._unchallenged and error.code() == grpc.StatusCode.PERMISSION_DENIED:
                raise Unavailable(f"the server sent no challenge within {_CHALLENGE_S:.0f} s") from None
            raise
        if self._direct is not None:
            while (data := await self._direct.read()) is not None:
                yield self._read(data)
            try:
                async with asyncio.timeout(_STATUS_S):
                    # Raises the call's error, if it ended with one.
                    await anext(responses, None)
            except TimeoutError:
                raise SocketEnded("the server ended the direct socket and not the call") from None

    async def _move(self) -> int:
        """Moves the stream to the server's direct socket, if possible.

        Returns the number of responses that come by gRPC; 0 if all do.
        """
        offer = Offer.of(tuple(await self._call.initial_metadata()))
        connected = (
            await direct_offers.connect(offer, self._called) if offer is not None and self._called is not None else None
        )
        if connected is None:
            return 0
        direct, by_grpc = connected
        # The end of a call by its keepalive, for example, must also end the wait for messages.
        self._call.add_done_callback(lambda call: direct.close_soon())
        async with self._writing:
            self._direct = direct
            if self._finished:
                direct.finish()
            else:
                await self._call.done_writing()
        return by_grpc


def open_stream(
    channel: grpc.aio.Channel,
    method: Method,
    called: Called | None = None,
    *,
    identity: int = 0,
    key: bytes = b"",
    wait_for_ready: bool = True,
) -> Stream:
    """Opens a bidirectional stream, which waits until the peer is reachable unless `wait_for_ready` is False.

    It may move to a direct socket if what the channel has `called` is given. `identity` identifies the service. With a
    run's `key`, the first request proves that key.
    """
    read = method.read_response or method.response.FromString
    call = channel.stream_stream(method.path, request_serializer=serialise, response_deserializer=read)
    metadata = (*(called.metadata() if called is not None else ()), *claimed(identity))
    return Stream(call(wait_for_ready=wait_for_ready, metadata=metadata), method, key, called)


async def call_unary(
    channel: grpc.aio.Channel,
    method: Method,
    request: Any,
    peer: str,
    timeout_s: float = UNARY_TIMEOUT_S,
    identity: int = 0,
    *,
    certified: bool = True,
) -> Any:
    """Makes a unary call with a deadline to the service with this identity. Raises its error, or `Unavailable`.

    `certified` is as for `translated`.
    """
    call = channel.unary_unary(
        method.path, request_serializer=serialise, response_deserializer=method.response.FromString
    )
    async with translated(peer, certified=certified):
        return await call(request, timeout=timeout_s, metadata=claimed(identity))


@asynccontextmanager
async def translated(peer: str, *, certified: bool = True) -> AsyncIterator[None]:
    """Translates gRPC's errors, and exception groups, into Penstock's errors.

    `certified` is whether the client has a certificate, on which the reason of a failed connection depends.
    """
    try:
        yield
    except Exception as raised:
        error = unwrap(raised)
        if isinstance(error, grpc.aio.AioRpcError):
            raise from_rpc(error, peer, certified=certified) from None
        if isinstance(error, (asyncio.InvalidStateError, StopAsyncIteration, SocketEnded)):
            # Raised by a write to or a read from a call that has just ended.
            raise Unavailable(f"{peer} ended the call") from None
        raise error from None


async def connected(channel: grpc.aio.Channel, timeout_s: float, *, once: bool) -> bool:
    """Waits until a channel is connected. Returns False after `timeout_s`, or with `once` after a failed attempt."""
    try:
        async with asyncio.timeout(timeout_s):
            while (state := channel.get_state(try_to_connect=True)) != grpc.ChannelConnectivity.READY:
                if once and state == grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                    return False
                await channel.wait_for_state_change(state)
    except TimeoutError:
        return False
    return True


async def exchange(
    call: Stream,
    opening: Message,
    *,
    beside: Sequence[Callable[[], Coroutine[Any, Any, None]]],
    take: Callable[[Any], None],
) -> None:
    """Runs a stream until it ends: writes its opening, then runs coroutines `beside` it and calls `take` per response.

    An error in any of them ends the stream.
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
    """Growing pauses between attempts, with jitter so that many clients do not reconnect at once."""

    def __init__(self) -> None:
        self._pause_s = _FIRST_PAUSE_S

    @property
    def is_first(self) -> bool:
        """Whether there has been no pause since the start or the last success."""
        return self._pause_s == _FIRST_PAUSE_S

    def reset(self) -> None:
        """Makes the next pause short again, after a success."""
        self._pause_s = _FIRST_PAUSE_S

    def next_s(self) -> float:
        """Returns the next pause in seconds."""
        pause = self._pause_s
        self._pause_s = min(2.0 * pause, _LONGEST_PAUSE_S)
        return pause * _JITTER.uniform(0.5, 1.0)
