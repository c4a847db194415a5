"""Findings of `penstock doctor` with and without Docker, Compose and the NVIDIA Container Toolkit."""

import json
import re
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from penstock.cli.containers import COMPOSE_FILE, PUBLISHED, Finding, check_containers
from tests.support.services.programs import program

ROOT = Path(__file__).parents[3]
ENGINE = {"ServerVersion": "27.1"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns an empty folder, and removes the variables of published ports."""
    for name, _ in PUBLISHED:
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "folder"
    folder.mkdir()
    return folder


def docker(
    commands: Path, folder: Path, info: Mapping[str, object], compose: str = "2.30.1", published: str = ""
) -> list[Finding]:
    answers = f"info) printf %s '{json.dumps(info)}';; ps) echo '{published}';; *) echo {compose};;"
    program(commands, "docker", f"case $1 in {answers} esac")
    return list(check_containers(folder))


def of(findings: list[Finding], subject: str) -> Finding:
    return next(finding for finding in findings if finding.subject == subject)


def test_a_machine_without_docker_needs_none(commands: Path, folder: Path) -> None:
    assert [finding.fit for finding in check_containers(folder)] == [None]


@pytest.mark.parametrize(
    ("reason", "detail"),
    [
        (
            "Cannot connect to the Docker daemon at unix:///var/run/docker.sock.\nIs the docker daemon running?",
            "the engine is not running; start it (Cannot connect to the Docker daemon at unix:///var/run/docker.sock.",
        ),
        (
            "permission denied while trying to connect",
            "this user has no access to the engine; add it to the group docker, and log in again (permission denied",
        ),
    ],
    ids=["stopped", "forbidden"],
)
def test_an_engine_without_access_is_reported_with_a_remedy(
    commands: Path, folder: Path, reason: str, detail: str
) -> None:
    (finding,) = docker(commands, folder, {"ServerVersion": "", "ServerErrors": [reason]})
    assert finding.fit is None
    assert finding.detail.startswith("`penstock train` does not need it; ") and "\n" not in finding.detail
    assert detail in finding.detail


@pytest.mark.parametrize(
    ("info", "fit"),
    [
        (ENGINE, None),
        (ENGINE | {"Runtimes": None, "DiscoveredDevices": None}, None),
        (ENGINE | {"Runtimes": {"runc": {}, "nvidia": {}}}, True),
        (ENGINE | {"DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=all"}]}, True),
        (ENGINE | {"Runtimes": {"runc": {"path": "/opt/nvidia/bin/runc"}}}, None),
        (ENGINE | {"DiscoveredDevices": [{"Source": "cdi", "ID": "example.com/not-nvidia=0"}]}, None),
    ],
    ids=["plain", "older", "runtime", "cdi", "path", "other"],
)
def test_hosts_whose_containers_can_use_the_gpu_are_recognised(
    commands: Path, folder: Path, info: Mapping[str, object], fit: bool | None
) -> None:
    findings = docker(commands, folder, info)
    assert [finding.fit for finding in findings] == [True, True, fit]


def test_a_toolkit_found_only_on_the_path_is_recognised(commands: Path, folder: Path) -> None:
    program(commands, "nvidia-container-runtime-hook", "")
    assert of(docker(commands, folder, ENGINE), "NVIDIA toolkit").fit


def test_a_missing_toolkit_on_a_host_with_a_gpu_is_reported_in_one_line(commands: Path, folder: Path) -> None:
    program(commands, "nvidia-smi", "echo 'NVIDIA A1, 570.1'")
    finding = of(docker(commands, folder, ENGINE), "NVIDIA toolkit")
    assert finding.fit is False
    assert "install nvidia-container-toolkit" in finding.detail and "\n" not in finding.detail


@pytest.mark.parametrize(("version", "fit"), [("v2.24.0", True), ("2.9.1", False), ("", False)])
def test_a_compose_version_that_is_too_old_is_refused(commands: Path, folder: Path, version: str, fit: bool) -> None:
    finding = of(docker(commands, folder, ENGINE, version), "Compose")
    assert finding.fit is fit
    assert fit or "install version 2.24 or later" in finding.detail


# Ports of the host


def test_the_checked_ports_are_the_published_ones() -> None:
    published = re.findall(r"\$\{(\w+):-([\d-]+)\}:\d+", (ROOT / COMPOSE_FILE).read_text())
    assert published == list(PUBLISHED)


def test_no_port_is_checked_for_the_compose_file_of_another_project(commands: Path, folder: Path) -> None:
    (folder / COMPOSE_FILE).write_text("services: {}\n")
    assert "host ports" not in [finding.subject for finding in docker(commands, folder, ENGINE)]


def ports(commands: Path, folder: Path, *, published: str = "", **given: object) -> Finding:
    (folder / COMPOSE_FILE).write_bytes((ROOT / COMPOSE_FILE).read_bytes())
    (folder / ".env").write_text("# ports\n" + "".join(f"{name}='{value}'\n" for name, value in given.items()))
    return of(docker(commands, folder, ENGINE, published=published), "host ports")


def test_a_published_port_in_use_is_named_with_its_variable(commands: Path, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        taken, also = (listening.getsockname()[1] for listening in (server, other))
        finding = ports(commands, folder, PROMETHEUS_PORT=taken, GRAFANA_PORT=also)
        assert finding.fit is False
        assert f"in use: {taken} (PROMETHEUS_PORT), {also} (GRAFANA_PORT); set PROMETHEUS_PORT and" in finding.detail
        other.close()
        assert ports(commands, folder, PROMETHEUS_PORT=also, GRAFANA_PORT=taken).fit is False
        other_finding = ports(commands, folder, published=f"127.0.0.1:{taken}->9090/tcp", PROMETHEUS_PORT=taken)
        assert f"{taken} (PROMETHEUS_PORT)" not in other_finding.detail


def test_a_range_of_ports_needs_one_that_is_free(commands: Path, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        assert ports(commands, folder, PROMETHEUS_PORT=f"{taken}-{taken}").fit is False
        assert ports(commands, folder, PROMETHEUS_PORT=f"{taken - 9}-{taken}").fit


@pytest.mark.parametrize("port", ["web", "70000", "-1", "9-", "65530-65536", "20-10"])
def test_a_value_that_is_not_a_port_is_reported(commands: Path, folder: Path, port: str) -> None:
    finding = ports(commands, folder, PROMETHEUS_PORT=port)
    assert (finding.fit, finding.detail) == (False, f"PROMETHEUS_PORT is '{port}'; set it to a port number in .env")


def test_a_comment_after_a_value_is_ignored(commands: Path, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
    (folder / COMPOSE_FILE).write_bytes((ROOT / COMPOSE_FILE).read_bytes())
    (folder / ".env").write_text(f"PROMETHEUS_PORT={taken} # mine\nGRAFANA_PORT={taken}\n")
    assert of(docker(commands, folder, ENGINE), "host ports").fit


def test_environment_variables_override_the_file(commands: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_PORT", "web")
    finding = ports(commands, folder, PROMETHEUS_PORT=19090)
    assert finding.fit is False
    assert finding.detail == "PROMETHEUS_PORT is 'web'; set it to a port number in .env"
