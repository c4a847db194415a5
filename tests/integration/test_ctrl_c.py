"""Ctrl-C during training: the first one shows the wait for the learner; a second one kills it and reports the loss."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.learning.durable import checkpoints
from penstock.runs.folder import RunFolder
from tests.support.environments.odd import env_id
from tests.support.services.processes import WITH_HELPERS, Command, Ended, end_in_time, end_of, watching

SETTINGS = (
    "--env-id=Paced-v0 --env-import=tests.support.environments.paced --actors=1 --envs-per-actor=8"
    " --ppo.epochs=1 --total-steps=10000000"
    " --evaluation.episodes=5 --evaluation.interval-steps=10000000 --checkpoint.save-interval=1000"
)

WAITING = r"stopping, waiting for the learner, [1-9]\d* s of at most"
LONG = r"stopping, waiting for the learner, (9|1\d) s of at most 600 s \(Ctrl-C again to kill\)"


@dataclass(frozen=True, slots=True)
class Stopped:
    """The end of a session, and the step of the newest checkpoint after it."""

    end: Ended
    saved: int


def train(*options: str) -> Command:
    return Command("train", *options, environment=WITH_HELPERS)


def newest_step(folder: Path) -> int:
    newest = checkpoints.newest(RunFolder(folder))
    assert newest is not None
    return checkpoints.read_progress(newest).env_steps


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stopped") / "run"


@pytest.fixture(scope="module")
def waited_for(folder: Path) -> Stopped:
    """Stops a session whose batch takes longer than a grace period of a second or two."""
    with train(*SETTINGS.split(), f"--run-dir={folder}") as command:
        with watching(command, folder) as watch:
            watch.until(lambda now: now.env_steps >= 1_500, "some steps")
        learner = command.children()["learner"]
        learner.suspend()
        command.interrupt()
        command.until(lambda: re.search(LONG, command.stdout), "the wait for the learner")
        learner.resume()
        return Stopped(end_in_time(command), newest_step(folder))


@pytest.mark.nightly
def test_waiting_for_a_long_batch_is_shown(waited_for: Stopped) -> None:
    end = waited_for.end
    assert (end.code, end.stderr, end.left_behind) == (130, "", [])
    assert end.stdout.count("stopping: finishing a batch and saving a checkpoint (Ctrl-C again to kill)\n") == 1
    assert f"stopped; the checkpoint of step {waited_for.saved:,} is saved. Resume with:" in end.stdout


@pytest.fixture(scope="module")
def killed(waited_for: Stopped, folder: Path) -> Stopped:
    """Kills the next session, whose learner can't finish, by a second Ctrl-C."""
    with train(f"--resume={folder}", "--trust-code") as command:
        with watching(command, folder) as watch:
            watch.until(lambda now: now.env_steps >= waited_for.saved + 1_500, "more steps")
        command.children()["learner"].suspend()
        # SIGTERM to the launcher has the same effect as Ctrl-C.
        command.terminate()
        # An earlier Ctrl-C would count as the same one (`stopping.REPEAT_S`).
        command.until(lambda: re.search(WAITING, command.stdout), "the wait for the learner")
        command.interrupt()
        return Stopped(end_in_time(command), newest_step(folder))


@pytest.mark.nightly
def test_a_second_ctrl_c_kills_and_reports_saved_and_lost_steps(killed: Stopped, folder: Path) -> None:
    assert (killed.end.code, killed.end.stderr, killed.end.left_behind) == (130, "", [])
    assert f"killed before it could save; the checkpoint of step {killed.saved:,} is the newest" in killed.end.stdout
    assert "is lost" in killed.end.stdout
    assert RunFolder(folder).config.exists() and RunFolder(folder).replay.exists()


@pytest.mark.nightly
def test_status_of_a_stopped_run_shows_its_summary_and_how_to_resume(killed: Stopped, folder: Path) -> None:
    with Command("status", str(folder)) as command:
        end = end_of(command)
    assert (end.code, end.stderr) == (0, "")
    assert "ended by interrupted" in end.stdout
    assert f"train --resume {folder}" in end.stdout


@pytest.mark.nightly
def test_ctrl_c_ends_the_check_of_an_environment_that_hangs(tmp_path: Path) -> None:
    options = [f"--env-id={env_id('constructor_hangs')}", "--env-import=tests.support.environments.odd"]
    with Command("train", *options, environment=WITH_HELPERS, directory=tmp_path) as command:
        command.until_output(f"still creating the environment {env_id('constructor_hangs')}: ")
        command.interrupt()
        end = end_in_time(command)
    assert (end.code, end.stderr, end.left_behind) == (130, "", [])
    assert list(tmp_path.iterdir()) == []
