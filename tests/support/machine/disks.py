"""Small disks that tests fill and mount read-only. They need root; without it, tests are skipped."""

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


def mounted(path: Path, size: str) -> Iterator[Path]:
    yield from _mounted(path, "-t", "tmpfs", "-o", f"size={size}")


def mounted_without_sockets(path: Path) -> Iterator[Path]:
    """Yields a folder in which folders can be made and sockets can't: the kernel's file system for BPF objects."""
    yield from _mounted(path, "-t", "bpf")


def _mounted(path: Path, *options: str) -> Iterator[Path]:
    path.mkdir()
    mount = ["mount", *options, "penstock-test", str(path)]
    result = subprocess.run(mount, capture_output=True, text=True, check=False)
    if result.returncode:
        reason = result.stderr.partition("\n")[0].replace(str(path), path.name)
        pytest.skip(f"can't mount a small disk: {reason}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(disk: Path) -> None:
    """Uses all remaining space."""
    with (disk / "ballast").open("ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC


def make_full(disk: Path, broken: bool) -> None:
    if broken:
        fill(disk)
    else:
        (disk / "ballast").unlink(missing_ok=True)


def make_read_only(disk: Path, broken: bool) -> None:
    """Makes the disk read-only for files opened later; a remount would be refused while a file is open for writing."""
    if broken == bool(os.statvfs(disk).f_flag & os.ST_RDONLY):
        return
    if broken:
        subprocess.run(["mount", "--bind", str(disk), str(disk)], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", str(disk)], check=True)
    else:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
