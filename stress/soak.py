"""`make stress-soak`: what grows in half an hour of a whole run whose actors come and go.

The run is a `penstock train` with three actors and two shards, whose environments pause in each step. One of its actors
receives SIGKILL every 20 s, and the launcher starts it again. Every 30 s another actor joins, and the one before it is
ended by SIGTERM or SIGKILL in turn. Memory, threads and descriptors of every service, the folder, the journal, the logs
and the series of the metrics are read every few seconds. The exit code is 1 if one grows more than its bound after the
first fifth, if a service ends, or if the end of the run leaves something. The result is build/bench/soak.json.
"""

import json
import random
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from penstock.process.service import keep_freed_memory
from penstock.runs.folder import LEARNER, RunFolder
from stress import results
from tests.support.environments import paced
from tests.support.services.processes import WITH_HELPERS, Command, Ended, end_in_time

ACTORS, SHARDS = 3, 2
OPTIONS = (
    f"--env-id={paced.PACED}",
    "--env-import=tests.support.environments.paced",
    "--environment.kwargs=pause_s=0.002",
    "--preset=none",
    "--total-steps=2000000000",
    f"--train.actors={ACTORS}",
    f"--train.replay-shards={SHARDS}",
    "--train.max-restarts=1000000",
    "--replay.capacity-bytes=32MiB",
    "--checkpoint.save-interval=20000",
    "--evaluation.interval-steps=20000",
)
KILL_S, JOIN_S, SAMPLE_S = 20.0, 30.0, 5.0
WARM_UP = 0.2
"""Share of the run before growth is measured, in which pools and stores fill."""
MOST = {
    "memory, MB": 12.0,
    "threads": 3.0,
    "descriptors": 12.0,
    "series": 24.0,
    "folder without journal and logs, MB": 4.0,
    "roster, kB": 4.0,
    "journal, kB a minute": 100.0,
    "logs, kB a minute": 30.0,
}
"""Largest growth after warming up; per minute where the name says so."""
MB, KB = 2**20, 2**10


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at the run.

    Attributes:
        minutes: Time since the first look.
        values: Values by what they measure and of which service or file; the names are those of `MOST`.
    """

    minutes: float
    values: dict[str, dict[str, float]]


@dataclass
class Soaked:
    """The run from begin to end."""

    samples: list[Sample] = field(default_factory=list)
    killed: int = 0
    joined: int = 0
    steps: int = 0
    faults: list[str] = field(default_factory=list)

    def growth(self) -> dict[str, dict[str, float]]:
        """Returns by how much each value grew after warming up: the last quarter's mean less the first quarter's."""
        kept = [each for each in self.samples if each.minutes >= WARM_UP * self.samples[-1].minutes]
        quarter = max(1, len(kept) // 4)
        minutes = max(1e-9, kept[-1].minutes - kept[0].minutes)
        found: dict[str, dict[str, float]] = {}
        for what, of_services in self.samples[-1].values.items():
            for name in of_services:
                ends = [
                    statistics.mean(each.values[what].get(name, 0.0) for each in part)
                    for part in (kept[:quarter], kept[-quarter:])
                ]
                # The means of two quarters are three quarters apart.
                per = 0.75 * minutes if what.endswith("a minute") else 1.0
                found.setdefault(what, {})[name] = (ends[1] - ends[0]) / per
        return found


def look(command: Command, folder: RunFolder, began: float) -> Sample:
    """Looks at all services, which outlive the actors, and at the folder."""
    memory, threads, descriptors = dict[str, float](), dict[str, float](), dict[str, float]()
    for name, process in services_of(command).items():
        size = process.memory_info()
        memory[name] = (size.rss - size.shared) / MB
        threads[name], descriptors[name] = process.num_threads(), process.num_fds()
    logs, sizes = sizes_of(folder.logs), sizes_of(folder.root)
    journal, roster = (sizes.get(path, 0) for path in (folder.metrics, folder.roster))
    rest = sum(sizes.values()) - sum(logs.values()) - journal
    values = {
        "memory, MB": memory,
        "threads": threads,
        "descriptors": descriptors,
        "series": series_of(folder),
        "folder without journal and logs, MB": {"": rest / MB},
        "roster, kB": {"": roster / KB},
        "journal, kB a minute": {"": journal / KB},
        "logs, kB a minute": {"": sum(logs.values()) / KB},
    }
    return Sample((time.monotonic() - began) / 60.0, values)


def services_of(command: Command) -> dict[str, psutil.Process]:
    """Returns the launcher and all services but the actors, by name."""
    found = {"launcher": psutil.Process(command.pid)}
    for process in command.family():
        with suppress(psutil.NoSuchProcess):
            words = process.cmdline()
            if words[1:3] == ["-Pm", "penstock"] and words[3] != "actor":
                folder = [word for word in words if word.startswith("--replay.folder=")]
                found[Path(folder[-1]).name if words[3] == "replay" else words[3]] = process
    return found


def actors_of(command: Command) -> list[psutil.Process]:
    """Returns the actors that the launcher has started."""
    found = []
    for process in command.family():
        with suppress(psutil.NoSuchProcess):
            if process.cmdline()[1:4] == ["-Pm", "penstock", "actor"]:
                found.append(process)
    return found


def sizes_of(folder: Path) -> dict[Path, int]:
    """Returns the size of each file below a folder, in bytes; files come and go meanwhile."""
    found = {}
    for path in folder.rglob("*"):
        with suppress(OSError):
            if path.is_file():
                found[path] = path.stat().st_size
    return found


def series_of(folder: RunFolder) -> dict[str, float]:
    """Returns the number of series that each kind of service exports, of its first one that answers."""
    found: dict[str, float] = {}
    for entry in json.loads(folder.targets.read_text()):
        job, (address,) = entry["labels"]["job"], entry["targets"]
        with suppress(OSError):
            if job not in found:
                with urllib.request.urlopen(f"http://{address}/metrics", timeout=5.0) as answer:
                    found[job] = sum(not line.startswith(b"#") for line in answer.read().splitlines())
    return found


class ComingAndGoing:
    """The actors of a run: some are killed, others join and are ended."""

    def __init__(self, command: Command, folder: RunFolder, stack: ExitStack, seed: int) -> None:
        self._command, self._folder, self._stack = command, folder, stack
        self._random, self._joined = random.Random(seed), list[Command]()
        self.killed = self.joined = 0

    def kill(self) -> None:
        """Kills one of the launcher's actors; at times all of them are in their start."""
        actors = actors_of(self._command)
        if actors:
            with suppress(psutil.NoSuchProcess):
                self._random.choice(actors).kill()
                self.killed += 1

    def join(self) -> None:
        """Lets another actor join, and ends the one before it."""
        learner = self._folder.places()[LEARNER].addresses[0]
        options = (f"--config={self._folder.config}", f"--actor.learner-address={learner}")
        own = ("--actor.listen=127.0.0.1:0", "--actor.metrics-port=0")
        self._joined.append(self._stack.enter_context(Command("actor", *options, *own, environment=WITH_HELPERS)))
        self.joined += 1
        if len(self._joined) > 1:
            self._end(self._joined.pop(0), in_order=self.joined % 2 == 0)

    def close(self) -> None:
        """Ends the last one."""
        for actor in self._joined:
            self._end(actor, in_order=True)

    def _end(self, actor: Command, *, in_order: bool) -> None:
        # It is not awaited: it may still import.
        (actor.terminate if in_order else actor.kill)()


