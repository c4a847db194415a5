"""Connection of a client to one service: unary calls, and a stream that reopens after every break.

A service may have several names, and others after it has moved. A client tries them in order until one answers.
"""

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

import grpc

from penstock.errors import PeerFailed, PenstockError, Unavailable
from penstock.machine.addresses import Address
from penstock.machine.system_errors import exhaustion
from penstock.rpc import methods
from penstock.rpc.channel import (
    UNARY_TIMEOUT_S,
    Backoff,
    Stream,
    call_unary,
    connect,
    connected,
    open_stream,
    translated,
)
from penstock.rpc.clients.absence import Absence
from penstock.rpc.direct_offers import Called
from penstock.rpc.errors import is_passing
from penstock.rpc.loop import LoopThread
from penstock.rpc.proofs import prove
from penstock.rpc.service import Method
from penstock.telemetry import logs, metrics
from penstock.types.location import Place

if TYPE_CHECKING:
    from penstock.security.certificate import Certificate


Names = Callable[[], Place]
"""Function that returns where a service is now. It may read a file.

Raises `NotReady` if that is not known yet, or `RunFinished` if the service will not return."""

Peer = str | Sequence[str] | Place | Names
"""An address, several in order of preference, a place, or a function that returns one."""


_PEER_FAILURES = 10
"""Unexpected errors of a peer after which the client gives up. A restart of the peer may help before that."""

_SOUND_S = 60.0
"""Seconds after which a stream counts as sound, which resets the peer's failures."""

_ATTEMPT_S = 1.0
"""Seconds of the wait for a service with one name, whose channel keeps trying, until its name is read again."""

_EACH_NAME_S = 2.0
"""Seconds of the attempt at one of several names; gRPC's own bound on one attempt."""

_CANCELLED_S = 1.0

_SERVICES = {"replay": "the replay service", "learner": "the learner"}


def place_of(peer: str | Sequence[str] | Place) -> Place:
    """Returns the place of a service that does not move."""
    if isinstance(peer, Place):
        return peer
    return Place((peer,) if isinstance(peer, str) else tuple(peer))


