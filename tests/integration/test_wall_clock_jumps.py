"""Jumps of the wall clock by an hour, forwards and backwards, for a whole run and for each service separately."""

import itertools
import json
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.errors import BY_SIGNAL
from penstock.learning.durable import checkpoints
from penstock.learning.durable.checkpoints import RunProgress
from penstock.replay.snapshots.folder import SnapshotFolder
from penstock.rpc.clients.operator import StatusClient
from penstock.rpc.loop import LoopThread
from penstock.runs.folder import RunFolder
from penstock.runs.summary import Summary
from penstock.types.snapshots import Snapshot
from penstock.types.status import RunStatus
from tests.support.machine.timing import wait_for_run
from tests.support.machine.wall_clock import HOUR_S, WallClock, library, unavailable
from tests.support.services.ports import free_ports
from tests.support.services.processes import WITH_HELPERS, Command, Ended, Watch, end_in_time, watching

SETTINGS = (
    "--environment.imports=tests.support.environments.paced,tests.support.environments.failing"
    " --actor.environments=4 --actor.unroll-length=8"
    " --sampling.batch-segments=16 --sampling.fresh-fraction=0.5 --ppo.epochs=1 --run.total-steps=1000000000"
    " --evaluation.episodes=1 --evaluation.interval-steps=500 --checkpoint.save-interval=200"
    " --checkpoint.max-checkpoints=2"
    " --checkpoint.snapshot-interval-s=0.2 --replay.snapshots-kept=2"
)
SERVICES = ("replay", "learner", "actor", "evaluator")
JUMPS = [(who, by) for who in (*SERVICES, "all of them") for by in (HOUR_S, -HOUR_S)]
QUIET = {"snapshot taken", "evaluated", "actors wanted"}
"""Events that healthy services log."""

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if reason := unavailable():
        pytest.skip(reason)
    return library(tmp_path_factory.mktemp("library"))


@dataclass
class Seen:
    """Observations of services whose wall clocks jumped.

    Attributes:
        statuses: Status before the first jump, and after each.
        asked_at: Times just before and just after each status request, on this process's monotonic clock.
        kept: Snapshots present after each jump, oldest first.
        saved: Environment steps of the numbered checkpoints present after each jump, oldest first.
        logged: Events of each service from the first jump to the last status.
        progress: Progress of the last checkpoint.
        wall_s: Seconds from the start of the first service to the end of the last.
        summary: Summary of the learner.
    """

    statuses: list[RunStatus] = field(default_factory=list)
    asked_at: list[tuple[float, float]] = field(default_factory=list)
    kept: list[list[Snapshot]] = field(default_factory=list)
    saved: list[list[int]] = field(default_factory=list)
    logged: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    progress: RunProgress | None = None
    wall_s: float = 0.0
    summary: Summary | None = None

    def ask(self, watch: Watch) -> RunStatus:
        before = time.monotonic()
        self.statuses.append(watch.status())
        self.asked_at.append((before, time.monotonic()))
        return self.statuses[-1]

    def wait_for_files(self, folder: Path, version: int, env_steps: int) -> None:
        """Waits until all snapshots and checkpoints are newer than these."""
        snapshots, run = SnapshotFolder(folder / "snapshots"), RunFolder(folder / "run")

        def kept() -> list[Snapshot]:
            found = [manifest.snapshot for manifest in snapshots.complete()]
            return found if len(found) == 2 and found[0].version > version else []

        def saved() -> list[int]:
            found = [int(path.stem) for path in run.numbered_checkpoints()]
            return found if len(found) == 2 and found[0] > env_steps else []

        self.kept.append(wait_for_run(kept, f"two snapshots after version {version}"))
        self.saved.append(wait_for_run(saved, f"two checkpoints after step {env_steps}"))


