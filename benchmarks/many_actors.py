"""`make bench-many-actors`: 256 actors on 1, 2 and 4 simulated hosts, and the same actors on one host and on three.

The replay service and the learner run on a host of their own. A host is a network namespace with its own interfaces, so
all data of actors crosses a network by gRPC. All hosts share this machine's processors and memory.

scale    256 actors of one environment each, which sleeps in each step, so that the environments and not the shared
         processors decide the pace. It shows the shares of the actors, and what an actor and a segment cost.
spread   The same actors on one host and on three, on CartPole-v1 at full speed, in turn.

The result is build/bench/many_actors.json. It needs root and iproute2.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.console import Console

from penstock.errors import Unavailable
from penstock.local.variables import without_settings
from penstock.rpc.clients.operator import StatusClient
from penstock.rpc.loop import LoopThread
from penstock.types.status import ActorState, RunStatus
from tests.support.results.provenance import of_this_run
from tests.support.services.processes import WITH_HELPERS
from tests.support.services.switch import Switch, SwitchedHost, unavailable

OUTPUT = Path(__file__).parents[1] / "build" / "bench" / "many_actors.json"
ACTORS, HOSTS = 256, (1, 2, 4)
SPREAD_ACTORS, SPREAD_HOSTS, SPREAD_ENVIRONMENTS = 6, (1, 3), 8
PAUSE_S = 0.2
"""Sleep of an environment in each step of `scale`. 256 environments then take at most 1,280 steps per second. Two cores
can't run 256 processes at ten times that pace: they then take turns of 2,000 steps per second."""
_SCALE_TIMES = 3
"""Ratio of the seconds of `scale` to those of `spread`: its actors deliver a segment in six seconds."""

_PATIENCE_S = 300.0
_SETTLE_S = 10.0
_PENSTOCK = (sys.executable, "-m", "penstock")
_REPLAY_PORT, _LEARNER_PORT = 7431, 7432

PACED = (
    "--env-id=Paced-v0",
    "--env-import=tests.support.environments.paced",
    f"--environment.kwargs=pause_s={PAUSE_S}",
)
FULL_SPEED = ("--env-id=CartPole-v1",)


@dataclass(frozen=True, slots=True)
class Cost:
    """Processor time and memory of a service, or the mean of several.

    Attributes:
        cpu_share: Processor seconds per second.
        megabytes: Proportional set size, in which shared pages count once over all processes.
        unique_megabytes: Memory that only this process has.
    """

    cpu_share: float
    megabytes: float
    unique_megabytes: float


@dataclass(frozen=True, slots=True)
class Rates:
    """What the actors of a run deliver.

    Attributes:
        steps_per_s: Environment steps per second.
        segments_per_s: Segments per second.
        least_share, largest_share: Smallest and largest number of segments of an actor, relative to the mean.
        jain: Jain's index of fairness of these numbers, from 0 to 1; 1: all actors have the same.
    """

    steps_per_s: float
    segments_per_s: float
    least_share: float
    largest_share: float
    jain: float


@dataclass(frozen=True, slots=True)
class Case:
    """Measurements of a run.

    Attributes:
        hosts, actors, environments: Hosts of actors, actors in all, environments of each actor.
        joined_s: Seconds from the start of the actors until all had delivered a segment.
        rates: What the actors deliver.
        replay, learner, actor: What each service takes; the mean of all actors.
        received_per_s, sent_per_s: Bytes per second that the services' host receives and sends.
        machine_busy: Share of the machine's processor time that was used.
    """

    kind: str
    hosts: int
    actors: int
    environments: int
    joined_s: float
    rates: Rates
    replay: Cost
    learner: Cost
    actor: Cost
    received_per_s: float
    sent_per_s: float
    machine_busy: float


