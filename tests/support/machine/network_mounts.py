"""Folders on a file system that counts as one of a network: bindfs, by which a process serves the files of another.

They need root, FUSE and Debian's package bindfs; without them, tests are skipped.
"""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


def mounted_over_fuse(real: Path, shared: Path) -> Iterator[Path]:
    """Yields the new folder `shared`, in which a FUSE process shows the files of `real`."""
    if shutil.which("bindfs") is None:
        pytest.skip("bindfs is not installed (apt-get install bindfs)")
    for folder in (real, shared):
        folder.mkdir()
    result = subprocess.run(["bindfs", str(real), str(shared)], capture_output=True, text=True, check=False)
    if result.returncode:
        reason = result.stderr.partition("\n")[0].replace(str(shared), shared.name)
        pytest.skip(f"can't mount a folder by FUSE: {reason}")
    try:
        yield shared
    finally:
        subprocess.run(["umount", "--lazy", str(shared)], check=True)
