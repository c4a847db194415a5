"""Findings of `penstock doctor` on different machines."""

import os
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from penstock.cli.commands import doctor
from penstock.cli.gpu import describe_gpu
from penstock.config import build
from penstock.errors import ConfigurationError
from penstock.machine.installation import INSTALLATION
from penstock.replay.store.ring_store import RingStore
from tests.support.machine.network_mounts import mounted_over_fuse
from tests.support.services.programs import program


def test_this_machine_has_the_locked_package_versions() -> None:
    finding = doctor.check_versions()
    assert finding.fit, finding.detail
    assert f"torch {torch.__version__.partition('+')[0]}" in finding.detail


def test_a_package_of_the_wrong_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "importlib.metadata.requires", lambda name: ["numpy>=99", "nothing-like-it", "torch; extra=='x'"]
    )
    finding = doctor.check_versions()
    assert not finding.fit
    assert "installed, but >=99 is required; nothing-like-it is missing" in finding.detail


def test_a_store_that_is_too_large_is_refused_for_memory_and_disk() -> None:
    config = build({"replay": {"capacity_bytes": 2**60}})
    for finding in (doctor.check_memory(config), doctor.check_disk(config)):
        assert finding.fit is False
        assert "1073741824.0 GiB needed" in finding.detail or "needed for replay" in finding.detail
        assert "lower replay.capacity_bytes" in finding.detail


def test_a_missing_folder_is_checked_by_its_nearest_existing_parent(tmp_path: Path) -> None:
    finding = doctor.check_disk(build({"replay": {"folder": str(tmp_path / "a" / "b")}}))
    assert finding.fit
    assert f"in {tmp_path}," in finding.detail


def test_space_that_the_store_already_uses_is_not_required_again(tmp_path: Path) -> None:
    config = build({"replay": {"folder": str(tmp_path), "capacity_bytes": 2**26}})
    assert "0.1 GiB needed for the store" in doctor.check_disk(config).detail
    RingStore(tmp_path, 2**26)
    assert "0.0 GiB needed for the store" in doctor.check_disk(config).detail


def test_both_configured_folders_are_checked(tmp_path: Path) -> None:
    store, run = tmp_path / "store", tmp_path / "run"
    store.mkdir()
    run.mkdir()
    finding = doctor.check_disk(build({"replay": {"folder": str(store)}, "run": {"dir": str(run)}}))
    assert finding.fit
    assert f"in {store}," in finding.detail and finding.detail.endswith(f"in {run}")


def test_a_run_on_a_network_file_system_needs_a_local_disk_for_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.delenv("SLURM_TMPDIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(scratch))
    for shared in mounted_over_fuse(tmp_path / "real", tmp_path / "shared"):
        config = build({"run": {"dir": str(shared / "run")}, "replay": {"capacity_bytes": 2**26}})
        finding = doctor.check_disk(config)
        assert finding.fit
        assert f"in {scratch}, 0.1 GiB needed for the store" in finding.detail
        assert f"{shared / 'run'} is on a network file system (fuse), so its replay store is in" in finding.detail
        finding = doctor.check_disk(config.changed({"replay": {"folder": str(shared / "store")}}))
        assert finding.fit is False
        assert finding.detail.startswith(f"replay.folder {shared / 'store'} is on a network file system (fuse)")


def test_a_folder_of_another_user_is_distinguished_from_a_read_only_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without this, root could write.
    monkeypatch.setattr("os.access", lambda path, mode: False)
    config = build({"run": {"dir": str(tmp_path / "run")}})
    finding = doctor.check_disk(config)
    assert finding.fit is False
    assert finding.detail.startswith(f"{tmp_path} is not writable by user {os.geteuid()}; ")
    monkeypatch.setattr("os.statvfs", lambda path: SimpleNamespace(f_flag=os.ST_RDONLY))
    finding = doctor.check_disk(config)
    assert finding.detail.startswith(f"{tmp_path} is read-only; mount a volume on it (docker run -v NAME:{tmp_path})")


def test_in_a_container_of_compose_a_volume_of_another_service_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(INSTALLATION, "compose")
    monkeypatch.setattr("os.access", lambda path, mode: False)
    config = build({"run": {"dir": str(tmp_path / "run")}, "replay": {"capacity_bytes": 2**26}})
    found = os.statvfs(tmp_path)
    assert doctor.check_disk(config).fit is False
    read_only = SimpleNamespace(f_flag=os.ST_RDONLY, f_frsize=found.f_frsize, f_blocks=found.f_blocks)
    read_only.f_bavail = read_only.f_bfree = found.f_bavail
    monkeypatch.setattr("os.statvfs", lambda path: read_only)
    finding = doctor.check_disk(config)
    assert finding.fit
    assert finding.detail.endswith("; read-only for this service, so another one writes run.dir")
    read_only.f_bavail = 0
    assert doctor.check_disk(config).fit is False


def test_a_full_folder_of_runs_is_refused_though_the_store_is_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, usage = tmp_path / "full", shutil.disk_usage(tmp_path)
    full.mkdir()
    monkeypatch.setattr(
        "shutil.disk_usage", lambda path: usage._replace(free=2**20) if full in [path, *Path(path).parents] else usage
    )
    run, store = {"dir": str(full / "run")}, {"folder": str(tmp_path / "store"), "capacity_bytes": 2**26}
    finding = doctor.check_disk(build({"run": run, "replay": store}))
    assert finding.fit is False
    assert finding.detail == (
        f"0.0 GiB free in {full}, 0.1 GiB needed for checkpoints and records; free some, or choose another run.dir"
    )


@pytest.mark.parametrize(
    ("line", "refusal"),
    [
        ("# PENSTOCK__PPO__EPOCS=4", ""),
        ("PENSTOCK_ACTORS=4", ""),
        ("OTHER=1", ""),
        ("PENSTOCK__PPO__EPOCHS=4", ""),
        ("PENSTOCK__PPO__EPOCS=4", ".env: PENSTOCK__PPO__EPOCS is not a setting; write PENSTOCK__PPO__EPOCHS"),
        ("export PENSTOCK__PPO__EPOCS=4", ".env: PENSTOCK__PPO__EPOCS is not a setting; write PENSTOCK__PPO__EPOCHS"),
        ("PENSTOCK_PRESETT=pong", "the variable PENSTOCK_PRESETT is not a setting; "),
        (
            "PENSTOCK__ENVIRONMENT__KWARGS__GRAVITY=1",
            ".env: Compose does not pass on PENSTOCK__ENVIRONMENT__KWARGS__GRAVITY; set the whole table, as JSON in one"
            ' line: PENSTOCK__ENVIRONMENT__KWARGS={"gravity": ...}',
        ),
    ],
)
def test_a_line_of_compose_without_effect_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, refusal: str
) -> None:
    # What Compose passes on.
    monkeypatch.setenv("PENSTOCK__PPO__EPOCHS", "4")
    file = tmp_path / ".env"
    file.write_text(f"A=b\n{line}\n")
    check = ["--settings-only", f"--env-file={file}"]
    if refusal:
        with pytest.raises(ConfigurationError) as refused:
            doctor.command(check)
        assert str(refused.value).startswith(refusal)
    else:
        assert doctor.command(check) == 0


