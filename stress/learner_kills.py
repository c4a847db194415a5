"""`make stress-learner-kills`: kills the learner of a real run 100 times and measures the cost of each kill.

The run is a `penstock train` on CartPole with all its processes. The learner receives SIGKILL at random moments, and
the launcher restarts it. Before and after each kill the test reads the store's files, the checkpoints, the journal and
`versions.json`. `--kills 6` is a short form. The exit code is 1 if a guarantee was violated. The result is
build/bench/learner_kills.json.
"""

import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from penstock.config import Config, build
from penstock.learning.durable import checkpoints
from penstock.runs.folder import RunFolder
from penstock.types.replay import SamplingPlan
from stress import results
from stress.torture_run import LEAST_MASS_RATIO
from tests.support.machine.timing import wait_for_run
from tests.support.segments.store_view import StoreState, StoreView
from tests.support.services.processes import Command, watching

SETTINGS = {
    "run": {"total_steps": 2_000_000_000},
    "environment": {"id": "CartPole-v1"},
    "train": {"actors": 2, "max_restarts": 1_000_000},
    "actor": {"environments": 8},
    "sampling": {"batch_segments": 32, "fresh_fraction": 0.5, "off_policy_degree": 1},
    "evaluation": {"interval_steps": 4_000, "threshold": 50.0, "episodes": 5},
    "checkpoint": {"save_interval": 4_000},
    "replay": {"capacity_bytes": 64 * 2**20},
}
"""Small batches, so that there are many versions per second and kills occur at every stage of a batch."""


@dataclass
class Kill:
    """The cost of one SIGKILL.

    Attributes:
        used: Last version that the killed learner recorded.
        committed: Version of the store.
        first: First version of the next learner.
        waiting: Fresh segments in the store that were not trained.
        late: Segments that became late between the kill and the training of all segments collected before it.
        mass_ratio: Replayable mass of the segments collected before, with the next learner, divided by their mass
            before.
        restart_s: Seconds from the kill to the first batch of the next learner.
        best_return: Return of the best checkpoint; None before the first.
        threshold_steps: Environment steps to the threshold, from the checkpoints; None if it was not reached.
    """

    used: int
    committed: int
    first: int
    waiting: int
    late: int
    mass_ratio: float
    restart_s: float
    best_return: float | None
    threshold_steps: int | None


@dataclass
class Report:
    """All kills, and the violations."""

    kills: list[Kill] = field(default_factory=list)
    segments_stored: int = 0
    segments_numbered: int = 0
    violations: list[str] = field(default_factory=list)


class LearnerKiller:
    """Kills the learner of one run repeatedly, and observes the recovery."""

    def __init__(self, command: Command, folder: RunFolder, config: Config, seed: int) -> None:
        self._command, self._folder = command, folder
        self._random = random.Random(seed)
        sampling = config.sampling
        self._plan = SamplingPlan(
            session=1,
            next_batch=0,
            batch_segments=sampling.batch_segments,
            fresh_segments=sampling.fresh_segments,
            off_policy_degree=sampling.off_policy_degree,
            publish_interval=sampling.publish_interval,
            alpha=sampling.alpha,
            epsilon=sampling.epsilon,
            half_life=sampling.half_life,
            max_staleness=sampling.max_staleness,
            min_replay_segments=sampling.min_replay_segments,
        )
        self._store = StoreView(folder.replay)
        self._returns: dict[int, float] = {}
        self._marks: dict[tuple[int, int], int] = {}
        self.report = Report()

    def kill_once(self) -> None:
        """Kills the learner once, and observes the run until everything collected before the kill is trained."""
        time.sleep(self._random.uniform(0.2, 3.0))
        learner = self._command.children()["learner"]
        learner.kill()
        learner.wait()
        killed_at = time.monotonic()
        before, used = self._settled(), self._used()
        self._command.until(lambda: self._store.session != before.session, "the next learner to connect")
        first = self._store.read().first_after(before)
        self._command.until(lambda: self._store.version > first, "the next learner to train")
        restart_s = time.monotonic() - killed_at
        # Everything that was collected, or in collection, is in the batches up to this one.
        horizon = first + 2 * (self._plan.off_policy_degree + 1)
        self._command.until(lambda: self._store.version > horizon, "the waiting segments to be trained")
        after = self._store.read()
        mass = before.mass(self._plan, before.trained, before.version)
        self._judge(
            Kill(
                used=used,
                committed=before.version,
                first=first,
                waiting=before.waiting,
                late=after.late - before.late,
                mass_ratio=after.mass(self._plan, before.trained, first) / mass if mass else 1.0,
                restart_s=restart_s,
                best_return=self._best_return(),
                threshold_steps=self._threshold_steps(),
            )
        )

    def _settled(self) -> StoreState:
        """Returns the store after actors have used all their grants."""
        state = self._store.read()
        for _ in range(20):
            time.sleep(0.1)
            state, former = self._store.read(), state
            if state.inserted == former.inserted:
                break
        for stay, sequence in state.marks.items():
            if sequence < self._marks.get(stay, 0):
                self._violated(f"the watermark of {stay} fell from {self._marks[stay]} to {sequence}")
            self._marks[stay] = sequence
        self.report.segments_stored, self.report.segments_numbered = state.inserted, sum(self._marks.values())
        if self.report.segments_numbered > state.inserted:
            self._violated(
                f"{self.report.segments_numbered} segments have numbers, but only {state.inserted} were stored"
            )
        self._read_journal()
        return state

    def _judge(self, kill: Kill) -> None:
        kills, number = self.report.kills, len(self.report.kills) + 1
        if not kill.used <= kill.first <= kill.used + 1:
            self._violated(f"kill {number}: version {kill.used} was used, and the next learner began at {kill.first}")
        if kill.mass_ratio < LEAST_MASS_RATIO:
            self._violated(f"kill {number}: the mass changed by a factor of {kill.mass_ratio:.2e}")
        if kill.late > self._plan.fresh_segments:
            self._violated(f"kill {number}: {kill.late} of {kill.waiting} waiting segments became late")
        best = [former.best_return for former in kills if former.best_return is not None]
        if best and (kill.best_return is None or kill.best_return < max(best)):
            self._violated(f"kill {number}: the best checkpoint's return is {kill.best_return}, but was {max(best)}")
        if kills and kills[-1].threshold_steps is not None and kill.threshold_steps is None:
            self._violated(f"kill {number}: the threshold, reached at {kills[-1].threshold_steps}, was lost")
        kills.append(kill)

    def _used(self) -> int:
        lines = self._folder.versions.read_text().splitlines()
        return max(int(json.loads(line)["used"]) for line in lines)

    def _read_journal(self) -> None:
        # Read at every kill, because resuming removes records after the checkpoint.
        for line in self._folder.metrics.read_text().splitlines():
            record = json.loads(line)
            if record["kind"] == "evaluation":
                self._returns[record["version"]] = record["return_mean"]

    def _best_return(self) -> float | None:
        """Returns the evaluation of the policy in the best checkpoint, from the journal.

        If the checkpoint is newer than the last reading of the journal, its own record is used.
        """
        path = self._folder.best_checkpoint
        if not path.exists():
            return None
        progress = checkpoints.read_progress(path)
        return self._returns.get(progress.version, progress.best_return)

    def _threshold_steps(self) -> int | None:
        paths = [*self._folder.numbered_checkpoints()[-1:], self._folder.best_checkpoint]
        found = [checkpoints.read_progress(path).env_steps_to_threshold for path in paths if path.exists()]
        return next((steps for steps in found if steps is not None), None)

    def _violated(self, what: str) -> None:
        self.report.violations.append(what)


