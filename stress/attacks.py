"""`make stress-attacks`: the pace of a healthy run beside twenty kinds of attackers of equal priority.

The run is real: a replay service, a learner and an actor, at full pace and at about 40% of it, without certificates and
with them. Four clients attack both services at once, with all the processor time that they can get. They know the run's
number and have places with their tokens; on services with certificates they have an actor's certificate. Each span with
an attack is compared with the spans before and after it. Since the clients take processor time from the run whatever
they send, one kind of client only computes: an attack must leave the run at least 0.8 of the pace that this one leaves.
The exit code is 1 if an attack takes more, or if a service ends, logs a traceback or does not answer a health check.
The result is build/bench/attacks.json.
"""

import json
import math
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from penstock.machine.files import decode_record
from penstock.process.service import keep_freed_memory
from penstock.rpc.health import is_serving
from penstock.runs.folder import LEARNER
from penstock.security.roles import Role
from stress import results
from stress.attackers import ATTACKS, CLIENTS, CONTROL, ENVIRONMENT, RECOVERY_S, Target
from stress.fuzz import UNDELIVERED
from stress.services import Form, Services
from tests.support.machine.timing import wait_for_run
from tests.support.segments.store_view import StoreView
from tests.support.services.processes import ROOT

PACES = {"full pace": math.inf, "40%": 0.4}
"""Pace of the run, as a share of its highest."""
KEPT = 0.8
SPAN_S, SETTLE_S = 2.0, 1.0
HEALTH_S = 5.0
_STEPS, _ENVIRONMENTS, _FRESH = 16, 8, 16
_OPTIONS = (
    f"--environment.id={ENVIRONMENT}",
    "--environment.imports=tests.support.environments.paced",
    "--preset=none",
    "--total-steps=2000000000",
    f"--actor.unroll-length={_STEPS}",
    f"--envs-per-actor={_ENVIRONMENTS}",
    f"--sampling.batch-segments={2 * _FRESH}",
    "--sampling.fresh-fraction=0.5",
    "--ppo.minibatches=2",
    "--evaluation.interval-steps=2000000000",
    "--replay.capacity-bytes=64MiB",
    "--replay.max-actors=256",
)
_TRACEBACKS = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)$", re.MULTILINE)
"""The last line of each traceback."""
_SERVICES: tuple[Role, ...] = ("replay", "learner")
MB = 2**20


@dataclass(frozen=True, slots=True)
class Attacked:
    """What an attack did to a run.

    Attributes:
        attack: Name of the attack.
        requests_per_s: Requests of all clients per second; of held connections and streams, those that were opened.
        versions_per_s_alone, versions_per_s_beside: Pace of the run without the attack and beside it.
        kept: Ratio of the two.
        health_answered: Whether both services answered a health check within 5 s during the attack.
        memory_mb: Anonymous memory of replay service and learner at the end of the attack.
        descriptors: Open files of both.
    """

    attack: str
    requests_per_s: float
    versions_per_s_alone: float
    versions_per_s_beside: float
    kept: float
    health_answered: bool
    memory_mb: tuple[float, float]
    descriptors: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Measured:
    """One run beside all attacks.

    Attributes:
        certified: Whether its services have certificates.
        pace: Its pace, as a key of `PACES`.
        versions_per_s: Its pace alone.
        attacks: What each attack did.
        ended: What ended or logged a traceback.
    """

    certified: bool
    pace: str
    versions_per_s: float
    attacks: list[Attacked]
    ended: list[str]

    @property
    def least(self) -> float:
        """The smallest share that an attack must leave: `KEPT` of what clients leave that only compute."""
        return KEPT * next(each.kept for each in self.attacks if each.attack == CONTROL)

    @property
    def broken(self) -> list[str]:
        """The bounds that did not hold, as text."""
        slow = [f"{each.attack}: kept {each.kept:.0%}" for each in self.attacks if each.kept < self.least]
        deaf = [f"{each.attack}: no answer to a health check" for each in self.attacks if not each.health_answered]
        return [*slow, *deaf, *self.ended]


