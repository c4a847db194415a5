"""`make stress-attacks`: throughput of a healthy actor and learner during attacks on the replay service.

The attacks need no identity; docs/RELIABILITY.md lists those that only peer identity can stop. The healthy pair works
at a steady pace, a fraction of its highest throughput. Each attack runs in a separate process with the lowest priority.
Spans with and without the attack alternate, so that other load on the machine affects both. The test fails if an attack
costs the pair more than a tenth of its throughput, if the pair receives an error or a damaged segment, or if the
service's health check takes longer than 5 s. The result is build/bench/attacks.json.
"""

import argparse
import itertools
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc
from rich.console import Console
from rich.table import Table

from helpers.marked_segments import SCHEMA, MarkedWindows
from helpers.provenance import of_this_run
from penstock.errors import PenstockError
from penstock.process import allocator
from penstock.rpc import methods
from penstock.rpc.clients.snapshots import SnapshotClient
from penstock.rpc.contract import stamped
from penstock.rpc.health import is_serving
from penstock.rpc.loop import LoopThread
from penstock.rpc.service import Method
from penstock.types.run import Weights
from penstock.types.snapshots import SnapshotRequest
from penstock.v1 import replay_pb2
from penstock.wire.batches import encode_plan
from penstock.wire.schema import encode_schema
from penstock.wire.windows import encode_window
from stress.healthy_pair import HealthyPair, Served, plan_of
from stress.replay_process import ReplayProcess, replay_process

OUTPUT = Path(__file__).parent.parent / "build" / "bench" / "attacks.json"
CAPACITY_BYTES = 64 * 2**20
SPAN_S, SETTLE_S, ROUNDS = 5.0, 2.0, 3
PACE = 0.4
"""Pace of the pair, as a fraction of its highest throughput."""
KEPT = 0.9
HEALTH_S = 5.0
_NICE = 19
_CALL_S = 20.0
_SLOT = 200
"""First slot of the attackers' actors; the healthy actor has slot 0."""


def foreign_channel(address: str) -> grpc.Channel:
    """Opens a channel without any of our client code."""
    return grpc.insecure_channel(address, options=(("grpc.enable_http_proxy", 0),))


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
    """Returns the version of the service, which is available to any client."""
    method = methods.GET_REPLAY_STATUS
    ask: Any = channel.unary_unary(method.path, response_deserializer=method.response.FromString)
    return int(ask(b"", timeout=_CALL_S).version)


def append(slot: int, incarnation: int) -> replay_pb2.AppendSegmentsRequest:
    """Returns the opening message of an actor's stream."""
    opening = replay_pb2.OpenAppend(schema=encode_schema(SCHEMA), slot=slot, incarnation=incarnation, window_segments=2)
    return replay_pb2.AppendSegmentsRequest(open=opening)


# Each attack takes the service's address and runs until its process is killed.


def idle_connections(address: str) -> None:
    """Holds 1,100 connections that send nothing."""
    host, _, port = address.rpartition(":")
    held: list[socket.socket] = []
    while True:
        with suppress(OSError):
            held.append(socket.create_connection((host, int(port)), timeout=_CALL_S))
        if len(held) >= 1_100:
            time.sleep(0.1)
            held.pop(0).close()


def health_watches(address: str) -> None:
    """Holds 400 streams that watch the service's health, and reopens refused ones."""
    stub: Any = health_pb2_grpc.HealthStub(foreign_channel(address))
    watches = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(400)]
    for number in itertools.cycle(range(len(watches))):
        if watches[number].done():
            watches[number] = stub.Watch(health_pb2.HealthCheckRequest())
        time.sleep(0.002)


def snapshots(address: str) -> None:
    """Requests snapshots under new names, also after they are refused."""
    thread = LoopThread()
    taking = SnapshotClient(thread, address)
    for number in itertools.count():
        with suppress(PenstockError):
            request = SnapshotRequest(f"x{number}", 0, automatic=False)
            thread.run(taking.take(request, Weights.of(0, b"policy")), _CALL_S)
        time.sleep(1.0)


def plans(address: str) -> None:
    """Sends plans of other sessions: from the next version, from a slightly later one, and from a very late one."""
    channel = foreign_channel(address)
    for ahead in itertools.cycle((10, 1_000, 10**15)):
        plan = encode_plan(plan_of())
        plan.next_batch, plan.session = version_of(channel) + ahead, secrets.randbits(62) | 1
        send_all(channel, methods.SAMPLE_BATCHES, replay_pb2.SampleBatchesRequest(plan=plan))
        time.sleep(0.02)


def future_versions(address: str) -> None:
    """Sends windows of versions that the learner has not published."""
    channel = foreign_channel(address)
    for number in itertools.count():
        window = MarkedWindows(_SLOT + number % 20, 2).next(version_of(channel) + (990 if number % 2 else 10**15))
        send_all(channel, methods.APPEND_SEGMENTS, append(_SLOT + number % 20, 1), *encode_window(window))
        time.sleep(0.05)


