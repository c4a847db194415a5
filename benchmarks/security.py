"""`make bench-security`: what certificates and Unix sockets cost a whole run, in CPU time and in pace.

Runs of CartPole and Pong with their presets, whose services and actors are on two hosts of a simulated cluster, in
plain text and with certificates in turn: on one host, streams move to Unix sockets after the handshake, which would
hide the cost of encryption. Runs of CartPole on one host use loopback and Unix sockets in turn. The result is
build/bench/security.json. It needs root and `ip` of iproute2.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from rich.console import Console

from benchmarks.medians import median
from penstock.errors import PenstockError
from penstock.rpc.clients.operator import StatusClient
from penstock.rpc.loop import LoopThread
from penstock.runs.folder import RunFolder
from penstock.security.authority import issue
from penstock.security.credentials import Credentials
from penstock.types.status import RunStatus
from tests.support.machine.timing import wait_for_run
from tests.support.results.provenance import of_this_run
from tests.support.services.processes import Command
from tests.support.services.switch import Switch, SwitchedHost, unavailable

OUTPUT = Path(__file__).parents[1] / "build" / "bench" / "security.json"
_ACTORS = 2
_SETTLE_BATCHES = 8
_ANSWER_S = 10.0
_DAYS = 7


@dataclass(frozen=True, slots=True)
class Cost:
    """Measurements of a run.

    Attributes:
        steps_per_s: Environment steps per second.
        replay_cpu_s, learner_cpu_s, actors_cpu_s: CPU seconds per million environment steps.
    """

    steps_per_s: float
    replay_cpu_s: float
    learner_cpu_s: float
    actors_cpu_s: float

    @property
    def cpu_s(self) -> float:
        """CPU seconds of all processes per million environment steps."""
        return self.replay_cpu_s + self.learner_cpu_s + self.actors_cpu_s


@dataclass(frozen=True, slots=True)
class Way:
    """A way of connecting the services: its name, the kind of addresses, and whether they have certificates."""

    name: str
    addresses: str
    certified: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two ways of connecting the services of one preset, of which the first is the baseline."""

    preset: str
    ways: tuple[Way, Way]


PLAIN, TLS = Way("plain text", "network"), Way("mutual TLS", "network", certified=True)
LOOPBACK, UNIX = Way("loopback", "loopback"), Way("Unix sockets", "unix")
COMPARISONS = (
    Comparison("cartpole", (PLAIN, TLS)),
    Comparison("pong", (PLAIN, TLS)),
    Comparison("cartpole", (LOOPBACK, UNIX)),
)


class Run:
    """The processes of one run, all of which end with the context."""

    def __init__(self, stack: ExitStack, preset: str, way: Way) -> None:
        """Starts the services, and actors on a host of their own if the way leads over the network."""
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-cost-")))
        run = RunFolder(self._folder / "run")
        here: SwitchedHost | None = None
        there: SwitchedHost | None = None
        if way.addresses == "network":
            switch = stack.enter_context(Switch())
            here, there = switch.host(), switch.host()
        host = "127.0.0.1" if here is None else here.address
        replay, learner = (
            (f"unix:{self._folder}/replay", f"unix:{self._folder}/learner")
            if way.addresses == "unix"
            else (f"{host}:7431", f"{host}:7432")
        )
        credentials = None
        if way.certified:
            issued = issue(run.certificates, "cost", days=_DAYS, hosts={}, now=time.time())
            files = {each.identity.role: each.files for each in issued}
            credentials = Credentials(files["operator"], "operator")

        def start(role: str, on: SwitchedHost | None) -> psutil.Process:
            secured = (
                (f"--security.certificate={run.certificates / role / 'certificate.pem'}",)
                if way.certified
                else ("--security.insecure=true",)
            )
            options = _options(preset, run, replay, learner)
            command = Command(role, *options, *secured, directory=self._folder, host=on)
            stack.enter_context(command)
            self._commands.append(command)
            return psutil.Process(command.pid)

        self._commands: list[Command] = []
        self.replay, self.learner = start("replay", here), start("learner", here)
        self.actors = [start("actor", there) for _ in range(_ACTORS)]
        self._client = stack.enter_context(
            closing(StatusClient(stack.enter_context(closing(LoopThread(credentials))), learner))
        )

    def measured(self, seconds: float) -> Cost:
        """Measures the run for at least some seconds, from one new version to another, once it trains steadily."""
        (steps, used), began = self._counted(_SETTLE_BATCHES), time.monotonic()
        time.sleep(seconds)
        (later, used_later), taken_s = self._counted(), time.monotonic() - began
        millions = (later - steps) / 1e6
        replay, learner, actors = ((now - then) / millions for then, now in zip(used, used_later, strict=True))
        return Cost((later - steps) / taken_s, replay, learner, actors)

    def _counted(self, least_version: int = 0) -> tuple[int, tuple[float, float, float]]:
        """Returns steps and CPU seconds at the next new version, which is at least `least_version`."""
        first = self._status().version
        status = wait_for_run(
            lambda: now if (now := self._status()).version > max(first, least_version) else None, "a new version"
        )
        replay, learner, *actors = (sum(each.cpu_times()[:2]) for each in (self.replay, self.learner, *self.actors))
        return status.env_steps, (replay, learner, sum(actors))

    def _status(self) -> RunStatus:
        """Returns the status, which has version -1 while the learner does not answer."""
        for command in self._commands:
            assert command.process.poll() is None, f"{command} ended: {command.stderr}"
        try:
            return self._client.get(_ANSWER_S)
        except PenstockError:
            return RunStatus(version=-1)


