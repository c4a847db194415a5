"""Films beside evaluations: which are made and kept, and that neither they nor their faults change an evaluation."""

import sys
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from penstock.acting.evaluation_films import FilmedEvaluations
from penstock.acting.evaluator import play
from penstock.config import Config
from penstock.runs.folder import RunFolder
from penstock.types.evaluation import EvaluationResult, EvaluationTask
from tests.support.environments.made import make_environments
from tests.support.environments.tiny import spec_of
from tests.support.machine.timing import wait_for
from tests.support.services.processes import Command, end_of
from tests.support.training.policies import fresh_weights

ENV_ID = "CartPole-v1"
FILMS = "import pathlib, sys; pathlib.Path(sys.argv[2].partition('=')[2]).touch()"
"""Program that writes a film at once."""
HANGS = "import time; time.sleep(3600)"
FAILS = "import sys; print('of the environment'); sys.exit('penstock: CartPole-v1 has no renderer; install one')"


class Queue:
    """A queue of evaluations without an end. Each policy has the next version."""

    def __init__(self) -> None:
        self.delivered: list[EvaluationResult] = []

    def next(self, timeout_s: float) -> EvaluationTask | None:
        version = len(self.delivered)
        return EvaluationTask(version, fresh_weights(spec_of(ENV_ID), version=version), 2, True, seed=7)

    def deliver(self, result: EvaluationResult) -> None:
        self.delivered.append(result)


class Evaluator:
    """An evaluator of a run whose films a program in Python makes; None: `penstock evaluate`."""

    def __init__(self, root: Path, program: str | None, *, every: int = 1, **given: Any) -> None:
        self.queue, self.folder = Queue(), RunFolder(root)
        self.folder.config.write_text(Config(environment={"id": ENV_ID}).to_toml())
        command = {} if program is None else {"command": (sys.executable, "-c", program)}
        chosen = {"videos": self.folder.videos, "limit_s": 600.0, **command, **given}
        self.films = FilmedEvaluations(self.queue, every=every, log=structlog.get_logger(), **chosen)
        self.environments = make_environments(ENV_ID, 2, kwargs={})

    def evaluate(self) -> EvaluationTask:
        task = self.films.next(0.0)
        assert task is not None
        result = play(task, self.environments, lambda: False)
        assert result is not None
        self.films.deliver(result)
        return task

    def await_film(self) -> None:
        """Waits until no film is being made."""

        def ended() -> bool:
            self.films.next(0.0)
            return not [*self.folder.videos.glob(".*.safetensors")]

        wait_for(ended, "the end of the film")

    def films_of(self) -> list[str]:
        return sorted(file.name for file in self.folder.videos.glob("*"))


def test_the_first_and_then_every_third_evaluation_is_filmed(tmp_path: Path) -> None:
    evaluator = Evaluator(tmp_path, FILMS, every=3)
    for _ in range(5):
        evaluator.evaluate()
        evaluator.await_film()
    assert evaluator.films_of() == ["version-0-evaluated.mp4", "version-3-evaluated.mp4"]


def test_evaluations_do_not_wait_for_a_film_and_the_one_that_is_being_made_is_dropped_at_the_end(
    tmp_path: Path,
) -> None:
    evaluator = Evaluator(tmp_path, HANGS)
    with capture_logs() as events:
        for _ in range(3):
            evaluator.evaluate()
        assert len(evaluator.queue.delivered) == 3
        assert evaluator.films_of() == [".version-0.safetensors"]
        evaluator.films.close()
    assert evaluator.films_of() == []
    assert [event["event"] for event in events] == ["film dropped at the end of the evaluator"]


def test_the_newest_twenty_films_of_evaluations_are_kept_and_other_films_are_not_touched(tmp_path: Path) -> None:
    evaluator = Evaluator(tmp_path, FILMS)
    evaluator.folder.videos.mkdir()
    evaluator.queue.delivered += [EvaluationResult(0, 0, (), (), 0.0)] * 100
    kept = {f"version-{version}-evaluated.mp4" for version in range(81, 100)}
    for name in (*kept, "version-9-evaluated.mp4", "version-80-evaluated.mp4", "version-9-episode.mp4"):
        (evaluator.folder.videos / name).touch()
    with capture_logs() as events:
        evaluator.evaluate()
        evaluator.await_film()
    assert set(evaluator.films_of()) == kept | {"version-100-evaluated.mp4", "version-9-episode.mp4"}
    (event,) = events
    assert event["removed"] == ["version-9-evaluated.mp4", "version-80-evaluated.mp4"]


@pytest.mark.parametrize(
    ("program", "given", "reason"),
    [
        (FAILS, {}, "penstock: CartPole-v1 has no renderer; install one"),
        (HANGS, {"limit_s": 0.1}, "a film took longer than 0.1 s; raise evaluation.timeout_s"),
        (
            FILMS,
            {"videos": Path("elsewhere/videos")},
            "elsewhere does not exist; name the run's folder",
        ),
        (FILMS, {"videos": None}, "not known; name the run's folder with --evaluation.run"),
    ],
)
def test_a_fault_is_logged_once_with_its_remedy_and_evaluations_go_on(
    program: str, given: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    evaluator = Evaluator(tmp_path, program, **given)
    with capture_logs() as events:
        for _ in range(3):
            evaluator.evaluate()
            evaluator.await_film()
    assert len(evaluator.queue.delivered) == 3
    (event,) = events
    assert (event["event"], event["log_level"]) == ("no more evaluations are filmed", "warning")
    assert reason in event["reason"]
    assert evaluator.films_of() == []


@pytest.mark.nightly
def test_the_returns_of_an_evaluator_that_films_are_the_same(tmp_path: Path) -> None:
    pytest.importorskip("moviepy")
    evaluator = Evaluator(tmp_path, None)
    tasks = [evaluator.evaluate()]
    # While the film is being made.
    tasks += [evaluator.evaluate() for _ in range(3)]
    evaluator.await_film()
    assert (evaluator.folder.videos / "version-0-evaluated.mp4").read_bytes()[4:8] == b"ftyp"
    environments = make_environments(ENV_ID, 2, kwargs={})
    for task, filmed in zip(tasks, evaluator.queue.delivered, strict=True):
        alone = play(task, environments, lambda: False)
        assert alone is not None
        assert (alone.returns, alone.steps) == (filmed.returns, filmed.steps)


@pytest.mark.nightly
def test_a_run_has_films_of_its_evaluations(tmp_path: Path) -> None:
    pytest.importorskip("moviepy")
    folder = RunFolder(tmp_path / "run")
    options = ("--preset=cartpole", "--total-steps=1000000000", "--evaluation.film-every=2", f"--run-dir={folder.root}")
    with Command("train", *options) as command:
        command.until(lambda: [*folder.videos.glob("version-*-evaluated.mp4")], "a film to be written")
        command.interrupt()
        ended = end_of(command)
    assert "film" not in ended.stderr
    for film in folder.videos.glob("*.mp4"):
        assert film.read_bytes()[4:8] == b"ftyp"
