"""Where numba keeps the code that it has compiled.

An image brings its code compiled, in NUMBA_CACHE_DIR; but numba also wants to write there, and the root of a container
may be read-only. numba reads the variable when it is first imported, which all do through this package.
"""

import os
import shutil
import tempfile
from pathlib import Path

_VARIABLE = "NUMBA_CACHE_DIR"


def make_writable() -> None:
    """Has numba use a copy of the folder, if nothing can be written there."""
    folder = os.environ.get(_VARIABLE)
    if not folder or _can_write(Path(folder)):
        return
    copy = tempfile.mkdtemp(prefix="penstock-compiled-")
    if Path(folder).is_dir():
        # With the times of the files, by which numba knows what they were compiled from.
        shutil.copytree(folder, copy, dirs_exist_ok=True)
    os.environ[_VARIABLE] = copy


def _can_write(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
