"""`make stress-joins`: many actors that join a run at once, as those of a Slurm array or of a learner that returns.

A run trains with real services and one actor, whose environment sleeps in each step and so decides the pace. Another
process then joins with all actors at once, each by its own stream, and holds their places without collecting. The
learner is asked for the status of the run every 20 ms, which its event loop answers.

Each number of actors has a run of its own. The test fails if the joins take more than 10 s, the run keeps less than 90%
of its pace, or a stream of the run breaks. The result is build/bench/joins.json.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import grpc
import psutil

from penstock.acting.values.spaces import segment_schema
from penstock.errors import PenstockError
from penstock.rpc import methods
from penstock.rpc.channel import connect, open_stream
from penstock.rpc.clients.operator import StatusClient
from penstock.rpc.loop import LoopThread
from penstock.types.status import RunStatus
from penstock.v1 import run_pb2
from penstock.wire.schema import encode_schema
from penstock.wire.spaces import encode_environment
from stress import results
from tests.support.environments import paced
from tests.support.environments.made import make_environments
from tests.support.services.ports import free_ports
from tests.support.services.processes import WITH_HELPERS, Command

PATIENCE_S = 300.0
MOST_S, LEAST_KEPT = 10.0, 0.9
UNROLL_LENGTH = 8
PING_S, SPAN_S = 0.02, 10.0
CHANNELS = 8
"""Connections of the joining process. Each has an eighth of the streams."""

SETTINGS = """
[environment]
id = "{environment}"
imports = ["{module}"]
kwargs = {{ pause_s = 0.01 }}
[run]
dir = "{place}/run"
total_steps = 100_000_000
[policy]
hidden_sizes = [16]
[replay]
listen = "{replay}"
metrics_port = 0
folder = "{place}/store"
max_actors = 4096
[learner]
listen = "{learner}"
metrics_port = 0
replay_addresses = ["{replay}"]
max_actors = 4096
[actor]
learner_address = "{learner}"
listen = "127.0.0.1:0"
metrics_port = 0
environments = 4
unroll_length = {unroll_length}
[sampling]
batch_segments = 32
off_policy_degree = 16
publish_interval = 16
"""


@dataclass(frozen=True, slots=True)
class Span:
    """The run during a span: its versions per second, and the longest time in ms until it answered a status call."""

    seconds: float
    versions_per_s: float
    longest_answer_ms: float


@dataclass(frozen=True, slots=True)
class Joined:
    """Joins of one round.

    Attributes:
        actors: Actors that joined.
        seconds: Seconds from the first request to the last assignment.
        refusals: Joins that were refused at first, and repeated.
        learner_cpu_s, joiners_cpu_s: Processor seconds of the learner and of the joining process during the joins.
        before, during, after: The run before the joins, until the last of them, and with all of them connected.
        breaks: Streams of the run's own services that ended.
        roster_bytes: Size of the roster afterwards.
    """

    actors: int
    seconds: float
    refusals: int
    learner_cpu_s: float
    joiners_cpu_s: float
    before: Span
    during: Span
    after: Span
    breaks: int
    roster_bytes: int

    @property
    def kept(self) -> float:
        """Share of its pace that the run kept, with all actors connected."""
        return self.after.versions_per_s / self.before.versions_per_s

    @property
    def held(self) -> bool:
        """Whether all bounds held."""
        return self.seconds <= MOST_S and self.kept >= LEAST_KEPT and not self.breaks


class Pinger:
    """A thread that asks for the status of the run every 20 ms, and notes the longest answer."""

    def __init__(self, thread: LoopThread, address: str) -> None:
        self._client, self._stop = StatusClient(thread, address), threading.Event()
        self._longest_s, self._version = 0.0, 0
        self._began_at, self._began_version = time.monotonic(), 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def until_trained(self, version: int) -> None:
        """Waits until the run has reached a version, and starts the thread."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            with suppress(PenstockError):
                self._version = self._status().version
                if self._version >= version:
                    self._thread.start()
                    return
            time.sleep(0.2)
        raise TimeoutError("the run did not train")

    def span(self) -> Span:
        """Returns the span since the last call."""
        now, version = time.monotonic(), self._version
        seconds = now - self._began_at
        longest_s, self._longest_s = self._longest_s, 0.0
        pace = (version - self._began_version) / seconds
        self._began_at, self._began_version = now, version
        return Span(round(seconds, 2), round(pace, 2), round(1e3 * longest_s, 1))

    def close(self) -> None:
        """Ends the thread."""
        self._stop.set()
        self._thread.join()

    def _status(self) -> RunStatus:
        return self._client.get(PATIENCE_S)

    def _run(self) -> None:
        while not self._stop.wait(PING_S):
            asked = time.perf_counter()
            self._version = self._status().version
            self._longest_s = max(self._longest_s, time.perf_counter() - asked)


