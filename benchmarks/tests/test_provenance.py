"""The provenance of results."""

import os
import subprocess
from pathlib import Path

from tests.support.results.provenance import command, commit, cpu_model, of_this_run


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_a_result_names_machine_commit_versions_time_and_command() -> None:
    found = of_this_run()
    assert {"machine", "commit", "python", "packages", "date", "command"} == set(found)
    assert str(found["command"]).startswith("python ")
    assert f"{os.cpu_count()} cores" in str(found["machine"])
    assert "GiB" in str(found["machine"])


def test_changes_that_are_not_committed_are_marked(tmp_path: Path) -> None:
    assert commit(tmp_path) == "unknown"
    git(tmp_path, "init", "-q")
    code, result = tmp_path / "file", tmp_path / "results" / "file.json"
    result.parent.mkdir()
    for file in (code, result):
        file.write_text("a")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    committed = git(tmp_path, "rev-parse", "HEAD")
    assert commit(tmp_path) == committed
    result.write_text("b")
    assert commit(tmp_path) == committed
    code.write_text("b")
    assert commit(tmp_path) == f"{committed}+changes"


def test_the_processor_is_named(tmp_path: Path) -> None:
    listing = tmp_path / "cpuinfo"
    listing.write_text("processor\t: 0\nmodel name\t: EPYC 7B13\nmodel name\t: EPYC 7B13\n")
    assert cpu_model(listing) == "EPYC 7B13"
    assert cpu_model(tmp_path / "missing") == "unknown processor"


def test_a_command_has_no_folder_of_this_machine() -> None:
    words = ["/home/a/.venv/bin/python", "-m", "benchmarks.loop", "--rounds", "5", "--output=/home/a/x.json", "a b"]
    assert command(words) == "python -m benchmarks.loop --rounds 5 --output=x.json 'a b'"
    assert command(["/usr/bin/python3", "/home/a/tests/run.py", "results"]) == "python run.py results"