class Connection:
    """Channel to one service, used on a loop thread. Metrics label the service, and messages name it `peer`.

    Attributes:
        address: Address of the present channel; empty before the first one.
        identity: Identity of the service to which calls are made; 0: unknown.
        channel: Present channel. It exists once `reach` or `attempt` has returned.
    """

    channel: grpc.aio.Channel

    def __init__(self, thread: LoopThread, service: Literal["replay", "learner"], peer: Peer) -> None:
        """Prepares the connection, which is made on first use."""
        self.thread, self.service = thread, service
        self._read = peer if callable(peer) else None
        self._known = Place() if callable(peer) else place_of(peer)
        self.address, self.identity = "", 0
        self._presented: Certificate | None = None
        self._answers = self._refused = False

    @property
    def peer(self) -> str:
        """The service and its address, or all its addresses while it is not known which one answers."""
        places = self.address if self._answers else " or ".join(self._known.addresses)
        return f"{_SERVICES[self.service]} at {places}" if places else _SERVICES[self.service]

    @property
    def certified(self) -> bool:
        """Whether the present channel has a certificate."""
        return self._presented is not None

    async def attempt(self) -> bool:
        """Tries to connect to each of the present names. Returns whether one of them answers.

        It closes the channel to a name that does not, unless there is only one. Raises as `Names`.
        """
        names = await self._names()
        several = len(names) > 1
        for name in names:
            await self._dial(name)
            self._answers = await connected(self.channel, _EACH_NAME_S if several else _ATTEMPT_S, once=several)
            if self._answers:
                return True
        return False

    async def reach(self) -> grpc.aio.Channel:
        """Returns the channel to the first of several names that answers, and to a single name at once.

        Raises `Unavailable` if none answers, or as `Names`.
        """
        names = await self._names()
        if len(names) == 1:
            await self._dial(names[0])
        elif not await self.attempt():
            raise Unavailable(f"{self.peer} can't be reached: it is not listening yet, or it has ended; see its log")
        return self.channel

    def call(self, method: Method, timeout_s: float = UNARY_TIMEOUT_S, key: bytes = b"", **request: Any) -> Any:
        """Makes a unary call with these values, which proves the run's `key` if there is one.

        Raises the server's error, or `Unavailable` after `timeout_s`.
        """
        message = method.request(**request)
        if key:
            prove(method, b"", message, key)
        return self.thread.run(self._call(method, message, timeout_s))

    async def _call(self, method: Method, request: Any, timeout_s: float) -> Any:
        channel, self._refused = await self.reach(), True
        answer = await call_unary(
            channel, method, request, self.peer, timeout_s, self.identity, certified=self.certified
        )
        self._refused = False
        return answer

    @asynccontextmanager
    async def streaming(self, method: Method, key: bytes = b"") -> AsyncIterator[Stream]:
        """Opens a stream of this method for the block, which proves the run's `key` if there is one. Runs on the loop.

        Raises `Unavailable` if the service can't be reached, or the server's error.
        """
        channel = await self.reach()
        async with translated(self.peer, certified=self.certified):
            call = open_stream(channel, method, identity=self.identity, key=key, wait_for_ready=False)
            try:
                yield call
            finally:
                call.cancel()

    @asynccontextmanager
    async def answered_within(self, timeout_s: float) -> AsyncIterator[None]:
        """Raises `Unavailable` if the block takes longer than `timeout_s`. Runs on the loop."""
        try:
            async with asyncio.timeout(timeout_s):
                yield
        except TimeoutError:
            raise Unavailable(f"{self.peer} sent nothing for {timeout_s:.0f} s") from None

    def close(self) -> None:
        """Closes the channel."""
        self.thread.run(self._hang_up())

    async def _names(self) -> Sequence[str]:
        """Returns the present names, the one in use first, or last if its service has refused the last call."""
        if self._read is not None:
            # A file on a shared disk may block.
            self._known = await asyncio.to_thread(self._read)
        self.identity = self._known.identity
        return sorted(self._known.addresses, key=lambda name: (name == self.address) == self._refused)

    async def _dial(self, address: str) -> None:
        """Replaces the channel by one to this address, unless it is the present one, with the present certificate.

        Raises `Unavailable` while the certificate has expired.
        """
        credentials = self.thread.credentials
        if credentials is not None:
            credentials.check(time.time())
        current = None if credentials is None else credentials.current
        if address != self.address or current is not self._presented:
            await self._hang_up()
            # gRPC ties a channel to the loop on which it is created.
            self.address, self._presented = address, current
            self.channel = connect(address, credentials, self.service)

    async def _hang_up(self) -> None:
        if self.address:
            self.address, self._answers = "", False
            await self.channel.close()