class Cluster:
    """A run on simulated hosts."""

    def __init__(self, folder: Path, switch: Switch, options: Sequence[str]) -> None:
        """Prepares the services' host. `options` are settings of all services."""
        self._folder, self._switch = folder, switch
        self._services = switch.host()
        replay, learner = (f"{self._services.address}:{port}" for port in (_REPLAY_PORT, _LEARNER_PORT))
        self.learner_address = learner
        self._options = [
            *options,
            f"--replay.listen={replay}",
            "--security.insecure=true",
            f"--learner.listen={learner}",
            f"--learner.replay-addresses={replay}",
            f"--actor.learner-address={learner}",
            "--actor.listen=127.0.0.1:0",
            "--actor.metrics-port=0",
            "--evaluation.interval-steps=1000000000000",
            "--total-steps=1000000000000",
        ]

    @contextlib.contextmanager
    def services(self) -> Iterator[tuple[psutil.Process, psutil.Process]]:
        """Runs the replay service and the learner; yields their processes."""
        with contextlib.ExitStack() as stack:
            started = [
                stack.enter_context(self._started(self._services, [*_PENSTOCK, name, *self._options, *own], name))
                for name, own in (("replay", ()), ("learner", (f"--run-dir={self._folder / 'run'}",)))
            ]
            replay, learner = (psutil.Process(process.pid) for process in started)
            yield replay, learner

    @contextlib.contextmanager
    def actors(self, hosts: int, actors: int) -> Iterator[list[psutil.Process]]:
        """Runs actors, spread evenly over new hosts; yields the hosts' first processes."""
        with contextlib.ExitStack() as stack:
            first, processes = 0, list[psutil.Process]()
            for number in range(hosts):
                count = (actors - first) // (hosts - number)
                command = [sys.executable, "-m", "benchmarks.actor_host", str(self._folder), str(first), str(count)]
                host = self._switch.host()
                process = stack.enter_context(self._started(host, [*command, *self._options], f"host-{number}"))
                processes.append(psutil.Process(process.pid))
                first += count
            yield processes

    @contextlib.contextmanager
    def _started(self, host: SwitchedHost, command: Sequence[str], name: str) -> Iterator["subprocess.Popen[bytes]"]:
        log = self._folder / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                host.command(*command),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**without_settings(os.environ), **WITH_HELPERS},
            )
        try:
            yield process
        finally:
            if process.stdin is not None:
                process.stdin.close()
            process.terminate()
            process.wait(_PATIENCE_S)


def measure(kind: str, hosts: int, actors: int, environments: int, options: Sequence[str], seconds: float) -> Case:
    """Runs actors on this many hosts, and measures them for some seconds once all have joined."""
    options = (
        *options,
        # The size of a batch follows from the number of actors.
        f"--train.actors={actors}",
        f"--envs-per-actor={environments}",
        "--ppo.epochs=1",
        "--sampling.fresh-fraction=1",
    )
    with tempfile.TemporaryDirectory(prefix="penstock-hosts-") as parent, Switch() as switch:
        cluster = Cluster(Path(parent), switch, options)
        with (
            cluster.services() as (replay, learner),
            contextlib.closing(LoopThread()) as thread,
            contextlib.closing(StatusClient(thread, cluster.learner_address)) as client,
        ):
            _until(lambda: _status(client) is not None, "the learner serves")
            began = time.monotonic()
            with cluster.actors(hosts, actors) as firsts:
                _until(lambda: _joined(client) == actors, f"{actors} actors join")
                joined_s = time.monotonic() - began
                time.sleep(_SETTLE_S)
                members = [child for first in firsts for child in _actors_of(first)]
                assert len(members) == actors, f"{len(members)} processes of {actors} actors"
                processes = {"replay": [replay], "learner": [learner], "actor": members}
                measured = _measured(client, processes, seconds)
                return Case(kind, hosts, actors, environments, joined_s, **measured)


def _measured(
    client: StatusClient, processes: Mapping[str, Sequence[psutil.Process]], seconds: float
) -> dict[str, Any]:
    """Returns the fields of `Case` that need some seconds of the run."""
    before, cpu_before, busy_before = _required(client), _cpu_s(processes), psutil.cpu_times()
    received_before, sent_before = _traffic(processes["learner"][0])
    began = time.monotonic()
    time.sleep(seconds)
    after, cpu_after, busy_after = _required(client), _cpu_s(processes), psutil.cpu_times()
    received_after, sent_after = _traffic(processes["learner"][0])
    taken_s = time.monotonic() - began
    costs = {}
    for name, members in processes.items():
        memory = [process.memory_full_info() for process in members]
        costs[name] = Cost(
            (cpu_after[name] - cpu_before[name]) / taken_s / len(members),
            statistics.fmean(each.pss for each in memory) / 1e6,
            statistics.fmean(each.uss for each in memory) / 1e6,
        )
    idle_s = busy_after.idle + busy_after.iowait - busy_before.idle - busy_before.iowait
    busy = 1.0 - idle_s / (taken_s * (psutil.cpu_count() or 1))
    return {
        "rates": rates_between(before.actor_states, after.actor_states, taken_s),
        **costs,
        "received_per_s": (received_after - received_before) / taken_s,
        "sent_per_s": (sent_after - sent_before) / taken_s,
        "machine_busy": busy,
    }


