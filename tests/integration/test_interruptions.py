"""Runs interrupted by Ctrl-C or by the death of the launcher or a service, and their continuation.

The tests continue one run from session to session; its numbers must be consistent across every break.
"""

import itertools
import json
import os
import shlex
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.learning.durable import checkpoints
from penstock.learning.durable.checkpoints import RunProgress
from penstock.runs.folder import RunFolder
from penstock.runs.summary import Summary
from penstock.types.status import RunStatus
from tests.support.machine.timing import Bound, wait_for_run
from tests.support.services.processes import (
    WITH_HELPERS,
    Command,
    Ended,
    Watch,
    end_in_time,
    end_of,
    listening,
    watching,
)

SETTINGS = (
    "--env-id=Paced-v0 --env-import=tests.support.environments.paced --actors=1 --envs-per-actor=8 --ppo.epochs=1"
    " --evaluation.episodes=5 --evaluation.interval-steps=100000 --checkpoint.save-interval=1000"
)
SERVICES = ("actor", "evaluator", "replay", "learner")
FAR = 10_000_000


@dataclass(frozen=True, slots=True)
class RunState:
    """State of a run on disk."""

    progress: RunProgress
    last_incarnation: int

    @classmethod
    def read(cls, folder: Path) -> "RunState":
        newest = checkpoints.newest(RunFolder(folder))
        assert newest is not None
        roster = json.loads(RunFolder(folder).roster.read_text())["content"]
        return cls(checkpoints.read_progress(newest), max(last for _, last in roster["environments"]))


@dataclass(frozen=True, slots=True)
class Session:
    """One session of the run.

    Attributes:
        end: Its result.
        ports: Ports on which its services listened.
        first: Status of the run as soon as it trained.
        after: State of the run after the session.
    """

    end: Ended
    ports: set[int]
    first: RunStatus
    after: RunState


def train(*options: str, terminal: bool = False) -> Command:
    return Command("train", *options, environment=WITH_HELPERS, terminal=terminal)


def reaches(watch: Watch, env_steps: int, version: int = 0) -> RunStatus:
    """Waits until this number of steps and a later version than this are trained."""
    return watch.until(lambda now: now.env_steps >= env_steps and now.version > version, f"{env_steps} steps")


def all_ports(command: Command) -> set[int]:
    """Waits until all four services serve metrics; gRPC has no ports."""
    return command.until(lambda: found if len(found := command.ports()) == 4 else set(), "all ports")


def training_records(folder: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in RunFolder(folder).metrics.read_text().splitlines()]
    return [record for record in records if record["kind"] == "training"]


def assert_clean_end(end: Ended, ports: set[int], code: int) -> None:
    assert end.code == code, end.stdout + end.stderr
    assert "Traceback" not in end.stdout + end.stderr
    assert end.left_behind == []
    assert listening(ports) == set()


def test_ctrl_c_before_the_services_start_ends_immediately(tmp_path: Path) -> None:
    with train(*SETTINGS.split(), f"--run-dir={tmp_path / 'run'}") as command:
        command.until(lambda: command.has_loaded("pydantic_core"), "the options are read")
        command.interrupt()
        end = end_in_time(command)
    assert_clean_end(end, set(), 130)
    assert end.stderr == ""


