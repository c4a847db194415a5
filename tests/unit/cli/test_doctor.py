"""What `penstock doctor` says of machines of all kinds."""

import json
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from penstock.apps.gpu import describe_gpu
from penstock.cli import doctor
from penstock.cli.doctor import Finding
from penstock.config import build

ENGINE = {"ServerVersion": "27.1"}


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose programs are the only ones there are."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def docker(folder: Path, info: dict[str, object], compose: str = "2.30.1") -> list[Finding]:
    program(folder, "docker", f"case $1 in info) echo '{json.dumps(info)}';; *) echo {compose};; esac")
    return list(doctor.check_docker())


def test_this_machine_has_what_penstock_was_locked_with() -> None:
    finding = doctor.check_versions()
    assert finding.fit, finding.says
    assert f"torch {torch.__version__.partition('+')[0]}" in finding.says


def test_a_package_of_the_wrong_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "importlib.metadata.requires", lambda name: ["numpy>=99", "nothing-like-it", "torch; extra=='x'"]
    )
    finding = doctor.check_versions()
    assert not finding.fit
    assert "where >=99 is asked for; nothing-like-it is missing" in finding.says


def test_a_store_that_fits_nowhere_is_refused_for_memory_and_disk() -> None:
    config = build({"replay": {"capacity_bytes": 2**60}})
    for finding in (doctor.check_memory(config), doctor.check_disk(config)):
        assert finding.fit is False
        assert "1073741824.0 GiB needed" in finding.says or "needed for replay" in finding.says
        assert "lower replay.capacity_bytes" in finding.says


def test_a_folder_that_is_not_there_yet_is_judged_by_where_it_will_be(tmp_path: Path) -> None:
    finding = doctor.check_disk(build({"replay": {"folder": str(tmp_path / "a" / "b")}}))
    assert finding.fit
    assert f"in {tmp_path}," in finding.says


def test_more_actors_than_cores_can_carry_are_too_many() -> None:
    assert doctor.check_processors(build({"train": {"actors": 1}})).fit
    assert doctor.check_processors(build({"train": {"actors": "auto"}})).fit
    finding = doctor.check_processors(build({"train": {"actors": 200}, "learner": {"max_actors": 256}}))
    assert finding.fit is False


def test_a_port_in_use_is_named_with_its_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        finding = doctor.check_ports(build({"learner": {"listen": f"127.0.0.1:{port}"}}))
    assert finding.fit is False
    assert f"127.0.0.1:{port} (learner.listen)" in finding.says


def test_a_machine_without_docker_needs_none(commands: Path) -> None:
    assert [finding.fit for finding in doctor.check_docker()] == [None]


def test_an_engine_that_does_not_answer_is_told_why(commands: Path) -> None:
    (finding,) = docker(commands, {"ServerVersion": "", "ServerErrors": ["permission denied"]})
    assert finding.fit is None
    assert "(permission denied)" in finding.says


@pytest.mark.parametrize(
    ("info", "fit"),
    [
        (ENGINE, None),
        (ENGINE | {"Runtimes": {"runc": {}, "nvidia": {}}}, True),
        (ENGINE | {"DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=all"}]}, True),
    ],
    ids=["plain", "runtime", "cdi"],
)
def test_a_host_whose_containers_can_have_the_gpu_is_told_from_one_whose_can_not(
    commands: Path, info: dict[str, object], fit: bool | None
) -> None:
    findings = docker(commands, info)
    assert [finding.fit for finding in findings] == [True, True, fit]


@pytest.mark.parametrize(("version", "fit"), [("v2.24.0", True), ("2.9.1", False), ("", False)])
def test_a_compose_that_is_too_old_is_refused(commands: Path, version: str, fit: bool) -> None:
    assert docker(commands, ENGINE, version)[1].fit is fit


@pytest.fixture
def cuda_build(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A torch that is built for CUDA, as far as it is asked."""
    monkeypatch.setattr("torch.version.cuda", "12.8")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda index: "NVIDIA A1")
    given = SimpleNamespace(error=None)

    def init() -> None:
        if given.error:
            raise RuntimeError(given.error)

    monkeypatch.setattr("torch.cuda.init", init)
    return given


def test_a_gpu_that_torch_can_use_is_shown(commands: Path, cuda_build: SimpleNamespace) -> None:
    assert describe_gpu() == (True, "NVIDIA A1; CUDA 12.8")


def test_a_driver_that_is_too_old_is_told_in_one_line(commands: Path, cuda_build: SimpleNamespace) -> None:
    program(commands, "nvidia-smi", "echo 'NVIDIA A1, 450.80'")
    cuda_build.error = "The NVIDIA driver on your system is too old (found version 11000). Please update\nyour driver"
    fit, says = describe_gpu()
    assert fit is False
    assert says.startswith("NVIDIA A1, 450.80 by nvidia-smi, but torch's CUDA 12.8 can't use it: The NVIDIA driver")
    assert says.endswith("is too old (found version 11000); update the driver")


def test_a_gpu_beside_a_torch_without_cuda_is_in_the_way(commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.version.cuda", None)
    assert describe_gpu()[0] is None
    program(commands, "nvidia-smi", "echo 'NVIDIA A1, 570.1'")
    fit, says = describe_gpu()
    assert fit is False
    assert "install a CUDA build" in says


def test_a_gpu_that_is_asked_for_and_not_there_is_in_the_way(commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.version.cuda", None)
    assert doctor.check_gpu(build({})).fit is None
    assert doctor.check_gpu(build({"learner": {"device": "cuda:0"}})).fit is False
