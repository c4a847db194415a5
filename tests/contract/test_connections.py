"""Peers that hang, connections without a call, and health checks beside a full service."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from penstock.errors import PlaceLost
from penstock.rpc import methods
from penstock.rpc.channel import connect
from penstock.rpc.health import is_serving
from penstock.v1 import replay_pb2
from tests.support.machine.timing import PATIENCE_S, wait_for
from tests.support.services.servers import Loopback, open_request, plan_with, window_request

GIVEN_UP_S = 50.0
"""Seconds until a hanging peer is given up.

The options give it up after 15 s. gRPC's default of 60 s for the answer to a ping would make it 70 s.
"""

DESCRIPTORS = 256
"""Limit of open files of the service's process; the test's process may have more."""

SERVER = """
import time
from penstock.rpc.loop import LoopThread
from penstock.rpc.server import serve_health_only
thread = LoopThread()
server = thread.run(serve_health_only("127.0.0.1:0"))
print(server.address.port, flush=True)
time.sleep(3600)
"""
CLIENT = """
import asyncio, sys
from penstock.rpc import methods
from penstock.rpc.channel import connect, open_stream
from penstock.v1 import replay_pb2
async def run():
    async with connect(sys.argv[1]) as channel:
        call = open_stream(channel, methods.APPEND_SEGMENTS)
        await call.write(replay_pb2.AppendSegmentsRequest(heartbeat=replay_pb2.Heartbeat()))
        await anext(aiter(call))
        print("opened", flush=True)
        await asyncio.sleep(3600)
asyncio.run(run())
"""
PAUSES = """
import os
from penstock.rpc.channel import Backoff
for _ in range(2):
    if not os.fork():
        print(Backoff().next_s(), flush=True)
        os._exit(0)
    os.wait()
"""
WRITER = """
import sys, time
from pathlib import Path
from penstock.config import Config
from penstock.process.service import Service
from penstock.machine.files import write_atomically
from penstock.rpc.loop import LoopThread
from penstock.rpc.server import serve_health_only
with Service("replay", Config(replay={"listen": "127.0.0.1:0", "metrics_port": 0})):
    thread = LoopThread()
    server = thread.run(serve_health_only("127.0.0.1:0"))
    count = 0
    while True:
        for name in range(8):
            write_atomically(Path(sys.argv[1]) / f"file{name}", str(count).encode())
        if count == 0:
            print(server.address.port, flush=True)
        count += 1
        time.sleep(0.02)
