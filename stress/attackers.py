"""The attacks of `attacks.py`, and the client processes that make them at equal priority.

python -m stress.attackers NUMBER TARGET

A client reads "begin NAME" and "end" from its standard input, and answers "end" with the number of its requests. TARGET
is a `Target` as JSON.
"""

import argparse
import itertools
import json
import secrets
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from penstock.errors import PenstockError
from penstock.replay.store.description import read_schema
from penstock.rpc import methods
from penstock.rpc.clients.snapshots import SnapshotClient
from penstock.rpc.contract import stamped
from penstock.rpc.health import blocking_channel
from penstock.rpc.loop import LoopThread
from penstock.rpc.proofs import prove
from penstock.rpc.service import Method
from penstock.security.authority import files_of
from penstock.security.credentials import Credentials
from penstock.types.block import Schema
from penstock.types.run import KEY_BYTES, RunIdentity, Weights
from penstock.types.snapshots import SnapshotRequest
from penstock.types.spaces import EnvironmentSpec
from penstock.v1 import replay_pb2, run_pb2
from penstock.wire.batches import encode_plan
from penstock.wire.schema import encode_schema
from penstock.wire.spaces import encode_environment
from penstock.wire.windows import encode_window
from stress.healthy_pair import plan_of
from tests.support.environments import paced
from tests.support.environments.made import make_environments
from tests.support.segments.segments import make_window

CLIENTS = 4
ENVIRONMENT = paced.PACED
CONTROL = "no request: the clients compute"
"""What takes as much of the processors as any attack, and nothing of the services."""

_Service = Literal["replay", "learner"]
_BOTH: tuple[_Service, ...] = ("replay", "learner")
_CALL_S = 3.0
_SLOT = 200
"""First slot of the attackers' actors; the healthy actor has slot 0."""
_GUESS = 10**6
"""Version beyond that of the healthy learner."""
_LARGE = 3_900_000
"""Bytes of a large message, just below the limit of gRPC's messages."""
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"


@dataclass(frozen=True, slots=True)
class Target:
    """The services under attack, and what the attacker has.

    Attributes:
        replay, learner: Their addresses.
        replay_metrics, learner_metrics: Addresses of their metrics.
        store: Folder of the store, from which the attacker knows the schema.
        run: Number of the run.
        key: Key of the run in hexadecimal, from which the attacker's tokens are made.
        certificate: The attacker's certificate, of an actor; empty: the services have no certificates.
    """

    replay: str
    learner: str
    replay_metrics: str
    learner_metrics: str
    store: str
    run: int
    key: str
    certificate: str = ""


class Client:
    """One attacking client, of a number of its own."""

    def __init__(self, number: int, target: Target) -> None:
        self.number, self.target = number, target
        self.identity = RunIdentity(target.run, bytes.fromhex(target.key))
        self.slot = _SLOT + 10 * number
        self.schema: Schema = read_schema(Path(target.store))
        self.spec: EnvironmentSpec = make_environments(ENVIRONMENT, 1, kwargs={}).spec
        files = files_of(Path(target.certificate).parent) if target.certificate else None
        self.credentials = None if files is None else Credentials(files, "actor")
        self.garbage = secrets.token_bytes(_LARGE)

    def channel(self, service: _Service) -> grpc.Channel:
        """Opens a channel without our clients' code for calls."""
        return blocking_channel(getattr(self.target, service), self.credentials, service)

    def channels(self, stack: ExitStack) -> dict[_Service, grpc.Channel]:
        """Opens a channel to each service."""
        return {service: stack.enter_context(self.channel(service)) for service in _BOTH}

    def socket(self, address: str) -> socket.socket:
        """Opens a connection."""
        host, _, port = address.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=_CALL_S)

    def append(self, slot: int, incarnation: int) -> replay_pb2.AppendSegmentsRequest:
        """Returns the opening message of an actor's stream."""
        opening = replay_pb2.OpenAppend(
            schema=encode_schema(self.schema),
            slot=slot,
            incarnation=incarnation,
            window_segments=2,
            run=self.identity.number,
            replay_token=self.identity.token(slot, incarnation),
        )
        return replay_pb2.AppendSegmentsRequest(open=opening)

    def hello(self, environment: run_pb2.EnvironmentSpec) -> run_pb2.JoinRequest:
        """Returns the opening message of a new actor."""
        hello = run_pb2.Hello(schema=encode_schema(self.schema), environment=environment, environments=2)
        return run_pb2.JoinRequest(hello=hello)


