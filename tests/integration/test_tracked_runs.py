"""Runs whose records `penstock train` sends to a tracker."""

import itertools
import json
import sqlite3
from pathlib import Path

import pytest

from penstock.runs.folder import RunFolder
from penstock.runs.metrics import records_of, tag_of
from tests.support.machine.hidden_packages import hiding
from tests.support.services.processes import Command, end_of, run

pytestmark = pytest.mark.nightly

SETTINGS = (
    *("--env-id=Paced-v0", "--env-import=tests.support.environments.paced", "--actors=1", "--envs-per-actor=8"),
    *("--ppo.epochs=1", "--evaluation.episodes=5", "--checkpoint.save-interval=1000"),
)


def test_a_run_without_the_extra_trains_and_says_how_to_install_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    arguments = ("train", *SETTINGS, "--total-steps=2000", "--tracker=mlflow", "--run-dir", str(folder))
    end = run(*arguments, environment=hiding(tmp_path, "mlflow"))
    assert end.code == 0 and not end.left_behind, end.stderr
    missing = "tracking: ended with --to mlflow needs mlflow; install it with: pip install 'penstock[mlflow]'"
    assert end.stdout.replace("\n", " ").count(missing) == 1, end.stdout


def test_kills_of_a_run_and_of_its_tracker_lose_no_record_and_double_none(tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    folder = RunFolder(tmp_path / "run")
    environment = {"TRACKIO_DIR": str(tmp_path / "trackio")}
    begin: tuple[str, ...] = (
        "train",
        *SETTINGS,
        "--total-steps=10M",
        "--tracker=trackio",
        "--run-dir",
        str(folder.root),
    )
    resume = ("train", "--resume", str(folder.root), "--trust-code")
    for end in ("launcher", "Ctrl-C", "tracker", "launcher"):
        before = folder.newest_checkpoint_steps() or 0
        with Command(*begin, environment=environment) as training:
            training.until_output("tracking: the records go to")
            training.until(lambda least=before: (folder.newest_checkpoint_steps() or 0) > least, "a checkpoint")  # type: ignore[misc]
            if end == "tracker":
                (tracker,) = (each for each in training.family() if "track" in each.cmdline())
                tracker.kill()
                training.until_output("tracking: ended with SIGKILL")
            training.kill() if end == "launcher" else training.interrupt()
            assert not end_of(training).left_behind or end == "launcher"
        begin = resume
    trained = folder.newest_checkpoint_steps() or 0
    finished = run(*resume, f"--total-steps={trained + 1000}", environment=environment)
    assert finished.code == 0, finished.stderr
    found, expected = dict[str, list[tuple[int, float]]](), dict[str, list[tuple[int, float]]]()
    with sqlite3.connect(tmp_path / "trackio" / "penstock.db") as store:
        for step, numbers in store.execute("SELECT step, metrics FROM metrics ORDER BY id"):
            for name, value in json.loads(numbers).items():
                found.setdefault(name, []).append((step, value))
    for record, name in itertools.product(records_of(folder.metrics), ("training_s", "version", "policy_loss")):
        if record.get(name) is not None:
            expected.setdefault(tag_of(record["kind"], name), []).append((record["env_steps"], record[name]))
    assert {name: found.get(name) for name in expected} == expected
