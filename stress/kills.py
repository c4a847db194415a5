"""`make stress-kills`: kills the services of five forms of a run at random, and accounts for each acknowledged segment.

The forms are a plain run, two shards, certificates, two ranks and a recurrent policy. The services are processes on
loopback, and the actors are plain clients of the contract (`plain_actor.py`), so that no code under test keeps the
ledger. A victim receives SIGKILL and is started again. At the end of a form, what was acknowledged is compared with the
headers and contents of the stores. The exit code is 1 if a segment was lost or doubled, a version went back, a service
did not recover, or a process, a temporary file or a folder of sockets was left. The result is build/bench/kills.json.
"""

import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from penstock.process.service import keep_freed_memory
from penstock.runs.folder import LEARNER
from stress import results
from stress.plain_actor import ENVIRONMENT, ENVIRONMENTS, STEPS
from stress.services import EVALUATOR, Form, Services
from tests.support.segments.store_ledger import Account, Place, account
from tests.support.segments.store_view import StoreView
from tests.support.services.processes import ROOT

_MEMORY_SIZE = 16
FORMS = (
    Form("plain"),
    Form("two shards", shards=2),
    Form("certificates", certified=True),
    Form("two ranks", ranks=2),
    Form("recurrent policy", options=("--policy.memory=gru", f"--policy.memory-size={_MEMORY_SIZE}")),
)
OPTIONS = (
    f"--env-id={ENVIRONMENT}",
    "--total-steps=2000000000",
    f"--actor.unroll-length={STEPS}",
    f"--envs-per-actor={ENVIRONMENTS}",
    "--sampling.batch-segments=32",
    "--sampling.fresh-fraction=0.5",
    "--sampling.off-policy-degree=1",
    "--ppo.minibatches=2",
    "--evaluation.interval-steps=4000",
    "--evaluation.episodes=1",
    "--checkpoint.save-interval=4000",
    "--replay.capacity-bytes=256MiB",
)
ACTORS = 2
_ALIVE_S = 0.2, 3.0
_VICTIMS = (*3 * ("replay",), *3 * (LEARNER,), *3 * ("actor",), EVALUATOR)
"""Ten kills in a row, in random order."""
_RECOVERY_S = 300.0
"""Longest recovery; a quiet machine takes some seconds, most of them for imports."""
_STOP_S = 60.0
_GONE = ("UNAVAILABLE", "CANCELLED")
"""Statuses of calls to a killed service."""


class ActorProcess:
    """A plain actor, and what was acknowledged to it."""

    def __init__(self, services: Services, number: int) -> None:
        """Starts the actor, whose segments begin with this number."""
        command = [sys.executable, "-m", "stress.plain_actor", "--learner", services.addresses[LEARNER]]
        command += ["--number", str(number)]
        files = services.files("actor")
        command += ["--certificate", str(files.certificate)] if files is not None else []
        command += ["--memory", f"1,{_MEMORY_SIZE}"] if any("memory" in each for each in services.form.options) else []
        self.acknowledged: dict[str, dict[Place, int]] = defaultdict(dict)
        self.breaks: list[tuple[str, str]] = []
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def end(self, number: signal.Signals) -> int:
        """Sends a signal, and waits until everything that the actor has printed is read; returns its exit code."""
        self._process.send_signal(number)
        code = self._process.wait()
        self._reader.join()
        return code

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            entry = json.loads(line)
            if "broken" in entry:
                self.breaks.append((entry["broken"], entry["details"]))
            else:
                self.acknowledged[entry["replay"]][entry["slot"], entry["incarnation"]] = entry["stored"]


@dataclass
class Outcome:
    """What happened to one form of a run.

    Attributes:
        form: Its name.
        kills: Kills by service.
        recovery_s: Seconds from each kill to the next version of every shard, for an actor to the first acknowledgement
            of the next one, and for an evaluator until the learner knows the next one.
        accounts: What the ledger found, by replay service.
        version: Last version.
        violations: Broken guarantees.
    """

    form: str
    kills: dict[str, int] = field(default_factory=dict)
    recovery_s: dict[str, list[float]] = field(default_factory=dict)
    accounts: dict[str, Account] = field(default_factory=dict)
    version: int = 0
    violations: list[str] = field(default_factory=list)


