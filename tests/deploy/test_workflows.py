"""The workflows of GitHub: what they name exists, actions are pinned, and a release needs its own tag."""

import importlib.util
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import penstock
from tests.deploy.engines import ROOT

WORKFLOWS = {path.name: yaml.safe_load(path.read_text()) for path in (ROOT / ".github/workflows").glob("*.yml")}
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    for file, workflow in WORKFLOWS.items():
        yield from ((f"{file}, {name}", job) for name, job in workflow["jobs"].items())


def command_lines(job: dict[str, Any]) -> list[str]:
    """Returns the commands of a job, with each of the values that its matrix has for a name."""
    found = [step["run"] for step in job.get("steps", ()) if "run" in step]
    matrix = job.get("strategy", {}).get("matrix", {})
    for name in {key for entry in (matrix, *matrix.get("include", ())) for key in entry if key != "include"}:
        values = [*matrix.get(name, ()), *(entry[name] for entry in matrix.get("include", ()) if name in entry)]
        for holder in (f"${{{{ matrix.{name} }}}}", f"${name.upper()}"):
            found = [line.replace(holder, value) for line in found for value in (values if holder in line else [""])]
    return found


def test_what_the_workflows_run_exists() -> None:
    faults = []
    for where, job in jobs():
        for line in command_lines(job):
            faults += [f"{where}: make {each}" for each in re.findall(r"\bmake ([\w-]+)", line) if each not in TARGETS]
            modules = re.findall(r"python3? -m (tests[\w.]*)", line)
            faults += [f"{where}: {each}" for each in modules if importlib.util.find_spec(each) is None]
            paths = re.findall(r"Dockerfile\.[\w$]+|CHANGELOG\.md|services/[\w/.]+\.py", line)
            faults += [f"{where}: {each}" for each in paths if not (ROOT / each).is_file()]
    assert not faults
    assert {"test.yml", "nightly.yml", "release.yml"} <= set(WORKFLOWS)


def test_actions_are_pinned_and_jobs_have_the_permissions_that_they_name() -> None:
    faults = []
    for file in (ROOT / ".github/workflows").glob("*.yml"):
        used = re.findall(r"uses: (\S+)(.*)", file.read_text())
        faults += [
            f"{file.name}: {action}"
            for action, comment in used
            if not (action.startswith("./") and (ROOT / action).is_file())
            and not (re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action) and re.fullmatch(r" # v[\d.]+", comment))
        ]
    faults += [f"{file}: no permissions" for file, workflow in WORKFLOWS.items() if "permissions" not in workflow]
    for where, job in jobs():
        wide = {name for name, access in job.get("permissions", {}).items() if access == "write"}
        if "pypi" in str(job.get("environment")) and wide != {"id-token"}:
            faults.append(f"{where}: publishes with {wide}")
        if any("actions/checkout" in step.get("uses", "") for step in job.get("steps", ())) and "id-token" in wide:
            faults.append(f"{where}: runs the repository's code with an identity")
    assert not faults


@pytest.mark.parametrize(
    ("tag", "section", "reason"),
    [
        (f"v{penstock.__version__}", True, ""),
        (f"v{penstock.__version__}", False, f"no section {penstock.__version__}"),
        ("v9.8.7", True, f"the tag is v9.8.7, and services/penstock/__init__.py has {penstock.__version__}"),
    ],
)
def test_a_release_needs_a_tag_and_notes_of_its_version(tag: str, section: bool, reason: str, tmp_path: Path) -> None:
    steps = WORKFLOWS["release.yml"]["jobs"]["version"]["steps"]
    (script,) = (step["run"] for step in steps if step.get("id") == "version")
    (tmp_path / "services").symlink_to(ROOT / "services")
    (tmp_path / "CHANGELOG.md").write_text(f"## {penstock.__version__ if section else '0.0'} (1 January 2027)\n")
    (tmp_path / "output").touch()
    variables = {**os.environ, "GITHUB_REF_NAME": tag, "GITHUB_OUTPUT": str(tmp_path / "output")}
    ended = subprocess.run(
        ["bash", "-e", "-c", script], cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
    )
    assert ended.returncode == (1 if reason else 0) and reason in ended.stderr
    assert (tmp_path / "output").read_text() == ("" if reason else f"version={penstock.__version__}\n")
