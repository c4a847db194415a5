"""The attacks of `attacks.py`, each of which runs in a process of its own until that is killed.

python -m stress.attackers NAME --address HOST:PORT --run NUMBER --key HEX [--certificate FILE]
"""

import argparse
import itertools
import os
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from helpers.marked_segments import SCHEMA, MarkedWindows
from penstock.errors import PenstockError
from penstock.rpc import methods
from penstock.rpc.clients.snapshots import SnapshotClient
from penstock.rpc.contract import stamped
from penstock.rpc.health import blocking_channel
from penstock.rpc.loop import LoopThread
from penstock.rpc.proofs import prove
from penstock.rpc.service import Method
from penstock.security.authority import files_of
from penstock.security.certificate import Files
from penstock.security.credentials import Credentials
from penstock.types.run import KEY_BYTES, RunIdentity, Weights
from penstock.types.snapshots import SnapshotRequest
from penstock.v1 import replay_pb2
from penstock.wire.batches import encode_plan
from penstock.wire.schema import encode_schema
from penstock.wire.windows import encode_window
from stress.healthy_pair import plan_of

_NICE = 19
_CALL_S = 20.0
_SLOT = 200
"""First slot of the attackers' actors; the healthy actor has slot 0."""
_GUESS = 10**6
"""Version beyond that of the healthy learner."""


@dataclass(frozen=True, slots=True)
class Target:
    """The service under attack, and what the attacker has.

    Attributes:
        address: Address of the service.
        identity: Identity of its run, from which the attacker's tokens are made.
        files: The attacker's certificate, of an actor; None: the service has no certificates.
    """

    address: str
    identity: RunIdentity
    files: Files | None

    @property
    def credentials(self) -> Credentials | None:
        """Credentials for our clients."""
        return None if self.files is None else Credentials(self.files, "actor")

    def channel(self) -> grpc.Channel:
        """Opens a channel without our clients' code for calls."""
        return blocking_channel(self.address, self.credentials, "replay")

    def append(self, slot: int, incarnation: int) -> replay_pb2.AppendSegmentsRequest:
        """Returns the opening message of an actor's stream."""
        opening = replay_pb2.OpenAppend(
            schema=encode_schema(SCHEMA),
            slot=slot,
            incarnation=incarnation,
            window_segments=2,
            run=self.identity.number,
            replay_token=self.identity.token(slot, incarnation),
        )
        return replay_pb2.AppendSegmentsRequest(open=opening)


def send_all(channel: grpc.Channel, method: Method, *messages: Message | bytes) -> str:
    """Sends these messages on one stream, half-closes it, and returns its final status."""
    data = [message if isinstance(message, bytes) else message.SerializeToString() for message in messages]
    stream: Any = channel.stream_stream(method.path)
    try:
        for _ in stream(iter([stamped(data[0]), *data[1:]]), timeout=_CALL_S):
            pass
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


def version_of(channel: grpc.Channel) -> int:
    """Returns the version of the service; a guess where only others may ask for it."""
    method = methods.GET_REPLAY_STATUS
    ask: Any = channel.unary_unary(method.path, response_deserializer=method.response.FromString)
    try:
        return int(ask(b"", timeout=_CALL_S).version)
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.PERMISSION_DENIED:
            raise
        return _GUESS


# Each attack runs until its process is killed.


def idle_connections(target: Target) -> None:
    """Holds 1,100 connections that send nothing."""
    host, _, port = target.address.rpartition(":")
    held: list[socket.socket] = []
    while True:
        with suppress(OSError):
            held.append(socket.create_connection((host, int(port)), timeout=_CALL_S))
        if len(held) >= 1_100:
            time.sleep(0.1)
            held.pop(0).close()


def health_watches(target: Target) -> None:
    """Holds 400 streams that watch the service's health, and reopens refused ones."""
    stub: Any = health_pb2_grpc.HealthStub(target.channel())
    watches = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(400)]
    for number in itertools.cycle(range(len(watches))):
        if watches[number].done():
            watches[number] = stub.Watch(health_pb2.HealthCheckRequest())
        time.sleep(0.002)