class Killer:
    """Kills the services of one form, and observes them."""

    def __init__(self, services: Services, seed: int) -> None:
        self._services, self._random = services, random.Random(seed)
        self._next: list[str] = []
        self.outcome = Outcome(services.form.name)
        self._actors: list[ActorProcess] = []
        self._ended: list[ActorProcess] = []
        self._views: dict[str, StoreView] = {}
        self._versions: Counter[str] = Counter()

    @contextmanager
    def noting_failures(self) -> Iterator[None]:
        """Notes a wait that took too long, or a service that had ended by itself, as a violation."""
        try:
            yield
        except AssertionError as error:
            self.outcome.violations.append(str(error))

    def begin(self) -> None:
        """Starts everything, and waits for the first versions."""
        for name in (*self._services.replays, LEARNER, EVALUATOR):
            self._services.start(name)
        self._actors = [ActorProcess(self._services, number) for number in range(ACTORS)]
        self._until(self._services.has_schema, "the stores' schema")
        self._views = {name: StoreView(self._services.store(name)) for name in self._services.replays}
        self._until_trained("the start")

    def kill_once(self) -> None:
        """Lets the run work for a while, kills one service, and waits until it works again."""
        resume = time.monotonic() + self._random.uniform(*_ALIVE_S)
        self._until(lambda: time.monotonic() >= resume, "the next kill")
        victim = self.victim()
        match victim:
            case "actor":
                ended = self._kill_actor()
            case "evaluator":
                ended = self._kill_evaluator()
            case "replay":
                ended = self._kill_replay()
            case _:
                rank = self._random.randrange(self._services.form.ranks)
                victim = victim if self._services.form.ranks == 1 else f"rank {rank}"
                ended = self._kill_learner(rank)
        self.outcome.kills[victim] = self.outcome.kills.get(victim, 0) + 1
        self.outcome.recovery_s.setdefault(victim, []).append(time.monotonic() - ended)

    def victim(self) -> str:
        """Draws the next victim; ten in a row have the shares of `_VICTIMS`."""
        if not self._next:
            self._next = self._random.sample(_VICTIMS, len(_VICTIMS))
        return self._next.pop()

    def end(self) -> None:
        """Ends everything in order, and compares the ledger with the stores."""
        violations = self.outcome.violations
        for actor in self._actors:
            if (code := actor.end(signal.SIGTERM)) != -signal.SIGTERM:
                violations.append(f"an actor ended with {code}")
        for name in (EVALUATOR, LEARNER, *self._services.replays):
            # torchrun has ended its ranks when it ends, with a traceback of its own.
            if fault := self._services.stop(name, _STOP_S):
                violations.append(fault)
        self._look()
        self.outcome.version = min(self._versions.values())
        for name, address in self._services.addresses.items():
            if name != LEARNER:
                found = account(self._acknowledged(address), self._services.store(name))
                self.outcome.accounts[name] = found
                if not found.balanced:
                    violations.append(f"{name}: {found}")
        for actor in (*self._ended, *self._actors):
            violations += [
                f"an actor was refused: {status}, {why}" for status, why in actor.breaks if status not in _GONE
            ]
        violations += [f"{path} was left" for path in self._services.leftovers()]

    def abandon(self) -> None:
        """Ends the actors at once."""
        for actor in self._actors:
            actor.end(signal.SIGKILL)

    def _acknowledged(self, address: str) -> dict[Place, int]:
        """Returns the last acknowledged sequence of each slot and incarnation at a replay service."""
        last: Counter[Place] = Counter()
        for actor in (*self._ended, *self._actors):
            last |= Counter(actor.acknowledged[address])
        return dict(last)

    def _kill_replay(self) -> float:
        ended = self._services.kill(self._random.choice(self._services.replays))
        self._until_trained("the kill of a replay service")
        return ended

    def _kill_learner(self, rank: int) -> float:
        sessions = {name: view.session for name, view in self._views.items()}
        ended = self._services.kill(LEARNER, rank)
        self._until(
            lambda: all(view.session != sessions[name] for name, view in self._views.items()), "the next learner"
        )
        self._until_trained("the kill of a learner")
        return ended

    def _kill_actor(self) -> float:
        number = self._random.randrange(ACTORS)
        former = self._actors[number]
        former.end(signal.SIGKILL)
        ended = time.monotonic()
        self._ended.append(former)
        self._actors[number] = following = ActorProcess(self._services, ACTORS + len(self._ended))
        self._until(lambda: following.acknowledged, "the next actor's first acknowledgement")
        return ended

    def _kill_evaluator(self) -> float:
        def joined() -> int:
            return self._services.running[LEARNER].stderr.count('"event": "evaluator joined"')

        before = joined()
        ended = self._services.kill(EVALUATOR)
        self._until(lambda: joined() > before, "the next evaluator")
        return ended

    def _until_trained(self, after: str) -> None:
        self._look()
        before = dict(self._versions)
        self._until(lambda: all(self._versions[name] > before[name] for name in before), f"a version after {after}")

    def _until(self, condition: Callable[[], object], what: str) -> None:
        """Waits, and observes the versions meanwhile."""
        deadline = time.monotonic() + _RECOVERY_S
        while not condition():
            self._look()
            assert time.monotonic() < deadline, f"{what}: not within {_RECOVERY_S:.0f} s"
            time.sleep(0.05)

    def _look(self) -> None:
        for name, view in self._views.items():
            version = view.version
            if version < self._versions[name]:
                self.outcome.violations.append(f"{name}: version {version} after {self._versions[name]}")
            self._versions[name] = version


