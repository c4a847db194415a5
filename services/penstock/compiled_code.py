"""Location of numba's cache of compiled code.

An image contains compiled code in NUMBA_CACHE_DIR, where numba also needs to write. The root file system of a container
may be read-only. numba reads the variable when it is first imported, which is always after this package.
"""

import os
import shutil
import tempfile
from pathlib import Path

_VARIABLE = "NUMBA_CACHE_DIR"


def make_writable() -> None:
    """Points numba at a writable copy if its cache folder is read-only."""
    folder = os.environ.get(_VARIABLE)
    if not folder or _can_write(Path(folder)):
        return
    copy = tempfile.mkdtemp(prefix="penstock-compiled-")
    if Path(folder).is_dir():
        # Copies modification times too, because numba uses them to validate its cache.
        shutil.copytree(folder, copy, dirs_exist_ok=True)
    os.environ[_VARIABLE] = copy


def _can_write(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
