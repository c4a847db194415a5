"""A run whose services have wall clocks up to ten hours apart: it trains, survives kills, and resumes."""

import itertools
import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from urllib.request import urlopen

import pytest

from penstock.errors import Unavailable
from penstock.rpc.clients.operator import StatusClient
from penstock.rpc.loop import LoopThread
from penstock.runs.folder import RunFolder, copy_of
from penstock.types.status import RunStatus
from tests.support.machine.timing import PATIENCE_S, wait_for_run
from tests.support.machine.wall_clock import HOUR_S, WallClock, library, unavailable
from tests.support.segments.store_view import StoreView
from tests.support.services.ports import free_ports
from tests.support.services.processes import WITH_HELPERS, Command

HOURS = {"replay": -5, "learner": 5, "actor 0": -5, "actor 1": 0, "evaluator": -5}
"""Hours by which the clock of each service is ahead."""

SETTINGS = (
    "--environment.id=Paced-v0 --environment.imports=tests.support.environments.paced"
    " --actor.environments=4 --actor.unroll-length=8"
    " --sampling.batch-segments=16 --sampling.fresh-fraction=0.5 --ppo.epochs=1 --run.total-steps=1000000000"
    " --evaluation.episodes=1 --evaluation.interval-steps=500 --learner.rejoin-timeout-s=2"
)

pytestmark = pytest.mark.nightly


@dataclass
class Seen:
    """Observations of the run.

    Attributes:
        hours: Hours by which the log of each service is ahead.
        statuses: Status once the run trains with both actors and has a new evaluation: at first, and after each kill.
        incarnations: Latest incarnation of each slot in the store at these times.
        ages_s: For each actor, the ages of the learner's latest publication and of the actor's weights.
        refusals: Log lines about incarnations that are too large.
    """

    hours: dict[str, int] = field(default_factory=dict)
    statuses: list[RunStatus] = field(default_factory=list)
    incarnations: list[dict[int, int]] = field(default_factory=list)
    ages_s: list[tuple[float, float]] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)


class Run:
    """The services of the run, each with a clock of its own."""

    def __init__(self, folder: Path, library: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        names = [*HOURS, *(f"{name} metrics" for name in HOURS)]
        self._ports = dict(zip(names, free_ports(len(names)), strict=True))
        self._clocks = {name: WallClock(library, folder / f"clock of {name}") for name in HOURS}
        for name, hours in HOURS.items():
            self.set_clock(name, hours)
        self.commands: dict[str, Command] = {}
        for name in HOURS:
            self.start(name)
        self._status = StatusClient(stack.enter_context(closing(LoopThread())), self._address("learner"))
        stack.callback(self._status.close)

    def set_clock(self, name: str, hours: int) -> None:
        """Sets the clock of a service to the correct time plus these hours."""
        self._clocks[name].set_offset(hours * HOUR_S)

    def hours_of_log(self, name: str) -> int:
        """Returns the hours by which the newest line of a service's log is ahead."""
        newest = json.loads(self.commands[name].stderr.splitlines()[-1])
        return round((datetime.fromisoformat(newest["timestamp"]).timestamp() - time.time()) / HOUR_S)

    def start(self, name: str) -> None:
        """Starts a service."""
        service = name.split()[0]
        section = "evaluation" if service == "evaluator" else service
        command = Command(
            service,
            *SETTINGS.split(),
            f"--run.dir={self.folder / 'run'}",
            f"--replay.folder={self.folder / 'store'}",
            f"--learner.replay-addresses={self._address('replay')}",
            f"--actor.learner-address={self._address('learner')}",
            f"--evaluation.learner-address={self._address('learner')}",
            f"--{section}.listen={self._address(name)}",
            f"--{section}.metrics-port={self._ports[f'{name} metrics']}",
            environment=WITH_HELPERS | self._clocks[name].variables,
            directory=self.folder,
        )
        self.commands[name] = self._stack.enter_context(command)

    def kill(self, name: str) -> None:
        """Kills a service."""
        self.commands[name].kill()
        self.commands[name].process.wait()

    def train(self, after: RunStatus | None) -> RunStatus:
        """Waits until the run has trained further with both actors, and has evaluated since."""
        version = after.version if after is not None else 0
        evaluated = after.last_evaluation.version if after is not None and after.last_evaluation is not None else -1

        def status() -> RunStatus | None:
            try:
                now = self._status.get(PATIENCE_S)
            except Unavailable:
                return None
            evaluation = now.last_evaluation
            trains = now.version > version and now.actors == 2
            return now if trains and evaluation is not None and evaluation.version > evaluated else None

        return wait_for_run(status, f"training with both actors after version {version}")

    def incarnations(self) -> dict[int, int]:
        """Returns the incarnation of each slot whose segments the store holds."""
        return dict(sorted(StoreView(self.folder / "store").read().marks))

    def age_s(self, name: str, metric: str) -> float:
        """Returns an age that a service exports."""
        with urlopen(f"http://127.0.0.1:{self._ports[f'{name} metrics']}/metrics", timeout=PATIENCE_S) as response:
            text = response.read().decode()
        found = re.search(rf"^{metric} (\S+)$", text, re.MULTILINE)
        assert found is not None, metric
        return float(found[1])

    def _address(self, name: str) -> str:
        return f"127.0.0.1:{self._ports[name]}"


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """Runs the services and kills one after the other; the learner also without its roster, under two clocks."""
    if reason := unavailable():
        pytest.skip(reason)
    folder, seen = tmp_path_factory.mktemp("clocks"), Seen()
    with ExitStack() as stack:
        run = Run(folder, library(folder), stack)

        def observe() -> None:
            seen.statuses.append(run.train(seen.statuses[-1] if seen.statuses else None))
            seen.incarnations.append(run.incarnations())

        def lose_roster() -> None:
            roster = RunFolder(folder / "run").roster
            for path in (roster, copy_of(roster)):
                path.write_bytes(b"lost")

        observe()
        for name in HOURS:
            seen.hours[name] = run.hours_of_log(name)
        published_s = run.age_s("learner", "penstock_learner_publication_age_seconds")
        for name in ("actor 0", "actor 1"):
            seen.ages_s.append((published_s, run.age_s(name, "penstock_actor_weights_age_seconds")))
        for name in ("actor 0", "replay", "learner"):
            run.kill(name)
            run.start(name)
            observe()
        for hours in (5, -5):
            run.kill("learner")
            lose_roster()
            run.set_clock("learner", hours)
            run.start("learner")
            observe()
        seen.refusals = [line for name in HOURS for line in run.commands[name].stderr.splitlines() if "largest" in line]
    yield seen


def test_the_clocks_of_the_services_disagree(seen: Seen) -> None:
    assert seen.hours == HOURS


def test_training_and_evaluation_continue_after_every_kill(seen: Seen) -> None:
    versions = [status.version for status in seen.statuses]
    assert len(versions) == 6
    assert versions == sorted(set(versions))


def test_incarnations_grow_whatever_the_clock_of_a_learner_that_lost_its_roster(seen: Seen) -> None:
    for before, after in itertools.pairwise(seen.incarnations):
        assert all(after[slot] >= incarnation for slot, incarnation in before.items())
    assert max(seen.incarnations[-2].values()) > time.time() > max(seen.incarnations[-3].values())
    assert seen.refusals == []


def test_ages_of_weights_do_not_depend_on_the_clocks(seen: Seen) -> None:
    for published_s, received_s in seen.ages_s:
        assert 0.0 <= published_s < HOUR_S
        assert 0.0 <= received_s < HOUR_S
