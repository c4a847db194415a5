"""The provenance of results."""

import os
import subprocess
from pathlib import Path

from benchmarks.provenance import provenance
from helpers.provenance import commit, cpu_model


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_a_result_names_machine_commit_versions_and_time() -> None:
    found = provenance()
    assert {"machine", "commit", "python", "packages", "date"} == set(found)
    assert f"{os.cpu_count()} cores" in str(found["machine"])
    assert "GiB" in str(found["machine"])


def test_changes_that_are_not_committed_are_marked(tmp_path: Path) -> None:
    assert commit(tmp_path) == "unknown"
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("a")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "-m", "first")
    committed = git(tmp_path, "rev-parse", "HEAD")
    assert commit(tmp_path) == committed
    (tmp_path / "file").write_text("b")
    assert commit(tmp_path) == f"{committed}+changes"


def test_the_processor_is_named(tmp_path: Path) -> None:
    listing = tmp_path / "cpuinfo"
    listing.write_text("processor\t: 0\nmodel name\t: EPYC 7B13\nmodel name\t: EPYC 7B13\n")
    assert cpu_model(listing) == "EPYC 7B13"
    assert cpu_model(tmp_path / "missing") == "unknown processor"