class PersistentStream(Connection):
    """Stream that runs on a loop thread, reopens after every break, and ends with an error that no retry can fix.

    It owns this error and the lock of its client.

    Attributes:
        changed: Condition that guards the state shared by the stream and the client's user. Notify it of every change.
    """

    def __init__(
        self,
        thread: LoopThread,
        service: Literal["replay", "learner"],
        peer: Peer,
        run: Callable[[Backoff], Awaitable[None]],
        *,
        broken: Callable[[PenstockError], None] = lambda error: None,
        ended: Callable[[PenstockError], None] = lambda error: None,
        changed: threading.Condition | None = None,
        give_up_after_s: float = math.inf,
    ) -> None:
        """Prepares the stream, as `Connection` does. `open` starts it.

        `run` opens the stream, resets the backoff at the first answer, and runs the stream to its end. `broken` is
        called after each break with its reason, and `ended` with the error that ended the stream for good, all on the
        loop. Several streams may share one condition `changed`. The stream ends for good after `give_up_after_s`
        without an answer of the service.
        """
        super().__init__(thread, service, peer)
        self._run, self._broken, self._ended = run, broken, ended
        self.changed = changed or threading.Condition()
        self._give_up_after_s = give_up_after_s
        self._failure: PenstockError | None = None
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Starts the stream. Must not be called on the loop."""
        self._task = self.thread.spawn(self._keep_open())

    def restart(self) -> None:
        """Cancels the stream and starts it again. Must be called on the loop."""
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.create_task(self._keep_open())

    def open_stream(self, method: Method, *, direct: bool = True, key: bytes = b"") -> Stream:
        """Opens a stream of this method at the present address, which proves the run's `key` if there is one.

        It may move to a direct socket if `direct` is true.
        """
        called = Called(self.address, self.service, self.thread.credentials) if direct else None
        return open_stream(self.channel, method, called, identity=self.identity, key=key, wait_for_ready=False)

    async def reach(self) -> grpc.aio.Channel:
        """Returns the stream's channel. Raises `Unavailable` if there is none."""
        if not self.address:
            raise Unavailable(f"{self.peer} can't be reached")
        return self.channel

    def check(self) -> None:
        """Raises the error that ended the stream for good, if any. The caller holds `changed`."""
        if self._failure is not None:
            raise self._failure

    def wait_for(self, condition: Callable[[], object], timeout_s: float) -> None:
        """Waits until the condition holds, the stream has ended or the time is over. The caller holds `changed`."""
        self.changed.wait_for(lambda: condition() or self._failure, timeout_s)

    def close(self) -> None:
        """Ends the stream and closes the channel. Later calls of `check` raise `Unavailable`."""
        self._fail(Unavailable(f"the stream to {self.peer} was closed"))
        self.thread.run(self._cancel())
        super().close()

    async def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            # It may be replacing the channel.
            await asyncio.wait([self._task], timeout=_CANCELLED_S)

    def _fail(self, error: PenstockError) -> None:
        with self.changed:
            self._failure = self._failure or error
            self.changed.notify_all()

    async def _keep_open(self) -> None:
        error = await self._reopen(Absence(self._give_up_after_s))
        self._fail(error)
        self._ended(error)

    async def _reopen(self, absence: Absence) -> PenstockError:
        """Runs the stream again after every break, with growing pauses. Returns the error that no retry can fix.

        Logs the first reason of each break, and each new kind of error.
        """
        reconnections = metrics.RECONNECTIONS.labels(self.service)
        backoff, noted, failures = Backoff(), PenstockError, 0
        while True:
            began = time.monotonic()
            error = await self._run_once(backoff, absence)
            self._broken(error)
            # Any other error is an answer, and so is the end of a stream that has received one.
            if backoff.is_first or type(error) is not Unavailable:
                absence.heard()
            self._refused = not backoff.is_first
            if time.monotonic() - began > _SOUND_S:
                failures = 0
            failures += isinstance(error, PeerFailed)
            if not is_passing(error):
                return error
            if failures >= _PEER_FAILURES:
                return PenstockError(f"gave up after {failures} attempts: {error}")
            reconnections.inc()
            # The texts of one break differ: a connection is lost, then refused, then timed out.
            if backoff.is_first or type(error) is not noted:
                noted = type(error)
                logs.note("trying again", reason=str(error))
            await asyncio.sleep(backoff.next_s())

    async def _run_once(self, backoff: Backoff, absence: Absence) -> PenstockError:
        try:
            await self._connect(absence)
            async with translated(self.peer, certified=self.certified):
                await self._run(backoff)
        except PenstockError as error:
            return error
        except Exception as error:
            # No code awaits this task, so our own errors must reach the caller like any other failure.
            reason = exhaustion(error) or f"{type(error).__name__}: {error}"
            return PenstockError(f"the stream to {self.peer} failed with {reason}")
        return Unavailable(f"{self.peer} ended the stream")

    async def _connect(self, absence: Absence) -> None:
        """Waits until one of the names answers. Logs the wait, and raises `PenstockError` when it gives up."""
        pause = Backoff()
        absence.began()
        while True:
            reason = ""
            try:
                if await self.attempt():
                    absence.ended(self.peer)
                    return
            except PenstockError as error:
                if not is_passing(error):
                    raise
                reason = str(error)
            if absence.is_due or absence.is_over:
                reason = reason or await self._reason()
                if absence.is_over:
                    raise PenstockError(f"gave up after {absence.seconds:.0f} s: {reason}")
                absence.note(reason)
            if len(self._known.addresses) != 1:
                await asyncio.sleep(pause.next_s())

    async def _reason(self) -> str:
        """Returns why the service at the present address can't be reached, and the checks to make."""
        try:
            await call_unary(
                self.channel,
                methods.CHECK_HEALTH,
                methods.CHECK_HEALTH.request(),
                self.peer,
                _ATTEMPT_S,
                certified=self.certified,
            )
        except PenstockError as error:
            reason = str(error)
        else:
            return f"{self.peer} has just been reached"
        if Address.parse(self.address).is_local:
            return reason
        return f"{reason}; a service whose listen setting is on loopback can't be reached from other hosts"