def start(stack: ExitStack, folder: Path, clocks: dict[str, WallClock]) -> tuple[dict[str, Command], str]:
    """Starts every service with its own clock; returns the services and the learner's address."""
    addresses = {name: f"127.0.0.1:{port}" for name, port in zip(SERVICES, free_ports(4), strict=True)}
    learner = addresses["learner"]
    options = [
        *SETTINGS.split(),
        "--environment.id=Paced-v0",
        f"--run.dir={folder / 'run'}",
        f"--replay.folder={folder / 'store'}",
        f"--replay.snapshot-folder={folder / 'snapshots'}",
        f"--learner.replay-addresses={addresses['replay']}",
        f"--actor.learner-address={learner}",
        f"--evaluation.learner-address={learner}",
        *(f"--{'evaluation' if name == 'evaluator' else name}.listen={addresses[name]}" for name in SERVICES),
        *(f"--{'evaluation' if name == 'evaluator' else name}.metrics-port=0" for name in SERVICES),
    ]
    commands = {}
    for name in SERVICES:
        variables = WITH_HELPERS | clocks[name].variables
        commands[name] = stack.enter_context(Command(name, *options, environment=variables, directory=folder))
    return commands, learner


@pytest.fixture(scope="module")
def seen(compiled: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """Runs services with separate clocks through all jumps during training."""
    folder, seen = tmp_path_factory.mktemp("jumps"), Seen()
    clocks = {name: WallClock(compiled, folder / f"clock of {name}") for name in SERVICES}
    started = time.monotonic()
    with ExitStack() as stack:
        commands, address = start(stack, folder, clocks)
        thread = stack.enter_context(closing(LoopThread()))
        watch = Watch(commands["learner"], stack.enter_context(closing(StatusClient(thread, address))))
        watch.until(lambda now: now.version > 2 and now.last_evaluation is not None, "training and an evaluation")
        for name, command in commands.items():
            assert clocks[name].is_of(psutil.Process(command.pid)), name
        seen.ask(watch)
        lines = {name: len(command.stderr.splitlines()) for name, command in commands.items()}
        for target, by in JUMPS:
            before = seen.statuses[-1]
            for name in [target] if target in clocks else clocks:
                clocks[name].set_offset(by)
            seen.wait_for_files(folder, before.version, before.env_steps)
            seen.ask(watch)
        for name, command in commands.items():
            seen.logged[name] = [json.loads(line) for line in command.stderr.splitlines()[lines[name] :]]
        for name in reversed(SERVICES):
            commands[name].until(lambda: True, "the services to start")
            commands[name].terminate()
            assert end_in_time(commands[name]).code == BY_SIGNAL + signal.SIGTERM, commands[name].stderr
    seen.wall_s = time.monotonic() - started
    newest = checkpoints.newest(RunFolder(folder / "run"))
    assert newest is not None
    seen.progress = checkpoints.read_progress(newest)
    seen.summary = Summary.read(RunFolder(folder / "run").summary)
    yield seen


def test_training_and_evaluation_continue_after_every_jump(seen: Seen) -> None:
    assert len(seen.statuses) == 1 + len(JUMPS)
    for jump, (before, after) in zip(JUMPS, itertools.pairwise(seen.statuses), strict=True):
        assert after.version > before.version, jump
        assert after.env_steps > before.env_steps, jump
        assert after.actors == 1, jump
    counts = [status.coordinator.evaluations for status in seen.statuses if status.coordinator is not None]
    assert counts[-1] > counts[0]


def test_no_timeout_expires_and_no_peer_is_considered_lost(seen: Seen) -> None:
    for name, events in seen.logged.items():
        assert {event["event"] for event in events} <= QUIET, name
    assert "snapshot taken" in {event["event"] for events in seen.logged.values() for event in events}
    assert seen.statuses[-1].notices == seen.statuses[0].notices
    assert all(actor.failures == 0 for actor in seen.statuses[-1].actor_states)
    coordinator = seen.statuses[-1].coordinator
    assert coordinator is not None and coordinator.drops.refunded_segments == 0


def test_the_newest_snapshots_and_checkpoints_are_kept(seen: Seen) -> None:
    for kept in seen.kept:
        assert kept[0].version < kept[1].version
    for before, after in itertools.pairwise(seen.saved):
        assert before[0] < before[1] < after[0] < after[1]


def test_snapshots_carry_the_time_of_the_clocks_that_jumped(seen: Seen) -> None:
    """Proves that the clocks jumped, in the learner, which names snapshots, and in the replay service."""
    named, taken = [], []
    for kept in seen.kept:
        moment = datetime.strptime(kept[1].name.rpartition("-v")[0], "%Y%m%d-%H%M%S").replace(tzinfo=UTC)
        named.append(round((moment.timestamp() - time.time()) / HOUR_S))
        taken.append(round((kept[1].taken_unix_s - time.time()) / HOUR_S))
    assert taken == [1, *[-1] * 7, 1, -1]
    assert named == [0, 0, 1, *[-1] * 5, 1, -1]


def test_durations_do_not_depend_on_the_wall_clock(seen: Seen) -> None:
    for (before, after), (first, second) in zip(
        itertools.pairwise(seen.statuses), itertools.pairwise(seen.asked_at), strict=True
    ):
        assert second[0] - first[1] <= after.elapsed_s - before.elapsed_s <= second[1] - first[0]
    assert seen.progress is not None and seen.summary is not None
    trained_s = seen.asked_at[-1][0] - seen.asked_at[0][1]
    assert trained_s <= seen.progress.training_s <= seen.progress.wall_s <= seen.wall_s
    assert 0.0 < seen.summary.wall_s <= seen.wall_s


@dataclass(frozen=True, slots=True)
class Whole:
    """Results of a run of `penstock train` whose wall clock jumped.

    Attributes:
        end: Its result.
        wall_s: Seconds from its start to its end.
        trained_s: Minimum of the seconds in which its last learner trained.
        failures: Lines of the terminal about failed windows.
        summary: Summary of the last learner.
    """

    end: Ended
    wall_s: float
    trained_s: float
    failures: list[str]
    summary: Summary


@pytest.fixture(scope="module")
def whole(compiled: Path, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Kills the learner while the clock is behind; windows fail before and after, with notices to the user."""
    folder, clock = tmp_path_factory.mktemp("whole"), WallClock(compiled, tmp_path_factory.mktemp("clock") / "clock")
    run, sound = folder / "run", folder / "sound"
    sound.touch()
    kwargs = f"--environment.kwargs=kind=reward nan,at=0,pause_s=0.0005,once={sound}"
    options = ["--environment.id=Failing-v0", "--train.actors=1", f"--run.dir={run}", kwargs, *SETTINGS.split()]
    started = time.monotonic()
    with Command("train", *options, environment=WITH_HELPERS | clock.variables) as command:

        def a_window_fails(count: int) -> None:
            sound.unlink()
            command.until(lambda: command.stdout.count("a reward of nan") >= count, f"notice {count} of a window")

        with watching(command, run) as watch:
            watch.until(lambda now: now.version > 2, "training")
            processes = [psutil.Process(command.pid), *command.children().values()]
            assert len(processes) == 1 + len(SERVICES)
            assert all(clock.is_of(process) for process in processes)
            clock.set_offset(HOUR_S)
            a_window_fails(1)
            clock.set_offset(-HOUR_S)
            before = watch.status().version
            watch.until(lambda now: now.version > before + 2, "training an hour before")
            command.children()["learner"].kill()
            command.until_output("learner ended with SIGKILL")
            watch.until(lambda now: now.version > before + 4, "training by another learner")
            trained_at = time.monotonic()
            a_window_fails(2)
            trained_s = time.monotonic() - trained_at
        command.interrupt()
        end = end_in_time(command)
    failures = [line for line in end.stdout.splitlines() if "a reward of nan" in line]
    return Whole(end, time.monotonic() - started, trained_s, failures, Summary.read(RunFolder(run).summary))


def test_a_whole_run_continues_when_its_wall_clock_jumps_with_correct_durations(whole: Whole) -> None:
    assert whole.end.code == 130, whole.end.stdout + whole.end.stderr
    assert whole.end.left_behind == []
    assert whole.trained_s <= whole.summary.wall_s <= whole.summary.total_wall_s <= whole.wall_s
    assert whole.end.stdout.count("restarting") == 1


def test_the_user_is_notified_of_events_after_the_clock_was_set_back_and_the_learner_replaced(whole: Whole) -> None:
    assert len(whole.failures) == 2