def _traffic(process: psutil.Process) -> tuple[int, int]:
    """Returns the bytes that the host of a process has received and sent, without those to itself."""
    lines = Path(f"/proc/{process.pid}/net/dev").read_text().splitlines()[2:]
    devices = {name.strip(): fields.split() for name, _, fields in (line.partition(":") for line in lines)}
    fields = [each for name, each in devices.items() if name != "lo"]
    return sum(int(each[0]) for each in fields), sum(int(each[8]) for each in fields)


def rates_between(before: Sequence[ActorState], after: Sequence[ActorState], seconds: float) -> Rates:
    """Returns the rates of actors from two looks at their states; an actor that is missing in the first began at 0."""
    earlier = {state.name: state for state in before}
    none = ActorState("")
    gained = np.array([state.segments - earlier.get(state.name, none).segments for state in after], np.float64)
    steps = sum(state.steps - earlier.get(state.name, none).steps for state in after)
    return Rates(
        steps / seconds,
        float(gained.sum()) / seconds,
        float(gained.min() / gained.mean()),
        float(gained.max() / gained.mean()),
        float(gained.sum() ** 2 / (len(gained) * (gained**2).sum())),
    )


def _actors_of(first: psutil.Process) -> list[psutil.Process]:
    """Returns the actors that a host's first process has forked from its template."""
    return [child for child in first.children(recursive=True) if "actor" in child.cmdline()]


def _cpu_s(processes: Mapping[str, Sequence[psutil.Process]]) -> dict[str, float]:
    return {name: sum(sum(process.cpu_times()[:2]) for process in members) for name, members in processes.items()}


def _status(client: StatusClient) -> RunStatus | None:
    with contextlib.suppress(Unavailable):
        return client.get(5.0)
    return None


def _required(client: StatusClient) -> RunStatus:
    status = _status(client)
    assert status is not None, "the learner does not respond"
    return status


def _joined(client: StatusClient) -> int:
    """Returns the number of connected actors that have delivered a segment."""
    status = _status(client)
    return sum(state.connected and state.segments > 0 for state in status.actor_states) if status is not None else 0


def _until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {_PATIENCE_S:.0f} s in vain until {what}")
        time.sleep(0.2)


def main() -> None:
    """Measures and prints all cases, and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds of a measurement of `spread`")
    parser.add_argument("--actors", type=int, default=ACTORS)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of `spread`")
    parser.add_argument("--only", choices=["scale", "spread"])
    arguments = parser.parse_args()
    if reason := unavailable():
        raise SystemExit(reason)
    console, cases = Console(highlight=False), list[Case]()

    def run(kind: str, hosts: int, actors: int, environments: int, options: Sequence[str]) -> None:
        seconds = arguments.seconds * (_SCALE_TIMES if kind == "scale" else 1)
        case = measure(kind, hosts, actors, environments, options, seconds)
        cases.append(case)
        rates = case.rates
        console.print(
            f"{kind}: {actors} actors on {hosts} hosts joined after {case.joined_s:.0f} s;"
            f" {rates.steps_per_s:,.0f} steps/s, shares {rates.least_share:.2f} to {rates.largest_share:.2f};"
            f" an actor takes {case.actor.megabytes:.0f} MB and {case.actor.cpu_share:.2%} of a core,"
            f" the replay service {case.replay.cpu_share:.0%}, the learner {case.learner.cpu_share:.0%};"
            f" the machine is {case.machine_busy:.0%} busy",
            soft_wrap=True,
        )

    if arguments.only != "spread":
        for hosts in HOSTS:
            run("scale", hosts, arguments.actors, 1, PACED)
    if arguments.only != "scale":
        for _ in range(arguments.rounds):
            for hosts in SPREAD_HOSTS:
                run("spread", hosts, SPREAD_ACTORS, SPREAD_ENVIRONMENTS, FULL_SPEED)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    document = {"provenance": of_this_run(), "seconds": arguments.seconds, "cases": [asdict(case) for case in cases]}
    OUTPUT.write_text(json.dumps(document, indent=2) + "\n")
    console.print(f"written to {OUTPUT}")


if __name__ == "__main__":
    main()