def play(form: Form, *, kills: int, seconds: float, seed: int, show: Callable[[str], None]) -> Outcome:
    """Kills the services of a form this many times, or as often as the time permits."""
    with tempfile.TemporaryDirectory(prefix="penstock-kills-") as root, ExitStack() as stack:
        killer = Killer(stack.enter_context(Services(Path(root), form, *OPTIONS)), seed)
        stack.callback(killer.abandon)
        deadline = time.monotonic() + seconds
        with killer.noting_failures():
            killer.begin()
            while sum(killer.outcome.kills.values()) < kills and time.monotonic() < deadline:
                killer.kill_once()
                show(f"{form.name}: {killer.outcome.kills}, {len(killer.outcome.violations)} violations")
        with killer.noting_failures():
            killer.end()
        return killer.outcome


def show_all(outcomes: Sequence[Outcome], console: Console) -> None:
    """Prints the table of all forms, and the violations."""
    table = Table("form", "kills", "acknowledged", "lost", "doubled", "version", "recovery, s: median, longest")
    for each in outcomes:
        accounts = each.accounts.values()
        table.add_row(
            each.form,
            ", ".join(f"{count} {kind}" for kind, count in each.kills.items()),
            f"{sum(found.acknowledged for found in accounts):,}",
            str(sum(found.lost for found in accounts)),
            str(sum(found.duplicated for found in accounts)),
            str(each.version),
            "\n".join(
                f"{kind} {statistics.median(times):.1f}, {max(times):.1f}" for kind, times in each.recovery_s.items()
            ),
        )
    console.print(table)
    for each in outcomes:
        for violation in each.violations:
            console.print(f"FAIL {each.form}: {violation}", markup=False, highlight=False)


def main() -> int:
    """Plays all forms; prints and writes the result; returns 1 if a guarantee was violated."""
    parser = results.options(__doc__)
    parser.add_argument("--kills", type=int, default=100, help="kills of all forms together")
    parser.add_argument("--minutes", type=float, default=25.0, help="minutes after which no form kills any more")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--forms", nargs="+", choices=[form.name for form in FORMS], default=[f.name for f in FORMS])
    arguments = parser.parse_args()
    keep_freed_memory()
    console = Console(width=140, highlight=False)
    forms = [form for form in FORMS if form.name in arguments.forms]
    outcomes = list[Outcome]()
    for number, form in enumerate(forms):
        outcome = play(
            form,
            kills=-(-arguments.kills // len(forms)),
            seconds=60.0 * arguments.minutes / len(forms),
            seed=arguments.seed + number,
            show=console.print,
        )
        outcomes.append(outcome)
    show_all(outcomes, console)
    results.write(arguments, {"forms": [asdict(outcome) for outcome in outcomes]})
    return int(any(outcome.violations for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