def soak(root: Path, *, minutes: float, every: float, seed: int, show: Callable[[str], None]) -> Soaked:
    """Runs the whole; `every` scales the times between the events and between the looks."""
    folder, soaked = RunFolder(root / "run"), Soaked()
    with ExitStack() as stack:
        command = stack.enter_context(Command("train", *OPTIONS, f"--run-dir={folder.root}", environment=WITH_HELPERS))
        command.until(lambda: folder.metrics.exists() and folder.metrics.read_text(), "the first batches")
        actors = ComingAndGoing(command, folder, stack, seed)
        began = time.monotonic()
        first = services_of(command)
        due = dict.fromkeys((KILL_S, JOIN_S, SAMPLE_S), began)
        while time.monotonic() < began + 60.0 * minutes and command.process.poll() is None:
            now = time.monotonic()
            for interval, event in ((KILL_S, actors.kill), (JOIN_S, actors.join), (SAMPLE_S, None)):
                if now >= due[interval]:
                    due[interval] = now + every * interval
                    if event is not None:
                        event()
                    else:
                        soaked.samples.append(look(command, folder, began))
                        show(summary_of(soaked.samples[-1]))
            time.sleep(0.2)
        ended = [name for name, process in services_of(command).items() if process.pid != first[name].pid]
        soaked.faults += [f"{name} was started again" for name in ended]
        actors.close()
        command.interrupt()
        soaked.faults += faults_of(end_in_time(command), root)
        soaked.killed, soaked.joined = actors.killed, actors.joined
    return soaked


def faults_of(end: Ended, root: Path) -> list[str]:
    """Returns what is wrong with the end of a run that Ctrl-C has ended."""
    faults = [] if end.code == 130 else [f"the run ended with {end.code}: {end.stderr[-500:]}"]
    left = [*root.rglob("sockets-*"), *root.rglob(".*")]
    return [*faults, *(f"{each} was left" for each in (*end.left_behind, *left))]


def summary_of(sample: Sample) -> str:
    """Returns a line about a look."""
    memory = ", ".join(f"{name} {size:.0f}" for name, size in sample.values["memory, MB"].items())
    return f"{sample.minutes:5.1f} min: MB {memory}; series {sample.values['series']}"


def beyond(growth: dict[str, dict[str, float]]) -> list[str]:
    """Returns what grew more than its bound."""
    return [
        f"{name or 'the run'}: {what} grew by {size:.1f}, at most {MOST[what]:g}"
        for what, of_services in growth.items()
        for name, size in of_services.items()
        if size > MOST[what]
    ]


def show_all(soaked: Soaked, growth: dict[str, dict[str, float]], faults: Sequence[str], console: Console) -> None:
    """Prints the last values with their growth."""
    table = Table("", "of", "at the end", "growth", "at most")
    for what, of_services in growth.items():
        for name, size in of_services.items():
            last = soaked.samples[-1].values[what].get(name, 0.0)
            table.add_row(what, name, f"{last:,.1f}", f"{size:+.2f}", f"{MOST[what]:g}")
    console.print(table)
    console.print(f"{soaked.killed} actors killed, {soaked.joined} joined")
    for fault in faults:
        console.print(f"FAIL {fault}", markup=False)


def main() -> int:
    """Measures, prints and writes everything; returns 1 if a bound was exceeded."""
    parser = results.options(__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    keep_freed_memory()
    console = Console(width=140, highlight=False)
    with tempfile.TemporaryDirectory(prefix="penstock-soak-") as root:
        soaked = soak(Path(root), minutes=arguments.minutes, every=1.0, seed=arguments.seed, show=console.print)
    growth = soaked.growth()
    faults = [*soaked.faults, *beyond(growth)]
    show_all(soaked, growth, faults, console)
    found = {"minutes": arguments.minutes, "growth": growth, "most": MOST, "broken": faults, **asdict(soaked)}
    results.write(arguments, found)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
