"""Runs of a study, side by side in processes, each kept in a file when it is done: a study goes on where it stopped."""

import hashlib
import json
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

from benchmarks.study.experiments import TASKS, Experiment, Setting
from helpers.single_process import Outcome, train
from penstock.config import Config
from penstock.files import write_json


@dataclass(frozen=True, slots=True)
class Run:
    """One training run."""

    experiment: Experiment
    task: str
    setting: Setting
    seed: int

    @property
    def config(self) -> Config:
        """Its configuration."""
        return self.experiment.configuration(TASKS[self.task], self.setting, self.seed)

    def path(self, folder: Path) -> Path:
        """Where its outcome is kept: under a name that changes with its configuration."""
        digest = hashlib.sha256(f"{self.config.to_toml()}lag {self.setting.lag}".encode()).hexdigest()[:16]
        return folder / f"{self.task}-{digest}.json"


def play(run: Run, folder: Path) -> Outcome:
    """The run's outcome, trained now unless it is there."""
    path = run.path(folder)
    if not path.exists():
        outcome = train(run.config, run.setting.lag)
        record = {"task": run.task, "setting": run.setting.label, "seed": run.seed, **asdict(outcome)}
        write_json(path, record)
    return read(path)


def read(path: Path) -> Outcome:
    """An outcome that was kept."""
    record = json.loads(path.read_text())
    curve = tuple((int(steps), float(value)) for steps, value in record["curve"])
    return Outcome(
        curve, record["env_steps_to_threshold"], record["final_return"], record["updates"], record["seconds"]
    )


def play_all(runs: Iterable[Run], folder: Path, jobs: int, tell: Callable[[Run, Outcome], None]) -> dict[Run, Outcome]:
    """All outcomes; `tell` hears of each as it comes."""
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = {}
    # Fresh interpreters: torch's threads do not survive a fork.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(play, run, folder): run for run in runs}
        for future in as_completed(futures):
            outcomes[futures[future]] = outcome = future.result()
            tell(futures[future], outcome)
    return outcomes