def call(channel: grpc.Channel, method: Method, message: Message | bytes) -> None:
    """Makes a unary call, whatever its answer."""
    data = message if isinstance(message, bytes) else message.SerializeToString()
    unary: Any = channel.unary_unary(method.path)
    with suppress(grpc.RpcError):
        unary(data, timeout=_CALL_S)


def send_all(channel: grpc.Channel, method: Method, *messages: Message | bytes, answers: int | None = None) -> None:
    """Sends these messages on one stream, half-closes it, and reads this many answers, or all."""
    data = [message if isinstance(message, bytes) else message.SerializeToString() for message in messages]
    stream: Any = channel.stream_stream(method.path)
    with suppress(grpc.RpcError):
        calling = stream(iter([stamped(data[0]), *data[1:]]), timeout=_CALL_S)
        for _ in itertools.islice(calling, answers):
            pass
        calling.cancel()


def version_of(channel: grpc.Channel) -> int:
    """Returns the version of the replay service; a guess where only others may ask for it."""
    method = methods.GET_REPLAY_STATUS
    ask: Any = channel.unary_unary(method.path, response_deserializer=method.response.FromString)
    try:
        return int(ask(b"", timeout=_CALL_S).version)
    except grpc.RpcError:
        return _GUESS


# Each attack yields the number of its requests since the last one, until it is closed.

_UNARY: tuple[tuple[_Service, Method], ...] = (
    ("replay", methods.COMMIT_BATCH),
    ("replay", methods.GET_REPLAY_STATUS),
    ("replay", methods.FINISH_RUN),
    ("learner", methods.GET_RUN_STATUS),
)
_STREAMS: tuple[tuple[_Service, Method], ...] = (
    ("replay", methods.APPEND_SEGMENTS),
    ("learner", methods.JOIN),
    ("replay", methods.SAMPLE_BATCHES),
    ("learner", methods.RUN_EVALUATIONS),
)


def compute(client: Client) -> Iterator[int]:
    """Computes, and sends nothing."""
    while True:
        sum(range(10_000))
        yield 0


def status_calls(client: Client) -> Iterator[int]:
    """Asks for the status of both services, and for their health."""
    with ExitStack() as stack:
        channels = client.channels(stack)
        asked: list[tuple[_Service, Method]] = [
            ("replay", methods.GET_REPLAY_STATUS),
            ("learner", methods.GET_RUN_STATUS),
            *((service, methods.CHECK_HEALTH) for service in _BOTH),
        ]
        for service, method in itertools.cycle(asked):
            call(channels[service], method, b"")
            yield 1


def large_calls(client: Client) -> Iterator[int]:
    """Sends 3.9 MB of garbage to unary methods."""
    with ExitStack() as stack:
        channels = client.channels(stack)
        for service, method in itertools.cycle(_UNARY):
            call(channels[service], method, client.garbage)
            yield 1


def large_commits(client: Client) -> Iterator[int]:
    """Sends 3.9 MB of garbage to CommitBatch."""
    with client.channel("replay") as channel:
        while True:
            call(channel, methods.COMMIT_BATCH, client.garbage)
            yield 1


def large_streams(client: Client) -> Iterator[int]:
    """Opens streams with 3.9 MB of garbage."""
    with ExitStack() as stack:
        channels = client.channels(stack)
        for service, method in itertools.cycle(_STREAMS):
            send_all(channels[service], method, client.garbage)
            yield 1


def malformed_streams(client: Client) -> Iterator[int]:
    """Opens streams with 200 bytes of garbage."""
    with ExitStack() as stack:
        channels = client.channels(stack)
        for service, method in itertools.cycle(_STREAMS):
            send_all(channels[service], method, secrets.token_bytes(200))
            yield 1


def malformed_joins(client: Client) -> Iterator[int]:
    """Joins without the spaces of an environment."""
    with client.channel("learner") as channel:
        while True:
            send_all(channel, methods.JOIN, client.hello(run_pb2.EnvironmentSpec()))
            yield 1


