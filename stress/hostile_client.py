"""Sends forged requests at a bounded rate from a process with the lowest priority, and prints the answers as JSON.

Every call has a deadline. A call that reaches it counts as hung. Called by `hostile.py`.
"""

import argparse
import asyncio
import json
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import grpc
import numpy as np

from penstock.rpc.contract import stamped
from penstock.types.replay import SamplingPlan
from penstock.v1 import replay_pb2
from penstock.wire.batches import decode_plan
from stress.support.marked_segments import SCHEMA, MarkedWindows
from tests.support.services.forged_requests import QUICK, SLOW, Forger, Forgery

DEADLINE_S = 20.0
CALLS_AT_ONCE = 128
CALLS_A_CHANNEL = 500
LARGE_BYTES = 60_000
"""Size of a request from which it has a channel of its own: the service refuses all calls of a connection for a while
after it has refused a large message (`rpc.service.Reception`), and would not read the others."""
_UNREAD_S = 3.0
_SILENT_SOCKETS = 32
_NICE = 19

Answers = Counter[tuple[str, str, str]]
"""Number of answers by kind of request, method and status."""


T = TypeVar("T")


class RandomDraws:
    """Choices of a seeded random generator."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def number(self, low: int, high: int) -> int:
        """Returns an integer from `low` to `high`, both included."""
        return int(self._random.integers(low, high, endpoint=True, dtype=np.uint64))

    def one_of(self, *choices: T) -> T:
        """Returns one of the choices."""
        return choices[int(self._random.integers(len(choices)))]

    def bytes(self, size: int) -> bytes:
        """Returns random bytes."""
        return self._random.bytes(size)


def forgeries(seed: int, plan: SamplingPlan, capacity: int) -> Iterator[Forgery]:
    """Yields endless forgeries of all kinds at their frequencies; the same for the same seed."""
    forger = Forger(
        RandomDraws(seed),
        plan,
        capacity=capacity,
        schema=SCHEMA,
        window=lambda slot, incarnation: MarkedWindows(slot, 2, incarnation=incarnation).next(0),
        first_incarnation=1 + 100_000 * seed,
    )
    names, frequencies = zip(*(QUICK | SLOW).items(), strict=True)
    random, shares = np.random.default_rng(seed), np.array(frequencies) / sum(frequencies)
    while True:
        yield forger.makers[names[random.choice(len(names), p=shares)]]()


class HostileClients:
    """The calls of one process, on one event loop."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel, self._calls = self._connect(), 0
        self._at_once = asyncio.Semaphore(CALLS_AT_ONCE)
        self.answers: Answers = Counter()
        self.wrong: list[str] = []
        self.longest_s = 0.0

    async def attack(self, calls: Iterable[Forgery], *, requests: int, per_s: float) -> None:
        """Makes this number of calls at this rate, independent of their answers."""
        started = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for number, forgery in zip(range(requests), calls, strict=False):
                await asyncio.sleep(max(0.0, started + number / per_s - time.monotonic()))
                await self._at_once.acquire()
                tasks.create_task(self._call(forgery))
        await self._channel.close()

    async def _call(self, forgery: Forgery) -> None:
        began = time.monotonic()
        try:
            status, details = await self._answer(forgery)
        except Exception as error:
            status, details = type(error).__name__, str(error)
        finally:
            self._at_once.release()
        if forgery.ending == "done" or (forgery.ending == "open" and forgery.messages):
            self.longest_s = max(self.longest_s, time.monotonic() - began)
        self.answers[forgery.kind, forgery.method.name, status] += 1
        if status not in (forgery.allowed | {"left"}):
            self.wrong.append(f"{forgery.method.name}, {forgery.kind}: {status} ({details[:200]})")

    async def _answer(self, forgery: Forgery) -> tuple[str, str]:
        async with self._channel_for(forgery) as channel:
            compression = grpc.Compression.Gzip if forgery.ending == "gzip" else None
            if not forgery.method.request_stream:
                unary: Any = channel.unary_unary(forgery.method.path)
                return await _status_of(unary(forgery.messages[0], timeout=DEADLINE_S, compression=compression))
            stream: Any = channel.stream_stream(forgery.method.path)
            call = stream(timeout=DEADLINE_S, compression=compression)
            # A call that the service has already ended accepts no more messages; its status is still available.
            with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
                # With the number of the contract, so that its absence is not the reason of a refusal.
                opening = [stamped(message) for message in forgery.messages[:1]]
                for message in (*opening, *forgery.messages[1:]):
                    await call.write(message)
                if forgery.ending == "unread":
                    await asyncio.sleep(_UNREAD_S)
                if forgery.ending in ("done", "gzip"):
                    await call.done_writing()
            if forgery.ending in ("drop", "unread"):
                call.cancel()
                return "left", ""
            return ("left", "") if forgery.ending == "break" else await _status_of(call)

    @asynccontextmanager
    async def _channel_for(self, forgery: Forgery) -> AsyncIterator[grpc.aio.Channel]:
        """Yields the shared channel, renewed from time to time, or a separate one if the call breaks or blocks it."""
        if forgery.ending == "break" or max(map(len, forgery.messages), default=0) > LARGE_BYTES:
            channel = self._connect()
            try:
                yield channel
            finally:
                await channel.close()
            return
        self._calls += 1
        if self._calls % CALLS_A_CHANNEL == 0:
            former, self._channel = self._channel, self._connect()
            # The old channel is closed after its last calls; meanwhile there are two.
            asyncio.get_running_loop().call_later(2 * DEADLINE_S, lambda: asyncio.ensure_future(former.close()))
        yield self._channel

    def _connect(self) -> grpc.aio.Channel:
        own = ("grpc.use_local_subchannel_pool", 1)
        return grpc.aio.insecure_channel(self._address, options=(("grpc.enable_http_proxy", 0), own))