def incarnations(address: str) -> None:
    """Uses the healthy actor's slot with the largest valid incarnation."""
    channel = foreign_channel(address)
    while True:
        send_all(channel, methods.APPEND_SEGMENTS, append(0, 2**32 - 1))
        time.sleep(0.02)


def staged_windows(address: str) -> None:
    """Sends windows that claim to be in a staging area: without an area, and in slots that do not exist."""
    channel = foreign_channel(address)
    for slot in itertools.cycle((0, 3, 4, 2**31, 2**32 - 1)):
        request = replay_pb2.AppendSegmentsRequest.FromString(
            next(iter(encode_window(MarkedWindows(_SLOT, 2).next(0))))
        )
        request.window.staged_in = slot
        request.window.block.ClearField("payload")
        send_all(channel, methods.APPEND_SEGMENTS, append(_SLOT, 1), request)
        time.sleep(0.02)


def silent_actors(address: str) -> None:
    """Holds 40 actors that connect, take their grants and then send nothing."""
    with ExitStack() as stack:
        for slot in range(_SLOT, _SLOT + 40):
            channel = stack.enter_context(foreign_channel(address))
            until_killed = iter(lambda: time.sleep(3600.0), 0)
            opening = stamped(append(slot, 1))
            stream: Any = channel.stream_stream(methods.APPEND_SEGMENTS.path)
            stream(itertools.chain([opening], until_killed))
        time.sleep(3600.0)


ATTACKS: dict[str, Callable[[str], None]] = {
    "1,100 idle connections": idle_connections,
    "400 health watches": health_watches,
    "snapshots of strangers": snapshots,
    "plans of other sessions": plans,
    "versions from the future": future_versions,
    "the largest incarnation": incarnations,
    "windows that are not staged": staged_windows,
    "40 silent actors": silent_actors,
}


def measure_attack(service: ReplayProcess, pair: HealthyPair, name: str, pace: float) -> tuple[Served, bool]:
    """Returns the pair's throughput during an attack, and whether the service answered a health check meanwhile."""
    command = [sys.executable, "-m", "stress.attacks", "--attack", name, "--address", service.address]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        pair.run(SETTLE_S, batches_per_s=pace)
        served = pair.run(SPAN_S, batches_per_s=pace)
        healthy = is_serving(service.address, HEALTH_S)
        assert process.poll() is None, f"the attack {name!r} ended by itself"
    finally:
        process.kill()
        process.wait()
    return served, healthy


def main() -> int:
    """Measures, prints and writes everything; returns 0 if all bounds held.

    With --attack, attacks until it is killed.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--attack", choices=ATTACKS, help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.attack:
        os.nice(_NICE)
        ATTACKS[arguments.attack](arguments.address)
    allocator.keep_freed_memory()
    results = []
    with tempfile.TemporaryDirectory() as folder, replay_process(CAPACITY_BYTES, folder=Path(folder)) as service:
        pair = HealthyPair(service.address, plan_of())
        pair.run(SETTLE_S)
        pace = PACE * pair.run(SPAN_S).batches_per_s
        for name in ATTACKS:
            alone, attacked, healthy = [], [], True
            for _ in range(ROUNDS):
                alone.append(pair.run(SPAN_S, batches_per_s=pace))
                served, answered = measure_attack(service, pair, name, pace)
                attacked.append(served)
                healthy &= answered
            rates = [sum(s.batches for s in spans) / sum(s.seconds for s in spans) for spans in (alone, attacked)]
            damaged = sum(span.damaged for span in (*alone, *attacked))
            kept = rates[1] / rates[0]
            holds = kept >= KEPT and healthy and not damaged and service.alive
            waits = [1e3 * max(span.wait_max_s for span in spans) for spans in (alone, attacked)]
            results.append(
                {
                    "attack": name,
                    "batches_per_s_alone": rates[0],
                    "batches_per_s_beside": rates[1],
                    "kept": kept,
                    "longest_wait_ms_alone": waits[0],
                    "longest_wait_ms_beside": waits[1],
                    "health_answered": healthy,
                    "damaged_segments": damaged,
                    "holds": holds,
                }
            )
        pair.close()
        traceback = "Traceback" in service.log()
    table = Table("attack", "alone, batches/s", "beside", "kept", "longest wait, ms", "")
    for result in results:
        table.add_row(
            str(result["attack"]),
            f"{result['batches_per_s_alone']:.1f}",
            f"{result['batches_per_s_beside']:.1f}",
            f"{result['kept']:.1%}",
            f"{result['longest_wait_ms_alone']:.0f} and {result['longest_wait_ms_beside']:.0f}",
            "ok" if result["holds"] else "FAIL",
        )
    Console(width=120).print(table)
    if traceback:
        print("FAIL the service's log contains a traceback")
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    content = {**of_this_run(), "attacks": results, "traceback": traceback}
    OUTPUT.write_text(json.dumps(content, indent=2) + "\n")
    return 0 if all(result["holds"] for result in results) and not traceback else 1


if __name__ == "__main__":
    sys.exit(main())