def joins(client: Client) -> Iterator[int]:
    """Joins as a new actor of the run, and leaves."""
    with client.channel("learner") as channel:
        while True:
            send_all(channel, methods.JOIN, client.hello(encode_environment(client.spec)), answers=1)
            yield 1


def _connections(client: Client, addresses: tuple[str, ...], count: int, beat: bytes) -> Iterator[int]:
    """Holds connections, each of which sends `beat` every second, and opens closed ones again."""
    held: list[socket.socket | None] = [None] * count
    try:
        for number in itertools.cycle(range(count)):
            made, connection = 0, held[number]
            try:
                if connection is None:
                    connection = held[number] = client.socket(addresses[number % len(addresses)])
                    made = 1
                if beat:
                    connection.sendall(beat)
                    made = 1
                connection.setblocking(False)
                with suppress(BlockingIOError):
                    if not connection.recv(4_096):
                        raise ConnectionResetError
            except OSError:
                if connection is not None:
                    connection.close()
                held[number] = None
            yield made
            time.sleep(1.0 / count)
    finally:
        for connection in held:
            if connection is not None:
                connection.close()


def idle_connections(client: Client) -> Iterator[int]:
    """Holds connections that send nothing."""
    return _connections(client, (client.target.replay, client.target.learner), 1_100 // CLIENTS, b"")


def slow_bytes(client: Client) -> Iterator[int]:
    """Holds connections that send one byte a second."""
    return _connections(client, (client.target.replay, client.target.learner), 1_000 // CLIENTS, b"P")


def idle_scrapers(client: Client) -> Iterator[int]:
    """Holds connections to the metrics ports that send nothing."""
    return _connections(client, (client.target.replay_metrics, client.target.learner_metrics), 500 // CLIENTS, b"")


def connections(client: Client) -> Iterator[int]:
    """Connects, sends the preface of HTTP/2, and leaves."""
    for address in itertools.cycle((client.target.replay, client.target.learner)):
        with suppress(OSError), closing(client.socket(address)) as connection:
            connection.sendall(_PREFACE)
        yield 1


def scrapes(client: Client) -> Iterator[int]:
    """Scrapes the metrics of both services."""
    for address in itertools.cycle((client.target.replay_metrics, client.target.learner_metrics)):
        with suppress(OSError), urllib.request.urlopen(f"http://{address}/metrics", timeout=_CALL_S) as answer:
            answer.read()
        yield 1


def health_watches(client: Client) -> Iterator[int]:
    """Holds streams that watch the services' health, and opens refused ones again."""
    with ExitStack() as stack:
        stubs: list[Any] = [health_pb2_grpc.HealthStub(each) for each in client.channels(stack).values()]
        watches: list[Any] = [None] * (400 // CLIENTS)
        for number in itertools.cycle(range(len(watches))):
            if watches[number] is None or watches[number].done():
                watches[number] = stubs[number % 2].Watch(health_pb2.HealthCheckRequest())
                yield 1
            time.sleep(0.002)
            yield 0


def snapshots(client: Client) -> Iterator[int]:
    """Requests snapshots under new names, also after they are refused."""
    thread = LoopThread(client.credentials)
    taking = SnapshotClient(thread, client.target.replay)
    try:
        for number in itertools.count():
            with suppress(PenstockError, TimeoutError):
                request = SnapshotRequest(f"x{client.number}-{number}", 0, automatic=False)
                thread.run(taking.take(request, Weights.of(0, b"policy")), _CALL_S)
            yield 1
    finally:
        taking.close()
        thread.close()


def plans(client: Client) -> Iterator[int]:
    """Sends plans of other sessions with the proof of a guessed key, from the next version to a very late one."""
    with client.channel("replay") as channel:
        for ahead in itertools.cycle((10, 1_000, 10**15)):
            plan = encode_plan(plan_of(identity=client.identity))
            plan.next_batch, plan.session = version_of(channel) + ahead, secrets.randbits(62) | 1
            request = replay_pb2.SampleBatchesRequest(plan=plan)
            prove(methods.SAMPLE_BATCHES, bytes(32), request, bytes(KEY_BYTES))
            send_all(channel, methods.SAMPLE_BATCHES, request)
            yield 2


def future_versions(client: Client) -> Iterator[int]:
    """Sends windows of versions that the learner has not published."""
    with client.channel("replay") as channel:
        for number in itertools.count():
            slot = client.slot + number % 10
            version = version_of(channel) + (990 if number % 2 else 10**15)
            window = make_window(slot=slot, version=version, schema=client.schema)
            send_all(channel, methods.APPEND_SEGMENTS, client.append(slot, 1), *encode_window(window))
            yield 2


def incarnations(client: Client) -> Iterator[int]:
    """Uses the healthy actor's slot with the largest valid incarnation."""
    with client.channel("replay") as channel:
        while True:
            send_all(channel, methods.APPEND_SEGMENTS, client.append(0, 2**32 - 1))
            yield 1


def staged_windows(client: Client) -> Iterator[int]:
    """Sends windows that claim to be in a staging area: without an area, and in slots that do not exist."""
    with client.channel("replay") as channel:
        for staged_in in itertools.cycle((0, 3, 4, 2**31, 2**32 - 1)):
            (data,) = encode_window(make_window(slot=client.slot, schema=client.schema))
            request = replay_pb2.AppendSegmentsRequest.FromString(data)
            request.window.staged_in = staged_in
            request.window.block.ClearField("payload")
            send_all(channel, methods.APPEND_SEGMENTS, client.append(client.slot, 1), request)
            yield 1


def silent_actors(client: Client) -> Iterator[int]:
    """Holds actors that connect, take their grants and then send nothing; a refused one comes again."""
    over = threading.Event()

    def requests(slot: int) -> Iterator[bytes]:
        yield stamped(client.append(slot, 1))
        over.wait()

    streams: dict[int, Any] = {}
    try:
        with client.channel("replay") as channel:
            for slot in itertools.cycle(range(client.slot, client.slot + 10)):
                if slot not in streams or streams[slot].done():
                    stream: Any = channel.stream_stream(methods.APPEND_SEGMENTS.path)
                    streams[slot] = stream(requests(slot))
                    yield 1
                time.sleep(0.02)
                yield 0
    finally:
        over.set()


ATTACKS: dict[str, Callable[[Client], Iterator[int]]] = {
    CONTROL: compute,
    "status and health calls": status_calls,
    "3.9 MB to CommitBatch": large_commits,
    "3.9 MB to unary methods": large_calls,
    "3.9 MB on streams": large_streams,
    "malformed streams": malformed_streams,
    "joins without spaces": malformed_joins,
    "actors that join and leave": joins,
    "1,100 idle connections": idle_connections,
    "1,000 connections, a byte a second": slow_bytes,
    "connections that leave after the preface": connections,
    "metrics scrapes": scrapes,
    "500 idle connections to metrics": idle_scrapers,
    "400 health watches": health_watches,
    "snapshots of strangers": snapshots,
    "plans of other sessions": plans,
    "versions from the future": future_versions,
    "the largest incarnation": incarnations,
    "windows that are not staged": staged_windows,
    "40 silent actors": silent_actors,
}


RECOVERY_S = {"40 silent actors": 15.0}
"""Seconds before an attack is measured, where services need them: `replay.grant_timeout_s` and 5 s, as promised."""


def main() -> None:
    """Attacks as standard input says, until it ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("number", type=int)
    parser.add_argument("target", type=json.loads)
    given = parser.parse_args()
    client = Client(given.number, Target(**given.target))
    print("ready", flush=True)
    attacking, stop, counts = threading.Thread(), threading.Event(), [0]

    def attack(name: str) -> None:
        with closing(ATTACKS[name](client)) as requests:  # type: ignore[type-var]
            for made in requests:
                counts[0] += made
                if stop.is_set():
                    return

    for line in sys.stdin:
        word, _, name = line.strip().partition(" ")
        if word == "begin":
            stop.clear()
            counts[0] = 0
            attacking = threading.Thread(target=attack, args=(name,))
            attacking.start()
        else:
            stop.set()
            attacking.join()
            print(counts[0], flush=True)


if __name__ == "__main__":
    main()