def test_a_file_of_compose_that_is_missing_or_unreadable_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / ".env"
    assert (doctor.command(["--settings-only", f"--env-file={file}"]), capsys.readouterr().out) == (0, "")
    file.write_text("PENSTOCK__PPO__EPOCS=4\n")
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert doctor.command(["--settings-only", f"--env-file={file}"]) == 0
    assert capsys.readouterr().out.startswith(".env is not checked for misspelt names, ")


def test_in_a_container_of_compose_the_gpu_is_the_learners_and_docker_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(INSTALLATION, "compose")
    monkeypatch.setenv("PATH", "")
    config = build({"learner": {"device": "cuda"}})
    if torch.version.cuda is None:
        finding = doctor.check_gpu(config)
        assert finding.fit is None
        assert finding.detail.endswith("docker compose run --rm learner doctor")
    assert "Docker" not in {finding.subject for finding in doctor.examine(config)}


def test_a_system_without_linux_files_and_affinities_is_checked_where_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("os.sched_getaffinity")
    assert doctor.check_processors(build({"train": {"actors": 1}})).fit
    for finding in (doctor.check_memory(build({}), tmp_path / "meminfo"), doctor.check_shared_memory(tmp_path / "shm")):
        assert finding.fit is None
        assert finding.detail.startswith(f"unknown, because {tmp_path}")


def test_shared_memory_that_is_too_small_is_reported_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=2**20))
    finding = doctor.check_shared_memory(tmp_path)
    assert finding.fit is False
    assert finding.detail.endswith("increase it to at least 64 MiB (docker run --shm-size)")


def test_more_than_two_actors_per_core_are_too_many() -> None:
    assert doctor.check_processors(build({"train": {"actors": 1}})).fit
    assert doctor.check_processors(build({"train": {"actors": "auto"}})).fit
    finding = doctor.check_processors(build({"train": {"actors": 200}, "learner": {"max_actors": 256}}))
    assert finding.fit is False


def test_a_port_in_use_is_named_with_its_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        finding = doctor.check_ports(build({"learner": {"listen": f"127.0.0.1:{port}"}}))
    assert finding.fit is False
    assert finding.detail.startswith(f"127.0.0.1:{port} (learner.listen) in use; stop the servers on these ports")


def test_the_port_of_the_metrics_is_checked_on_their_own_host() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        settings = {"replay": {"listen": "0.0.0.0:7431", "metrics_port": port}, "security": {"insecure": True}}
        finding = doctor.check_ports(build({**settings, "telemetry": {"metrics_host": "127.0.0.1"}}))
    assert finding.fit is False
    assert f"127.0.0.1:{port} (replay.metrics_port) in use" in finding.detail


