"""The words for errors of the operating system: the reason, the file system or limit, and a remedy that fits."""

import errno
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.machine.system_errors import disk_fault, exhaustion, in_words
from tests.support.machine.disks import fill, make_read_only, mounted
from tests.support.machine.timing import PATIENCE_S


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    yield from mounted(tmp_path / "disk", "1m,nr_inodes=20")


def error_of(code: int, path: Path | None = None) -> OSError:
    return OSError(code, os.strerror(code)) if path is None else OSError(code, os.strerror(code), str(path))


@pytest.mark.parametrize(
    ("code", "remedy", "of_place"),
    [
        (errno.ENOSPC, "free space there", True),
        (errno.EDQUOT, "remove files there, or have the quota raised", True),
        (errno.EROFS, "mount it writable", True),
        (errno.EIO, "see the kernel's log (dmesg)", True),
        (errno.EACCES, "change the owner or the mode", True),
        (errno.EMFILE, "raise it (ulimit -n)", False),
        (errno.ENFILE, "fs.file-max", False),
        (errno.ENOMEM, "memory", False),
        (errno.EAGAIN, "ulimit -u", False),
    ],
)
def test_the_remedy_fits_the_error_and_another_folder_is_only_advised_for_a_fault_of_the_folder(
    tmp_path: Path, code: int, remedy: str, of_place: bool
) -> None:
    words = in_words(error_of(code), tmp_path / "missing" / "file", "choose another --run-dir")
    assert words.startswith(os.strerror(code))
    assert remedy in words
    assert words.endswith(", or choose another --run-dir") == of_place
    assert "\n" not in words
    assert ("free space" in words) == (code == errno.ENOSPC)


def test_an_error_without_an_explanation_keeps_its_text_and_the_callers_remedy(tmp_path: Path) -> None:
    assert in_words(error_of(errno.ENOENT), tmp_path) == os.strerror(errno.ENOENT)
    assert in_words(error_of(errno.ENOENT), tmp_path, "name another") == f"{os.strerror(errno.ENOENT)}; name another"
    assert in_words(OSError("odd"), tmp_path) == "odd"


def test_a_full_disk_is_named_with_its_mount_and_its_free_bytes(disk: Path) -> None:
    assert disk_fault(disk) == ""
    fill(disk)
    folder = disk / "run" / "checkpoints"
    expected = f"No space left on device (the file system {disk} has 0 bytes free); free space there"
    assert disk_fault(folder) == expected
    assert in_words(error_of(errno.ENOSPC, folder)) == expected
    # A failed copy names its source.
    assert in_words(error_of(errno.ENOSPC, Path("/")), folder) == expected


def test_a_disk_without_inodes_is_told_from_a_full_one(disk: Path) -> None:
    with pytest.raises(OSError, match="No space") as refused:
        for number in range(20):
            (disk / str(number)).touch()
    for words in (disk_fault(disk), in_words(refused.value)):
        assert "no inodes for further files" in words
        assert words.endswith("; remove files there")
        assert " 0 bytes free" not in words


def test_a_read_only_disk_is_named(disk: Path) -> None:
    make_read_only(disk, True)
    try:
        with pytest.raises(OSError, match="Read-only") as refused:
            (disk / "file").touch()
        for words in (disk_fault(disk), in_words(refused.value)):
            assert words.startswith(f"Read-only file system (the file system {disk} has ")
            assert words.endswith("; mount it writable")
    finally:
        make_read_only(disk, False)


def test_errors_of_the_machine_are_told_from_errors_of_programs(tmp_path: Path) -> None:
    assert exhaustion(error_of(errno.EMFILE, tmp_path)).startswith(f"{tmp_path}: Too many open files")
    assert "memory" in exhaustion(MemoryError())
    assert "ulimit" in exhaustion(RuntimeError("can't start new thread"))
    for error in (RuntimeError("a fault"), FileNotFoundError(errno.ENOENT, "No such file"), ValueError("a value")):
        assert exhaustion(error) == ""


def test_a_command_that_runs_out_of_descriptors_ends_with_one_line(tmp_path: Path) -> None:
    train = [sys.executable, "-m", "penstock", "train", "--actors=8", "--env-id=CartPole-v1", f"--run-dir={tmp_path}/a"]
    ended = subprocess.run(
        ["sh", "-c", f"ulimit -n 30; exec {shlex.join(train)}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert "Too many open files (the limit is 30 per process); raise it (ulimit -n)" in line
    assert not (tmp_path / "a").exists()