async def _status_of(call: Any) -> tuple[str, str]:
    """Reads all responses of a call and returns its status."""
    try:
        if hasattr(call, "done_writing"):
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return error.code().name, error.details() or ""
    return (await call.code()).name, await call.details()


async def disturb(address: str, until: asyncio.Event) -> int:
    """Opens connections without calls: noise, other protocols, silence, half of a preface.

    Returns their number.
    """
    host, _, port = address.rpartition(":")
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    openings = (
        b"", b"\0" * 64, b"GET / HTTP/1.1\r\n\r\n", preface, preface + b"\0\0\0\4\0\0\0\0\0", preface[:10],
        preface + secrets.token_bytes(200), secrets.token_bytes(2000),
    )  # fmt: skip
    held: list[socket.socket] = []
    count = 0
    while not until.is_set():
        with suppress(OSError):
            connection = socket.create_connection((host, int(port)), timeout=5.0)
            connection.sendall(openings[count % len(openings)])
            held.append(connection)
        count += 1
        if len(held) > _SILENT_SOCKETS:
            held.pop(0).close()
        with suppress(TimeoutError):
            await asyncio.wait_for(until.wait(), 0.1)
    for connection in held:
        connection.close()
    return count


async def main() -> None:
    """Attacks, and prints the answers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", required=True)
    parser.add_argument("--plan", required=True, help="the healthy learner's SamplingPlan, serialised, as hex")
    parser.add_argument("--capacity", type=int, required=True, help="rows of the store")
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--per-s", type=float, required=True)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    os.nice(_NICE)
    plan: SamplingPlan = decode_plan(replay_pb2.SamplingPlan.FromString(bytes.fromhex(arguments.plan)))
    clients, done = HostileClients(arguments.address), asyncio.Event()
    bothering = asyncio.create_task(disturb(arguments.address, done))
    began = time.monotonic()
    await clients.attack(
        forgeries(arguments.seed, plan, arguments.capacity), requests=arguments.requests, per_s=arguments.per_s
    )
    done.set()
    print(
        json.dumps(
            {
                "answers": [[*what, count] for what, count in sorted(clients.answers.items())],
                "wrong": clients.wrong,
                "longest_s": clients.longest_s,
                "seconds": time.monotonic() - began,
                "raw_connections": await bothering,
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main())