@contextmanager
def running(preset: str, way: Way) -> Iterator[Run]:
    """Runs a preset, whose services are connected in this way."""
    with ExitStack() as stack:
        yield Run(stack, preset, way)


def _options(preset: str, run: RunFolder, replay: str, learner: str) -> Sequence[str]:
    return (
        f"--preset={preset}",
        f"--run-dir={run.root}",
        "--run.total-steps=None",
        "--run.total-minutes=1000",
        "--run.stop-at-return=None",
        "--evaluation.interval-steps=1000000000000",
        f"--train.actors={_ACTORS}",
        "--replay.metrics-port=0",
        "--learner.metrics-port=0",
        "--actor.metrics-port=0",
        f"--replay.listen={replay}",
        f"--learner.listen={learner}",
        f"--learner.replay-addresses={replay}",
        f"--actor.learner-address={learner}",
    )


def main() -> None:
    """Measures and prints all comparisons, and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=15.0, help="seconds of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    if reason := unavailable():
        raise SystemExit(reason)
    console, results, load = Console(highlight=False), list[dict[str, object]](), os.getloadavg()[0]
    for comparison in COMPARISONS:
        rounds: dict[str, list[Cost]] = {way.name: [] for way in comparison.ways}
        for number in range(arguments.rounds):
            # The order alternates, so that a change of the machine's speed favours neither.
            for way in comparison.ways[:: 1 if number % 2 == 0 else -1]:
                with running(comparison.preset, way) as run:
                    rounds[way.name].append(run.measured(arguments.seconds))
        first, second = (median(rounds[way.name]) for way in comparison.ways)
        names = [way.name for way in comparison.ways]
        pace, cpu = second.steps_per_s / first.steps_per_s, second.cpu_s / first.cpu_s
        console.print(
            f"{comparison.preset}, {names[1]} beside {names[0]}: {second.steps_per_s:,.0f} and"
            f" {first.steps_per_s:,.0f} steps/s ({pace:.2f}), {second.cpu_s:.0f} and {first.cpu_s:.0f} CPU s per"
            f" million steps ({cpu:.2f})",
            soft_wrap=True,
        )
        results.append(
            {
                "preset": comparison.preset,
                "baseline": names[0],
                "compared": names[1],
                "steps_per_s_ratio": pace,
                "cpu_ratio": cpu,
                "medians": {names[0]: asdict(first), names[1]: asdict(second)},
                "rounds": {name: [asdict(cost) for cost in costs] for name, costs in rounds.items()},
            }
        )
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "provenance": of_this_run(),
        "load": load,
        "rounds": arguments.rounds,
        "seconds": arguments.seconds,
        "actors": _ACTORS,
        "comparisons": results,
    }
    OUTPUT.write_text(json.dumps(document, indent=2) + "\n")
    console.print(f"written to {OUTPUT}")


if __name__ == "__main__":
    main()
