import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import ConfigurationError
from penstock.machine import file_systems
from penstock.machine.file_systems import (
    existing,
    free_bytes,
    is_of_network,
    kind_of,
    kinds_of_mounts,
    network_kind,
    scratch,
)
from tests.support.machine.disks import mounted
from tests.support.machine.network_mounts import mounted_over_fuse

MOUNTINFO = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
36 35 98:0 /mnt1 /mnt/a\\040b rw,noatime master:1 shared:7 - nfs4 server:/export - with - hyphens rw,vers=4.2
42 27 0:61 / /scratch rw,nosuid shared:9 propagate_from:2 - fuse.sshfs me@host:/ rw,user_id=1000
"""


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    yield from mounted_over_fuse(tmp_path / "real", tmp_path / "shared")


@pytest.mark.parametrize(
    "kind",
    ["nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "9p", "afs"]
    + ["fuse", "fuse.sshfs", "fuse.s3fs", "fuse.glusterfs", "fuse.ceph-fuse", "fuse.gcsfuse", "fuse.some-new-one"],
)
def test_kinds_of_network_file_systems_and_unknown_kinds_of_fuse_are_those_of_a_network(kind: str) -> None:
    assert is_of_network(kind)


@pytest.mark.parametrize(
    "kind",
    ["ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay", "virtiofs", "fuseblk", "fuse.fuse-overlayfs"]
    + ["a-new-kind", ""],
)
def test_disks_memory_and_roots_of_containers_are_local(kind: str) -> None:
    assert not is_of_network(kind)


def test_the_kind_of_each_mount_is_read_whatever_its_optional_fields() -> None:
    assert kinds_of_mounts(MOUNTINFO) == {22: "proc", 27: "ext4", 36: "nfs4", 42: "fuse.sshfs"}


def test_a_folder_has_the_kind_of_its_own_mount(tmp_path: Path) -> None:
    outside = subprocess.run(
        ["stat", "--file-system", "--format=%T", str(tmp_path)], capture_output=True, text=True, check=True
    ).stdout.strip()
    # stat(1) knows magic numbers, of which some kinds share one.
    assert kind_of(tmp_path) in {"ext2/ext3": ("ext2", "ext3", "ext4"), "overlayfs": ("overlay",)}.get(
        outside, (outside,)
    )
    assert kind_of(Path("/proc/self")) == "proc"
    for disk in mounted(tmp_path / "disk", "1m"):
        (disk / "inside").mkdir()
        (tmp_path / "link").symlink_to(disk / "inside")
        for folder in (disk, disk / "inside", disk / "new" / "ones", tmp_path / "link", tmp_path / "link" / "new"):
            assert kind_of(folder) == "tmpfs", folder
            assert network_kind(folder) == ""


def test_a_folder_that_fuse_serves_is_one_of_a_network(shared: Path) -> None:
    assert network_kind(shared) == network_kind(shared / "new" / "run") == kind_of(shared) == "fuse"
    assert network_kind(shared.parent) == ""


def test_a_system_that_names_no_mounts_has_local_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_systems, "_MOUNTS", tmp_path / "missing")
    assert kind_of(tmp_path) == network_kind(tmp_path) == ""


def test_the_place_of_a_new_folder_is_the_nearest_one_that_exists(tmp_path: Path) -> None:
    assert existing(tmp_path / "runs" / "new") == existing(tmp_path) == tmp_path
    assert free_bytes(tmp_path / "runs" / "new") == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.1)


def test_temporary_files_are_in_the_first_local_folder_of_the_job_the_user_and_the_system(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, mine = tmp_path / "job", tmp_path / "mine"
    monkeypatch.setenv("SLURM_TMPDIR", str(job))
    monkeypatch.setenv("TMPDIR", str(shared))
    monkeypatch.setattr(file_systems, "_SCRATCH_FOLDERS", (str(mine),))
    with pytest.raises(ConfigurationError, match=r"no folder for temporary files .*TMPDIR.*--replay\.folder$"):
        scratch()
    mine.mkdir()
    assert scratch() == mine
    job.mkdir()
    assert scratch() == job