def test_a_host_of_the_metrics_that_others_can_reach_needs_the_users_consent() -> None:
    finding = doctor.check_ports(build({"telemetry": {"metrics_host": "0.0.0.0"}}))
    assert finding.fit is False
    assert finding.detail.startswith("telemetry.metrics_host 0.0.0.0 can be reached from other hosts")


def test_a_port_at_the_address_of_another_machine_is_not_free() -> None:
    # An address reserved for documentation (RFC 5737).
    finding = doctor.check_ports(build({"learner": {"listen": "192.0.2.1:7432"}, "security": {"insecure": True}}))
    assert finding.fit is False
    assert "192.0.2.1:7432 (learner.listen) cannot assign requested address" in finding.detail


@pytest.fixture
def cuda_build(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Replaces the functions of torch so that it appears to be a CUDA build. The `error` of the result is raised."""
    monkeypatch.setattr("torch.version.cuda", "12.8")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda index: "NVIDIA A1")
    driver = SimpleNamespace(error=None)

    def init() -> None:
        if driver.error:
            raise RuntimeError(driver.error)

    monkeypatch.setattr("torch.cuda.init", init)
    return driver


def test_a_gpu_that_torch_can_use_is_shown(commands: Path, cuda_build: SimpleNamespace) -> None:
    assert describe_gpu() == (True, "NVIDIA A1; CUDA 12.8")


def test_a_driver_that_is_too_old_is_reported_in_one_line(commands: Path, cuda_build: SimpleNamespace) -> None:
    program(commands, "nvidia-smi", "echo 'NVIDIA A1, 450.80'")
    cuda_build.error = "The NVIDIA driver on your system is too old (found version 11000). Please update\nyour driver"
    fit, detail = describe_gpu()
    assert fit is False
    assert detail.startswith("NVIDIA A1, 450.80 by nvidia-smi, but torch's CUDA 12.8 can't use it: The NVIDIA driver")
    assert detail.endswith("is too old (found version 11000); update the driver")


def test_a_broken_driver_is_reported_with_its_own_message(commands: Path, cuda_build: SimpleNamespace) -> None:
    program(commands, "nvidia-smi", "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    fit, detail = describe_gpu()
    assert fit is False
    assert detail.startswith(
        "Failed to initialize NVML: Driver/library version mismatch by nvidia-smi; install NVIDIA's"
    )


def test_a_gpu_with_a_torch_build_without_cuda_is_a_fault(commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.version.cuda", None)
    assert describe_gpu()[0] is None
    program(commands, "nvidia-smi", "echo 'NVIDIA A1, 570.1'")
    fit, detail = describe_gpu()
    assert fit is False
    assert "install a CUDA build" in detail


def test_a_configured_gpu_that_is_missing_is_a_fault(commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.version.cuda", None)
    assert doctor.check_gpu(build({})).fit is None
    assert doctor.check_gpu(build({"learner": {"device": "cuda:0"}})).fit is False


def test_a_system_that_was_not_tried_is_named() -> None:
    assert doctor.check_system("Linux").fit
    finding = doctor.check_system("Darwin")
    assert finding.fit is None and finding.detail.startswith("Darwin ") and "not tried" in finding.detail


def test_every_finding_is_one_line_in_a_narrow_terminal(
    commands: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    doctor.command([])
    lines = capsys.readouterr().out.splitlines()
    subjects = [
        "system",
        "versions",
        "processors",
        "memory",
        "disk",
        "shared memory",
        "ports",
        "GPU",
        "environment",
        "Docker",
    ]
    assert [line[4:22].strip() for line in lines] == subjects


def test_the_environment_is_created_and_stepped() -> None:
    finding = doctor.check_environments(build({"environment": {"id": "CartPole-v1"}}))
    assert finding.fit and "CartPole-v1 was created, reset and stepped" in finding.detail
    finding = doctor.check_environments(build({"environment": {"id": "Nope-v0"}}))
    assert finding.fit is False and "can't make the environment 'Nope-v0'" in finding.detail


def test_the_command_checks_the_environment_that_would_be_trained(
    commands: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert doctor.command(["--env-id=FrozenLake-v1", "--policy.encoders", "observation=board"]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line[4:].startswith("environment")]
    assert line.startswith("no") and "board needs two or three dimensions" in line
    doctor.command(["Pendulum-v1"])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line[4:].startswith("environment")]
    assert line.startswith("ok") and "Pendulum-v1 was created" in line


def test_an_address_that_a_service_would_refuse_is_reported() -> None:
    finding = doctor.check_ports(build({"learner": {"listen": "0.0.0.0:7432"}}))
    assert finding.fit is False
    assert "security.insecure" in finding.detail
