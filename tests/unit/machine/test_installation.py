"""Remedies that messages name in each kind of installation."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.options import parse
from penstock.config import build
from penstock.errors import ConfigurationError
from penstock.local.first_checks import _check_folder
from penstock.machine import installation
from penstock.machine.extras import EXTRA_OF, lacking
from penstock.machine.installation import INSTALLATION, command_to_resume
from penstock.machine.module_imports import import_module
from penstock.runs.folder import RunFolder
from penstock.runs.known import newest_run
from penstock.runs.summary import Summary, nothing_left

SUMMARY = Summary(
    run_dir="run",
    env_id="CartPole-v1",
    seed=1,
    env_steps=1_000,
    wall_s=2.0,
    env_steps_per_s=500.0,
    evaluation=None,
    env_steps_to_threshold=None,
    learn_wall_s_to_threshold=None,
    policy_version=7,
    staleness_mean=1.5,
    samples_per_insert=2.0,
    stopped="total_steps",
)


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        ("", "install it with: pip install 'penstock[box2d]'"),
        ("another", "install it with: pip install 'penstock[box2d]'"),
        ("image", "add it to the image: docker build -f Dockerfile.actor --build-arg PACKAGES='gymnasium[box2d]' ."),
        (
            "compose",
            "add it to the image: set PENSTOCK_PACKAGES=gymnasium[box2d] in .env, then docker compose build and docker"
            " compose up -d",
        ),
    ],
)
def test_a_missing_package_has_the_remedy_of_the_installation(
    kind: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(INSTALLATION, kind)
    assert str(lacking("LunarLander-v3", "Box2D")) == f"LunarLander-v3 needs Box2D; {remedy}"


@pytest.mark.parametrize("kind", ["image", "compose"])
def test_in_containers_a_module_is_mounted(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(INSTALLATION, kind)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("import no_such_package\n")
    for place, remedy in (
        ("no_such_module", f"mount its file into {tmp_path} of the containers, or add its package to the image"),
        ("mine", "add it to the image: "),
    ):
        with pytest.raises(ConfigurationError, match=f"; {re.escape(remedy)}"):
            import_module(place)


def test_in_containers_no_message_about_a_package_names_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INSTALLATION, "compose")
    for module in (*EXTRA_OF, "no_such_module"):
        text = str(lacking("it", module))
        assert "pip" not in text and "PENSTOCK_PACKAGES=" in text and "'" not in text, text


def test_a_run_is_resumed_as_it_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(INSTALLATION, raising=False)
    assert command_to_resume("runs/blue").endswith("train --resume runs/blue")
    monkeypatch.setenv(INSTALLATION, "image")
    assert command_to_resume("runs/blue") == "a new start of its services"
    monkeypatch.setenv(INSTALLATION, "compose")
    monkeypatch.setenv("PENSTOCK__RUN__DIR", "/var/lib/penstock/runs/blue")
    assert command_to_resume("/var/lib/penstock/runs/blue") == "docker compose up -d"
    green = "PENSTOCK_RUN=green docker compose up -d"
    assert command_to_resume("/var/lib/penstock/runs/green") == green
    longer = command_to_resume("/var/lib/penstock/runs/green", settings={"run.total_steps": "6000"})
    assert longer == f"PENSTOCK__RUN__TOTAL_STEPS=6000 {green}"
    assert installation.how_to_resume("--resume") == "docker compose up -d"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Exception, match="start one with docker compose up -d"):
        newest_run(lambda folder: True, "a checkpoint")


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        ("", "--total-steps"),
        ("image", "PENSTOCK__RUN__TOTAL_STEPS"),
        ("compose", "PENSTOCK__RUN__TOTAL_STEPS in .env"),
    ],
)
def test_a_finished_run_names_the_limit_as_its_user_sets_it(
    kind: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(INSTALLATION, kind)
    SUMMARY.write(tmp_path / "summary.json")
    run = build({"run": {"total_steps": SUMMARY.env_steps}}).run
    assert nothing_left(tmp_path / "summary.json", run).endswith(f"; raise {option} to continue")


def test_an_expired_certificate_has_the_remedy_of_the_installation() -> None:
    """The texts are made once, when a process begins."""
    shown = """
from penstock.process.failed_handshakes import reason_of
from penstock.rpc.tls import explained
print(explained("failed to connect: certificate has expired", certified=True))
print(reason_of("certificate has expired")[1])
"""
    for kind, remedy in (
        ("", "renew it with penstock certificates RUN --renew"),
        (
            "compose",
            "renew it with docker compose run --rm certificates certificates /var/lib/penstock --renew; docker compose"
            " logs renewal shows why the daily renewal failed",
        ),
    ):
        said = subprocess.run(
            [sys.executable, "-c", shown], env={**os.environ, INSTALLATION: kind}, capture_output=True, text=True
        )
        assert [line.endswith(remedy) for line in said.stdout.splitlines()] == [True, True], said


def test_a_folder_with_a_run_is_resumed_as_the_installation_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.toml").touch()
    monkeypatch.setenv(INSTALLATION, "compose")
    monkeypatch.setenv("PENSTOCK__RUN__DIR", str(tmp_path))
    with pytest.raises(ConfigurationError, match="resume it with docker compose up -d, or choose another --run-dir"):
        _check_folder(RunFolder(tmp_path), resume=False)
    arguments = ["--resume", str(tmp_path), "--preset=cartpole"]
    with pytest.raises(ConfigurationError, match="resume the run with docker compose up -d, with changed settings in"):
        parse("penstock train", "", arguments, trains=True)
