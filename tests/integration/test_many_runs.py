"""`penstock compare` and `penstock sweep` as processes: runs that are interrupted, killed and continued."""

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from penstock.config import Config
from penstock.errors import INTERRUPTED, USAGE_ERROR
from penstock.runs.folder import RunFolder
from tests.support.machine.timing import start_patience_s
from tests.support.services.processes import Command, end_in_time, end_of, run

BASE = """
[environment]
id = "CartPole-v1"
vectorization = "native"

[run]
total_steps = 3_000

[train]
actors = 1

[evaluation]
threshold = 20.0
interval_steps = 500
episodes = 2
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "base.toml").write_text(BASE)
    (tmp_path / "fast.toml").write_text(BASE + "\n[ppo]\nepochs = 2\n")
    return tmp_path


def summaries(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("summary.json")}


@pytest.mark.nightly
def test_a_sweep_is_interrupted_and_continued(folder: Path) -> None:
    words = ("sweep", "base.toml", "--grid", "ppo.epochs=2,3", "--seeds", "1", "--processes", "2")
    with Command(*words, directory=folder) as command:
        first = RunFolder(folder / "sweep" / "base" / "cell-0" / "seed-0")
        command.until(first.metrics.exists, "the first run to train")
        command.interrupt()
        stopped = end_in_time(command)
    assert stopped.code == INTERRUPTED
    assert stopped.left_behind == []
    assert "Continue with:" in stopped.stdout
    assert "sweep base.toml --grid ppo.epochs=2,3 --seeds 1 --processes 2" in stopped.stdout
    ended = run(*words, directory=folder)
    assert ended.code == 0, ended.stderr
    assert "2 of 2 runs done" in ended.stdout
    table = json.loads((folder / "sweep" / "base" / "sweep.json").read_text())
    assert [cell["settings"] for cell in table["cells"]] == [{"ppo.epochs": 2}, {"ppo.epochs": 3}]
    assert Config.load(folder / "sweep" / "base" / "best.toml").ppo.epochs == table["best"]["ppo.epochs"]


@pytest.mark.parametrize(
    "words", [("sweep", "base.toml", "--grid", "ppo.epochs=2,3"), ("compare", "base.toml", "fast.toml")]
)
def test_printed_commands_are_one_for_each_run_and_start_nothing(folder: Path, words: tuple[str, ...]) -> None:
    printed = run(*words, "--seeds=3", "--print", directory=folder)
    assert printed.code == 0, printed.stderr
    commands = [shlex.split(line) for line in printed.stdout.splitlines()]
    assert len(commands) == 6 and all("train" in each for each in commands)
    assert summaries(folder) == {} and not list(folder.rglob("metrics.jsonl"))


@pytest.mark.nightly
def test_printed_commands_train_the_runs_of_a_sweep(folder: Path) -> None:
    words = ("sweep", "base.toml", "--grid", "ppo.epochs=2,3", "--seeds=1")
    (first, second) = run(*words, "--print", directory=folder).stdout.splitlines()
    subprocess.run(["bash", "-c", first], cwd=folder, check=True, timeout=start_patience_s())
    assert run(*words, "--print", directory=folder).stdout.splitlines() == [second]
    ended = run(*words, directory=folder)
    assert ended.code == 0 and "2 of 2 runs done" in ended.stdout


def test_a_sequential_comparison_has_no_commands_to_print(folder: Path) -> None:
    refused = run("compare", "base.toml", "fast.toml", "--sequential", "--seeds=20", "--print", directory=folder)
    assert (refused.code, refused.stderr.count("\n")) == (USAGE_ERROR, 1)
    assert "--sequential decides after each run" in refused.stderr


def test_a_run_that_fails_ends_the_others_and_is_named(folder: Path) -> None:
    (folder / "base.toml").write_text(BASE.replace("CartPole-v1", "Nothing-v7").replace('"native"', '"sync"'))
    ended = run("sweep", "base.toml", "--grid", "ppo.epochs=2,3", "--seeds", "1", directory=folder)
    assert ended.code == USAGE_ERROR
    # Both fail; one of them is the first.
    assert re.search(r"Nothing.*cell-[01]-seed-0\.log", ended.stderr)
    assert len(ended.stderr.splitlines()) == 1
    assert ended.left_behind == []


@pytest.mark.nightly
def test_a_comparison_continues_after_a_kill_and_repeats_no_run(folder: Path) -> None:
    words = ("compare", "base.toml", "fast.toml", "--seeds", "3", "--processes", "2")
    place = folder / "compare" / "base-fast"
    with Command(*words, directory=folder) as command:
        command.until(lambda: len(summaries(place)) >= 2, "two runs to end")
        command.kill()
        command.wait()
        before = summaries(place)
        with Command(*words, directory=folder) as again:
            ended = end_of(again)
    assert ended.code == 0, ended.stderr
    after = summaries(place)
    assert len(after) == 6
    # A run whose summary says that it was interrupted is resumed.
    finished = {path for path in before if json.loads(path.read_text())["sessions"] == 1}
    assert finished and all(after[path] == before[path] for path in finished)
    table = json.loads((place / "compare.json").read_text())
    assert [each["seed"] for each in table["runs"]["a"]] == [0, 1, 2]
    assert table["differences"].keys() == {"ppo.epochs"}
    assert table["verdict"] in ended.stdout