@contextmanager
def training_run(folder: RunFolder, config: Config) -> Iterator[Command]:
    """Runs a training run in this folder."""
    folder.root.mkdir(parents=True)
    settings = folder.root.with_suffix(".toml")
    settings.write_text(config.repeatable().to_toml())
    with Command("train", "--config", str(settings), f"--run-dir={folder.root}") as command:
        with watching(command, folder.root) as watch:
            watch.until(lambda status: status.version > 20, "the run to train")
            wait_for_run(
                lambda: folder.numbered_checkpoints() and folder.best_checkpoint.exists(), "the first checkpoints"
            )
            yield command
        command.interrupt()
        command.wait()


def show(report: Report, console: Console) -> None:
    """Prints the table."""
    kills = report.kills
    reached = [kill.threshold_steps for kill in kills if kill.threshold_steps is not None]
    best = [kill.best_return for kill in kills if kill.best_return is not None]
    lines = {
        "kills": str(len(kills)),
        "versions lost": f"{max(kill.first - kill.used for kill in kills)} at most",
        "uncommitted versions": f"{max(kill.used - kill.committed for kill in kills)} at most",
        "fresh segments late": f"{sum(kill.late for kill in kills)} of {sum(kill.waiting for kill in kills)}",
        "mass after / before": f"{min(kill.mass_ratio for kill in kills):.6f} at least",
        "segments": f"{report.segments_stored} stored, {report.segments_numbered} numbered",
        "restart": f"median {statistics.median(kill.restart_s for kill in kills):.1f} s",
        "best checkpoint": f"from {best[0]:g} to {best[-1]:g}" if best else "none",
        "steps to the threshold": f"{reached[0]}, last {reached[-1]}" if reached else "not reached",
    }
    table = Table(title="Kills of the learner", show_header=False)
    for name, value in lines.items():
        table.add_row(name, value)
    console.print(table)
    for violation in report.violations:
        console.print(f"[red]{violation}[/]", highlight=False)
    console.print("[red]guarantees violated[/]" if report.violations else "[green]no violation[/]")


def main() -> None:
    """Runs all kills; prints and writes the report."""
    parser = results.options(__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="folder for the run (default: a temporary one)")
    arguments = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="penstock-learner-kills-") as root:
        folder, config = RunFolder(Path(root) / "run"), build(SETTINGS)
        with training_run(folder, config) as command:
            killer = LearnerKiller(command, folder, config, arguments.seed)
            for number in range(arguments.kills):
                killer.kill_once()
                kill = killer.report.kills[-1]
                console.print(f"kill {number + 1}: {asdict(kill)}", highlight=False)
    report = killer.report
    show(report, console)
    results.write(arguments, {"settings": SETTINGS, **asdict(report)})
    sys.exit(1 if report.violations else 0)


if __name__ == "__main__":
    main()