@pytest.mark.nightly
def test_ctrl_c_while_services_start_leaves_nothing_behind_and_the_same_command_works_again(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "run"
    with train(*SETTINGS.split(), f"--run-dir={folder}") as command:
        command.until(lambda: "learner" in command.children(), "services start")
        # Programs such as `uv run` forward the terminal's signal to both. A terminal is unsuitable here: the kernel
        # discards output printed before it reads the key, and this signal could overtake the key.
        command.interrupt()
        os.kill(command.pid, signal.SIGINT)
        end = end_in_time(command)
    assert_clean_end(end, set(), 130)
    assert end.stderr == ""
    assert "stopping: ending all services (Ctrl-C again to kill)" in end.stdout
    assert "nothing to resume" in end.stdout
    assert not (tmp_path / "runs").exists()
    with train(*SETTINGS.split(), f"--run-dir={folder}") as command:
        command.until(lambda: "learner" in command.children(), "services start")
        # The end of the terminal and SIGTERM have the same effect.
        command.process.send_signal(signal.SIGHUP)
        end = end_in_time(command)
    assert_clean_end(end, set(), 130)
    assert not (tmp_path / "runs").exists()


@dataclass(frozen=True, slots=True)
class OtherCommands:
    """Output of other commands about an active run."""

    status: Ended
    resume: Ended


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # A name that markup or line folding would change.
    return tmp_path_factory.mktemp("a run of which the name is long") / "[bold] and more than a line of a terminal"


@pytest.fixture(scope="module")
def interrupted(folder: Path) -> tuple[Session, OtherCommands]:
    """Interrupts a run in a terminal by Ctrl-C."""
    with train(*SETTINGS.split(), f"--total-steps={FAR}", f"--run-dir={folder}", terminal=True) as command:
        with watching(command, folder) as watch:
            first = reaches(watch, 1)
            reaches(watch, 1_500)
            with Command("status", str(folder)) as status, train(f"--resume={folder}", "--trust-code") as resume:
                others = OtherCommands(end_of(status), end_of(resume))
            ports = all_ports(command)
        command.interrupt()
        return Session(end_in_time(command), ports, first, RunState.read(folder)), others


def test_ctrl_c_in_a_terminal_ends_a_run_in_order(interrupted: tuple[Session, OtherCommands], folder: Path) -> None:
    session, _ = interrupted
    assert_clean_end(session.end, session.ports, 130)
    assert len(session.ports) == 4
    assert f"penstock train --resume {shlex.quote(str(folder))}" in session.end.stdout
    assert "stopping: finishing a batch and saving a checkpoint (Ctrl-C again to kill)" in session.end.stdout
    assert f"the checkpoint of step {session.after.progress.env_steps:,} is saved" in session.end.stdout
    assert session.after.progress.env_steps >= 1_500
    assert not RunFolder(folder).services.exists()


def test_the_summary_of_an_interrupted_run_counts_the_whole_command(
    interrupted: tuple[Session, OtherCommands], folder: Path
) -> None:
    # The launcher writes the settings before it starts a service.
    files = RunFolder(folder)
    assert Summary.read(files.summary).wall_s >= files.summary.stat().st_mtime - files.config.stat().st_mtime


def test_status_of_an_active_run_shows_its_progress(interrupted: tuple[Session, OtherCommands]) -> None:
    status = interrupted[1].status
    assert status.code == 0, status.stderr
    assert f"/{FAR:,} steps | " in status.stdout
    shown = dict(line.split(maxsplit=1) for line in status.stdout.splitlines()[1:] if line.strip())
    assert shown["mode"] == "asynchronous: collection up to 1 batch ahead of training"
    assert "versions now" in shown["lag"] and "per batch" in shown["train"]
    assert {"batches", "staleness", "collect", "wait", "drops", "entropy", "clipped"} <= set(shown)


def test_an_active_run_is_not_resumed_a_second_time(interrupted: tuple[Session, OtherCommands], folder: Path) -> None:
    resume = interrupted[1].resume
    assert resume.code == 2
    assert resume.stderr.startswith(f"penstock: the run in {folder} is still active")
    assert resume.left_behind == []


@pytest.fixture(scope="module")
def orphaned(interrupted: tuple[Session, OtherCommands], folder: Path) -> tuple[Session, float, Bound]:
    """Kills the launcher of the next session; returns the lifetime of its services afterwards, and its bound."""
    with train(f"--resume={folder}", "--trust-code") as command:
        with watching(command, folder) as watch:
            first = reaches(watch, 1)
            reaches(watch, first.env_steps + 1_000)
            ports = all_ports(command)
        command.kill()
        killed_at = time.monotonic()
        end = end_of(command)
        wait_for_run(lambda: not command.left_behind(), "its services to end")
        seconds = time.monotonic() - killed_at
        session = Session(Ended(end.code, end.stdout, end.stderr, []), ports, first, RunState.read(folder))
        return session, seconds, command.end_bound


def test_services_end_after_the_launcher_was_killed(orphaned: tuple[Session, float, Bound], folder: Path) -> None:
    session, seconds, bound = orphaned
    assert session.end.code == -signal.SIGKILL
    assert seconds < bound.seconds, bound
    assert listening(session.ports) == set()
    for name in ("replay", "learner", "evaluator", "actor-0"):
        last = json.loads((folder / "logs" / f"{name}.log").read_text().splitlines()[-1])
        assert (last["event"], last["stopped_by"]) == ("stopped", "the end of the launcher"), name


def test_a_killed_launcher_loses_no_training(orphaned: tuple[Session, float, Bound]) -> None:
    session = orphaned[0]
    assert session.after.progress.env_steps >= session.first.env_steps + 1_000


@pytest.fixture(scope="module")
def unevaluated(orphaned: tuple[Session, float, Bound], folder: Path) -> Session:
    """Interrupts the next session during the last evaluation."""
    end_at = orphaned[0].after.progress.env_steps + 1_000
    with train(f"--resume={folder}", "--trust-code", f"--total-steps={end_at}") as command:
        evaluator = command.until(lambda: command.children().get("evaluator"), "the evaluator starts")
        assert evaluator is not None
        # A paused evaluator keeps the last evaluation from ending.
        evaluator.suspend()
        with watching(command, folder) as watch:
            first = reaches(watch, 1)
            watch.until(lambda now: now.phase == "evaluating", "the last evaluation")
            ports = command.ports()
        command.interrupt()
        evaluator.resume()
        return Session(end_in_time(command), ports, first, RunState.read(folder))


@pytest.mark.nightly
def test_ctrl_c_during_the_last_evaluation_ends_the_run_unfinished(unevaluated: Session, folder: Path) -> None:
    assert_clean_end(unevaluated.end, unevaluated.ports, 130)
    assert unevaluated.end.stderr == ""
    assert f"penstock train --resume {shlex.quote(str(folder))}" in unevaluated.end.stdout


@pytest.fixture(scope="module")
def survivor(unevaluated: Session, folder: Path) -> tuple[Session, list[tuple[RunStatus, RunStatus]], Summary]:
    """Kills every service in the last session; returns the run's status before and after each death."""
    # Enough steps for the last death to occur before the end.
    end_at, deaths = unevaluated.after.progress.env_steps + 10_000, []
    with train(f"--resume={folder}", "--trust-code", f"--total-steps={end_at}") as command:
        with watching(command, folder) as watch:
            first = reaches(watch, unevaluated.after.progress.env_steps + 1)
            ports = command.ports()
            for service in SERVICES:
                before = watch.status()
                command.children()[service].kill()
                command.until_output(f"{'actor-0' if service == 'actor' else service} ended with SIGKILL")
                deaths.append((before, reaches(watch, 1, before.version)))
        end = end_of(command)
        session = Session(end, ports, first, RunState.read(folder))
        return session, deaths, Summary.read(RunFolder(folder).summary)


def test_killed_services_are_restarted_and_the_run_finishes(
    survivor: tuple[Session, list[tuple[RunStatus, RunStatus]], Summary],
) -> None:
    session, deaths, summary = survivor
    assert_clean_end(session.end, session.ports, 0)
    assert session.end.stderr == ""
    assert session.end.stdout.count("ended with SIGKILL: ") == len(deaths) == 4
    assert summary.stopped == "total_steps"
    assert summary.evaluation is not None and summary.evaluation.episodes == 5


def test_only_the_death_of_the_learner_loses_steps_at_most_those_since_the_last_checkpoint(
    survivor: tuple[Session, list[tuple[RunStatus, RunStatus]], Summary],
) -> None:
    _, deaths, _ = survivor
    for service, (before, after) in zip(SERVICES, deaths, strict=True):
        lost = before.env_steps - after.env_steps
        assert lost < (1_600 if service == "learner" else 0), service
        assert after.version > before.version, service


def test_every_session_continues_from_the_checkpoint_and_repeats_no_version(
    interrupted: tuple[Session, OtherCommands],
    orphaned: tuple[Session, float],
    unevaluated: Session,
    survivor: tuple[Session, list[tuple[RunStatus, RunStatus]], Summary],
) -> None:
    sessions = [interrupted[0], orphaned[0], unevaluated, survivor[0]]
    for before, after in itertools.pairwise(sessions):
        assert after.first.env_steps >= before.after.progress.env_steps
        # Equal to the checkpoint's version if nothing was published after it.
        assert after.first.version >= before.after.progress.version
        assert after.after.last_incarnation > before.after.last_incarnation


def test_the_journal_of_all_sessions_repeats_no_version(
    survivor: tuple[Session, list[tuple[RunStatus, RunStatus]], Summary], folder: Path
) -> None:
    records = training_records(folder)
    for name in ("version", "env_steps"):
        values = [record[name] for record in records]
        assert values == sorted(set(values)), name
    assert records[-1]["env_steps"] == survivor[2].env_steps
    assert records[-1]["episodes"] >= survivor[2].episodes