def hello() -> run_pb2.JoinRequest:
    """Returns the request of an actor that joins the run."""
    spec = make_environments("Paced-v0", 1, kwargs={}).spec
    return run_pb2.JoinRequest(
        hello=run_pb2.Hello(
            schema=encode_schema(segment_schema(spec, UNROLL_LENGTH)),
            environment=encode_environment(spec),
            environments=8,
        )
    )


async def flood(address: str, actors: int) -> None:
    """Joins with this number of actors, prints how that went, and holds their places until its input ends."""
    channels = [connect(address) for _ in range(CHANNELS)]
    request, refusals, joined = hello(), 0, asyncio.Semaphore(0)

    async def join(number: int) -> None:
        nonlocal refusals
        while True:
            stream = open_stream(channels[number % CHANNELS], methods.JOIN)
            try:
                await stream.write(request)
                responses = aiter(stream)
                await anext(responses)
                joined.release()
                async for _ in responses:
                    pass
                return
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise
                refusals += 1
                await asyncio.sleep(0.5)

    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(join(number)) for number in range(actors)]
        for _ in tasks:
            await joined.acquire()
        print(json.dumps({"seconds": round(time.monotonic() - began, 2), "refusals": refusals}), flush=True)
        await asyncio.to_thread(sys.stdin.read)
        for task in tasks:
            task.cancel()


def measure(actors: int, place: Path) -> Joined:
    """Starts a run, measures its pace, lets the actors join, and measures it again."""
    replay, learner = (f"127.0.0.1:{port}" for port in free_ports(2))
    settings = place / "settings.toml"
    settings.write_text(
        SETTINGS.format(
            environment="Paced-v0",
            module=paced.__name__,
            place=place,
            replay=replay,
            learner=learner,
            unroll_length=UNROLL_LENGTH,
        )
    )
    with ExitStack() as stack:
        services = [
            stack.enter_context(Command(name, f"--config={settings}", directory=place, environment=WITH_HELPERS))
            for name in ("replay", "learner", "actor")
        ]
        thread = LoopThread()
        pinger = Pinger(thread, learner)
        pinger.until_trained(20)
        pinger.span()
        time.sleep(SPAN_S)
        before, breaks, cpu_s = pinger.span(), breaks_in(services), cpu_s_of(services[1].pid)
        command = [sys.executable, "-m", "stress.joins", "--flood", learner, "--actors", str(actors)]
        joiners = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert joiners.stdin is not None and joiners.stdout is not None
        told = json.loads(joiners.stdout.readline())
        during, joiners_cpu_s = pinger.span(), cpu_s_of(joiners.pid)
        cpu_s = cpu_s_of(services[1].pid) - cpu_s
        time.sleep(SPAN_S)
        after = pinger.span()
        pinger.close()
        result = Joined(
            actors=actors,
            seconds=told["seconds"],
            refusals=told["refusals"],
            learner_cpu_s=round(cpu_s, 2),
            joiners_cpu_s=round(joiners_cpu_s, 2),
            before=before,
            during=during,
            after=after,
            breaks=breaks_in(services) - breaks,
            roster_bytes=(place / "run" / "roster.json").stat().st_size,
        )
        joiners.stdin.close()
        joiners.wait()
        thread.close()
    return result


def cpu_s_of(pid: int) -> float:
    """Returns the processor seconds of a process so far."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def breaks_in(services: list[Command]) -> int:
    """Returns how often the run's own services have lost a stream so far."""
    return sum(service.stderr.count("trying again") for service in services)


def main() -> int:
    """Measures, prints and writes everything; returns 0 if the bounds held."""
    parser = results.options(__doc__)
    parser.add_argument("--actors", type=int, nargs="+", default=[1_000, 2_000], help="numbers of actors")
    parser.add_argument("--flood", metavar="ADDRESS", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.flood:
        asyncio.run(flood(arguments.flood, sum(arguments.actors)))
        return 0
    rounds = []
    for actors in arguments.actors:
        with tempfile.TemporaryDirectory() as place:
            rounds.append(measure(actors, Path(place)))
        _show(rounds[-1])
    results.write(arguments, {"rounds": [asdict(each) | {"kept": round(each.kept, 3)} for each in rounds]})
    return int(not all(each.held for each in rounds))


def _show(result: Joined) -> None:
    for name, span in (("before", result.before), ("joining", result.during), ("joined", result.after)):
        print(f"{name:8} {span.versions_per_s:6.2f} versions/s, longest answer {span.longest_answer_ms:,.0f} ms")
    print(
        f"{result.actors:,} actors joined in {result.seconds:.1f} s, {result.refusals} asked to join again;"
        f" {result.kept:.0%} of the pace kept, {result.breaks} breaks; processor seconds: learner"
        f" {result.learner_cpu_s:.1f}, joining process {result.joiners_cpu_s:.1f}:"
        f" {'held' if result.held else 'FAILED'}"
    )


if __name__ == "__main__":
    sys.exit(main())