def snapshots(target: Target) -> None:
    """Requests snapshots under new names, also after they are refused."""
    thread = LoopThread(target.credentials)
    taking = SnapshotClient(thread, target.address)
    for number in itertools.count():
        with suppress(PenstockError):
            request = SnapshotRequest(f"x{number}", 0, automatic=False)
            thread.run(taking.take(request, Weights.of(0, b"policy")), _CALL_S)
        time.sleep(1.0)


def plans(target: Target) -> None:
    """Sends plans of other sessions with the proof of a guessed key, from the next version to a very late one."""
    channel = target.channel()
    for ahead in itertools.cycle((10, 1_000, 10**15)):
        plan = encode_plan(plan_of(identity=target.identity))
        plan.next_batch, plan.session = version_of(channel) + ahead, secrets.randbits(62) | 1
        request = replay_pb2.SampleBatchesRequest(plan=plan)
        prove(methods.SAMPLE_BATCHES, bytes(32), request, bytes(KEY_BYTES))
        send_all(channel, methods.SAMPLE_BATCHES, request)
        time.sleep(0.02)


def future_versions(target: Target) -> None:
    """Sends windows of versions that the learner has not published."""
    channel = target.channel()
    for number in itertools.count():
        window = MarkedWindows(_SLOT + number % 20, 2).next(version_of(channel) + (990 if number % 2 else 10**15))
        send_all(channel, methods.APPEND_SEGMENTS, target.append(_SLOT + number % 20, 1), *encode_window(window))
        time.sleep(0.05)


def incarnations(target: Target) -> None:
    """Uses the healthy actor's slot with the largest valid incarnation."""
    channel = target.channel()
    while True:
        send_all(channel, methods.APPEND_SEGMENTS, target.append(0, 2**32 - 1))
        time.sleep(0.02)


def staged_windows(target: Target) -> None:
    """Sends windows that claim to be in a staging area: without an area, and in slots that do not exist."""
    channel = target.channel()
    for slot in itertools.cycle((0, 3, 4, 2**31, 2**32 - 1)):
        request = replay_pb2.AppendSegmentsRequest.FromString(
            next(iter(encode_window(MarkedWindows(_SLOT, 2).next(0))))
        )
        request.window.staged_in = slot
        request.window.block.ClearField("payload")
        send_all(channel, methods.APPEND_SEGMENTS, target.append(_SLOT, 1), request)
        time.sleep(0.02)


def silent_actors(target: Target) -> None:
    """Holds 40 actors that connect, take their grants and then send nothing."""
    with ExitStack() as stack:
        for slot in range(_SLOT, _SLOT + 40):
            channel = stack.enter_context(target.channel())
            until_killed = iter(lambda: time.sleep(3600.0), 0)
            opening = stamped(target.append(slot, 1))
            stream: Any = channel.stream_stream(methods.APPEND_SEGMENTS.path)
            stream(itertools.chain([opening], until_killed))
        time.sleep(3600.0)


ATTACKS: dict[str, Callable[[Target], None]] = {
    "1,100 idle connections": idle_connections,
    "400 health watches": health_watches,
    "snapshots of strangers": snapshots,
    "plans of other sessions": plans,
    "versions from the future": future_versions,
    "the largest incarnation": incarnations,
    "windows that are not staged": staged_windows,
    "40 silent actors": silent_actors,
}


def main() -> None:
    """Attacks until it is killed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("attack", choices=ATTACKS)
    for name in ("address", "run", "key"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--certificate", type=Path)
    given = parser.parse_args()
    os.nice(_NICE)
    files = None if given.certificate is None else files_of(given.certificate.parent)
    ATTACKS[given.attack](Target(given.address, RunIdentity(int(given.run), bytes.fromhex(given.key)), files))


if __name__ == "__main__":
    main()