class Attackers:
    """The attacking clients, each a process, which begin and end together."""

    def __init__(self, target: Target) -> None:
        """Starts the clients, and waits until they are ready."""
        command = [sys.executable, "-m", "stress.attackers"]
        self._clients = [
            subprocess.Popen(
                [*command, str(number), json.dumps(asdict(target))],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for number in range(CLIENTS)
        ]
        self._answers()

    def begin(self, name: str) -> None:
        """Begins an attack."""
        self._tell(f"begin {name}")

    def end(self) -> int:
        """Ends the attack, and returns the number of requests."""
        self._tell("end")
        return sum(int(answer) for answer in self._answers())

    def close(self) -> None:
        """Ends the clients."""
        for client in self._clients:
            client.kill()
            client.wait()

    def _tell(self, line: str) -> None:
        for client in self._clients:
            assert client.stdin is not None
            client.stdin.write(f"{line}\n")
            client.stdin.flush()

    def _answers(self) -> list[str]:
        answers = []
        for client in self._clients:
            assert client.stdout is not None
            answers.append(client.stdout.readline().strip())
            assert answers[-1], "an attacking client ended by an error"
        return answers


class AttackedRun:
    """A healthy run and its attackers."""

    def __init__(self, services: Services, view: StoreView, attackers: Attackers) -> None:
        self._services, self._view, self._attackers = services, view, attackers

    def versions_per_s(self, seconds: float) -> float:
        """Returns the pace over this time."""
        version, began = self._view.version, time.monotonic()
        time.sleep(seconds)
        return (self._view.version - version) / (time.monotonic() - began)

    def measure(self, name: str, span_s: float, alone: float) -> tuple[Attacked, float]:
        """Attacks the run, whose pace before was `alone`; returns what it did, and the pace after it."""
        began = time.monotonic()
        self._attackers.begin(name)
        time.sleep(RECOVERY_S.get(name, SETTLE_S))
        beside = self.versions_per_s(span_s)
        health = all(
            is_serving(self._services.addresses[each], HEALTH_S, self._services.credentials("operator"), each)
            for each in _SERVICES
        )
        attacked_s = time.monotonic() - began
        processes = [psutil.Process(self._services.running[each].pid) for each in _SERVICES]
        memory, descriptors = [_anonymous_mb(each) for each in processes], [each.num_fds() for each in processes]
        requests = self._attackers.end()
        time.sleep(SETTLE_S)
        after = self.versions_per_s(span_s)
        mean = statistics.mean((alone, after))
        attacked = Attacked(
            attack=name,
            requests_per_s=requests / attacked_s,
            versions_per_s_alone=mean,
            versions_per_s_beside=beside,
            kept=beside / mean,
            health_answered=health,
            memory_mb=(memory[0], memory[1]),
            descriptors=(descriptors[0], descriptors[1]),
        )
        return attacked, after

    def ended(self) -> list[str]:
        """Returns which services have ended or logged a traceback."""
        running = self._services.running.items()
        ended = [f"{name} ended" for name, command in running if command.process.poll() is not None]
        return ended + [
            f"{name} logged a traceback that ends with {line!r}"
            for name, each in running
            for line in sorted(set(_TRACEBACKS.findall(each.stderr)))
            if not line.startswith(UNDELIVERED)
        ]


def _anonymous_mb(process: psutil.Process) -> float:
    memory = process.memory_info()
    return float(memory.rss - memory.shared) / MB


@contextmanager
def attacked_run(root: Path, *, certified: bool, pause_s: float) -> Iterator[AttackedRun]:
    """Starts a run, whose environments pause in each step, and its attackers."""
    form = Form("attacked", certified=certified, options=(f"--environment.kwargs=pause_s={pause_s:.7f}",))
    with Services(root, form, *_OPTIONS) as services:
        for name in ("replay", LEARNER, "actor"):
            services.start(name)
        learner = services.running[LEARNER]
        learner.until(services.has_schema, "the store's schema")
        view = StoreView(services.store("replay"))
        learner.until(lambda: view.version > 1, "the first versions")
        identity, files = decode_record(services.folder.identity.read_bytes()), services.files("actor")
        assert isinstance(identity, dict)
        attackers = Attackers(
            Target(
                replay=services.addresses["replay"],
                learner=services.addresses[LEARNER],
                replay_metrics=services.metrics["replay"],
                learner_metrics=services.metrics[LEARNER],
                store=str(services.store("replay")),
                run=int(identity["run"], 16),
                key=identity["key"],
                certificate=str(files.certificate) if files is not None else "",
            )
        )
        try:
            wait_for_run(lambda: view.version > 10, "a steady pace")
            yield AttackedRun(services, view, attackers)
        finally:
            attackers.close()


def measure(pace: str, attacks: Sequence[str], *, certified: bool, highest: float, span_s: float) -> Measured:
    """Measures every attack on a run at this pace; `highest` is the highest pace, in versions per second."""
    pause_s = 1.0 / (PACES[pace] * highest * _FRESH * _STEPS)
    with (
        tempfile.TemporaryDirectory(prefix="penstock-attacks-") as root,
        attacked_run(Path(root), certified=certified, pause_s=pause_s) as run,
    ):
        first = alone = run.versions_per_s(2.0 * span_s)
        measured = []
        for name in attacks:
            attacked, alone = run.measure(name, span_s, alone)
            measured.append(attacked)
            print(f"{pace}, {'with' if certified else 'no'} certificates, {name}: {attacked.kept:.0%}", flush=True)
        return Measured(certified, pace, first, measured, run.ended())


def show(measured: Sequence[Measured]) -> None:
    """Prints what every attack left."""
    table = Table("kept", *(f"{each.pace}, {'with' if each.certified else 'no'} certificates" for each in measured))
    table.add_row("versions per s alone", *(f"{each.versions_per_s:.1f}" for each in measured))
    for row in zip(*(each.attacks for each in measured), strict=True):
        table.add_row(row[0].attack, *(f"{each.kept:.0%}, {each.requests_per_s:,.0f} requests/s" for each in row))
    console = Console(width=150, highlight=False)
    console.print(table)
    for each in measured:
        for broken in each.broken:
            console.print(f"FAIL {each.pace}, certificates {each.certified}: {broken}", markup=False)


def main() -> int:
    """Measures, prints and writes everything; returns 0 if all bounds held."""
    parser = results.options(__doc__)
    parser.add_argument("--span-s", type=float, default=SPAN_S, help="seconds of each span with or without an attack")
    parser.add_argument("--attacks", nargs="+", choices=list(ATTACKS), default=list(ATTACKS), metavar="ATTACK")
    arguments = parser.parse_args()
    keep_freed_memory()
    measured = list[Measured]()
    for certified in (False, True):
        highest = math.inf
        for pace in PACES:
            measured.append(
                measure(
                    pace,
                    list(dict.fromkeys((CONTROL, *arguments.attacks))),
                    certified=certified,
                    highest=highest,
                    span_s=arguments.span_s,
                )
            )
            highest = measured[-1].versions_per_s
    show(measured)
    runs = [{**asdict(each), "least": each.least, "broken": each.broken} for each in measured]
    results.write(arguments, {"clients": CLIENTS, "span_s": arguments.span_s, "runs": runs})
    return int(any(each.broken for each in measured))


if __name__ == "__main__":
    sys.exit(main())
