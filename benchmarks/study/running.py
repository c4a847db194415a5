"""Parallel runs of a study; the result of each is stored in a file, so that an interrupted study can continue."""

import hashlib
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import TypeVar

from benchmarks.study.experiments import Experiment, Setting
from benchmarks.study.tasks import TASKS
from penstock.config import Config
from penstock.machine.files import write_json
from tests.support.training.single_process import Outcome, train

Key = TypeVar("Key")
Result = TypeVar("Result")


class Unfinished(Exception):
    """Runs are missing. They begin when the command is repeated."""


@dataclass(frozen=True, slots=True)
class Crew:
    """Processes for runs.

    Attributes:
        jobs: Number of parallel runs.
        end_s: Time of `time.monotonic` after which none begins.
    """

    jobs: int
    end_s: float = math.inf

    @property
    def is_over(self) -> bool:
        """Whether no run may begin any more."""
        return time.monotonic() >= self.end_s


@dataclass(frozen=True, slots=True)
class Run:
    """One training run."""

    experiment: Experiment
    task: str
    setting: Setting
    seed: int

    @property
    def config(self) -> Config:
        """Configuration of the run."""
        return self.experiment.configuration(TASKS[self.task], self.setting, self.seed)

    @property
    def lag(self) -> int:
        """Versions by which all data is behind."""
        return self.config.degree if self.setting.lag is None else self.setting.lag

    def path(self, folder: Path) -> Path:
        """Returns the path of the stored outcome, whose name depends on the configuration and the lag."""
        digest = hashlib.sha256(f"{self.config.to_toml()}lag {self.lag}".encode()).hexdigest()[:16]
        return folder / f"{self.task}-{digest}.json"


def play(run: Run, folder: Path) -> Outcome:
    """Returns the outcome of the run; trains if none is stored."""
    path = run.path(folder)
    if not path.exists():
        outcome = train(run.config, run.lag, actors=run.config.train.least_actors)
        record = {"task": run.task, "setting": run.setting.label, "seed": run.seed, **asdict(outcome)}
        write_json(path, record)
    return read(path)


def read(path: Path) -> Outcome:
    """Reads a stored outcome."""
    record = json.loads(path.read_text())
    curve = tuple((int(steps), float(value)) for steps, value in record["curve"])
    return Outcome(
        curve, record["env_steps_to_threshold"], record["final_return"], record["updates"], record["seconds"]
    )


def play_all(
    runs: Iterable[Run], folder: Path, crew: Crew, on_outcome: Callable[[Run, Outcome], None]
) -> dict[Run, Outcome]:
    """Returns all outcomes, and calls `on_outcome` with each when it is available. Raises as `in_parallel`."""
    folder.mkdir(parents=True, exist_ok=True)
    return in_parallel(play, {run: (run, folder) for run in runs}, crew, on_outcome)


def in_parallel(
    function: Callable[..., Result],
    arguments: Mapping[Key, tuple[object, ...]],
    crew: Crew,
    on_result: Callable[[Key, Result], None],
) -> dict[Key, Result]:
    """Calls a function in processes of its own, and returns its results by key, in the order of the arguments.

    Raises `Unfinished` after the last one if the time of the crew is over before all have begun.
    """
    results: dict[Key, Result] = {}
    waiting, running = list(arguments.items())[::-1], dict[Future[Result], Key]()
    # New interpreters, because torch's threads do not survive a fork.
    with ProcessPoolExecutor(crew.jobs, mp_context=get_context("spawn"), initializer=_end_with_parent) as pool:
        while running or (waiting and not crew.is_over):
            while waiting and len(running) < crew.jobs and not crew.is_over:
                key, each = waiting.pop()
                running[pool.submit(function, *each)] = key
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                key = running.pop(future)
                results[key] = future.result()
                on_result(key, results[key])
    if waiting:
        raise Unfinished(f"{len(waiting)} of {len(arguments)} runs have not begun")
    return {key: results[key] for key in arguments}


def _end_with_parent() -> None:
    """Ends this process as soon as its parent has ended: the processes of a pool outlive a parent that is killed."""
    parent = parent_process()
    assert parent is not None

    def watch(sentinel: int) -> None:
        connection.wait([sentinel])
        os._exit(1)

    threading.Thread(target=watch, args=(parent.sentinel,), daemon=True).start()