"""


@contextlib.contextmanager
def process(script: str, *arguments: str, limit: int = 0) -> Iterator[subprocess.Popen[str]]:
    """Runs this script in a Python process; `limit` is its limit of open files, if there is one."""
    command = [sys.executable, "-c", script, *arguments]
    if limit:
        command = ["sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh", *command]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


def address_of(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    return f"127.0.0.1:{int(server.stdout.readline())}"


def health_stub(channel: Any) -> Any:
    return health_pb2_grpc.HealthStub(channel)


async def seconds_until_given_up(address: str, pid: int) -> float:
    """Returns the seconds from the stop of a service to the end of the stream of a waiting client."""
    async with connect(address) as channel:
        watch = health_stub(channel).Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True)
        await watch.read()
        os.kill(pid, signal.SIGSTOP)
        stopped = time.monotonic()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await watch.read()
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        return time.monotonic() - stopped


def test_client_and_server_abandon_a_peer_that_hangs(loopback: Loopback) -> None:
    ended: list[float] = []

    async def linger(requests: AsyncIterator[object], context: Any) -> None:
        await context.write(replay_pb2.AppendSegmentsResponse())
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(time.monotonic())

    server = loopback.methods({methods.APPEND_SEGMENTS: linger})
    with process(SERVER) as hanging_server, process(CLIENT, server.address) as hanging_client:
        address = address_of(hanging_server)
        assert hanging_client.stdout is not None
        assert hanging_client.stdout.readline() == "opened\n"
        os.kill(hanging_client.pid, signal.SIGSTOP)
        stopped = time.monotonic()
        seconds = loopback.thread.run(seconds_until_given_up(address, hanging_server.pid), PATIENCE_S)
        wait_for(lambda: ended, "the end of the client's stream")
    assert seconds < GIVEN_UP_S
    assert ended[0] - stopped < GIVEN_UP_S + seconds


def test_idle_connections_block_no_client_and_use_no_descriptors_of_files(tmp_path: Path) -> None:
    with process(WRITER, str(tmp_path), limit=DESCRIPTORS) as server, contextlib.ExitStack() as idle:
        address = address_of(server)
        host, _, port = address.rpartition(":")
        for _ in range(DESCRIPTORS + 50):
            idle.enter_context(socket.create_connection((host, int(port)), timeout=PATIENCE_S))
        wait_for(lambda: is_serving(address, 5.0) or server.poll() is not None, "an answer to a client")
        assert server.poll() is None
        written = (tmp_path / "file0").read_text()
        wait_for(lambda: (tmp_path / "file0").read_text() not in (written, ""), "files to be written")


def test_services_that_are_forked_from_one_process_do_not_pause_alike() -> None:
    printed = subprocess.run([sys.executable, "-c", PAUSES], check=True, stdout=subprocess.PIPE).stdout
    assert len(set(printed.split())) == 2


def test_a_connection_without_a_call_is_closed(loopback: Loopback) -> None:
    server = loopback.replay()
    states: list[grpc.ChannelConnectivity] = []
    with grpc.insecure_channel(server.address) as channel:
        channel.subscribe(states.append, try_to_connect=True)
        wait_for(lambda: grpc.ChannelConnectivity.READY in states, "the connection")
        wait_for(lambda: states[-1] == grpc.ChannelConnectivity.IDLE, "its end")
    assert loopback.replay_status(server).actors == 0


def test_a_silent_connection_is_closed(loopback: Loopback) -> None:
    server = loopback.replay()
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as silent:
        while silent.recv(4096):
            pass


def test_health_watches_leave_room_for_calls_and_for_health_checks(loopback: Loopback) -> None:
    server = loopback.replay(max_actors=2)
    with grpc.insecure_channel(server.address) as channel:
        watches = [health_stub(channel).Watch(health_pb2.HealthCheckRequest()) for _ in range(400)]
        codes = []
        for watch in watches:
            try:
                next(watch)
            except grpc.RpcError as error:
                codes.append(error.code())
        assert 0 < len(codes) < 400
        assert set(codes) == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert is_serving(server.address, PATIENCE_S)
        assert loopback.replay_status(server).actors == 0
        assert loopback.sink(0, server).next_grant(0.1) is None
        for watch in watches:
            watch.cancel()
        wait_for(lambda: _can_watch(channel), "room for another watch")


def _can_watch(channel: grpc.Channel) -> bool:
    watch = health_stub(channel).Watch(health_pb2.HealthCheckRequest())
    try:
        return bool(next(watch).status == health_pb2.HealthCheckResponse.SERVING)
    except grpc.RpcError:
        return False
    finally:
        watch.cancel()


def test_an_actor_whose_slot_has_a_later_incarnation_must_join_again(loopback: Loopback) -> None:
    server = loopback.replay()
    loopback.source(server, plan_with())
    later = loopback.plain(server, methods.APPEND_SEGMENTS)
    later.send(open_request(0, incarnation=7), window_request(1, slot=0, incarnation=7))
    wait_for(lambda: loopback.replay_status(server).counts.stored == 2, "the window of the later incarnation")
    sink = loopback.sink(0, server)
    with pytest.raises(PlaceLost, match="incarnation 1 of slot 0 is over: 7 has taken it; join again"):
        sink.next_grant(PATIENCE_S)
