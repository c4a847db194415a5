"""Location of the caches of compiled code, which their processes execute, and names in them.

Numba's: an image contains compiled code in NUMBA_CACHE_DIR, where numba also needs to write. The root file system of a
container may be read-only. numba reads the variable when it is first imported, which is always after this package.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

_VARIABLE = "NUMBA_CACHE_DIR"
_OF_TORCH = "TORCHINDUCTOR_CACHE_DIR"

_Function = TypeVar("_Function", bound=Callable[..., Any])


def make_writable() -> None:
    """Points numba at a writable copy if its cache folder is read-only.

    A folder that does not exist and can't be made has no code to copy. numba then writes beside Penstock's modules, if
    it can: in a new folder, every process would compile for itself and leave the folder behind.
    """
    folder = os.environ.get(_VARIABLE)
    if not folder or _can_write(Path(folder)):
        return
    if not Path(folder).is_dir() and _can_write(Path(__file__).parent / "__pycache__"):
        del os.environ[_VARIABLE]
        return
    copy = tempfile.mkdtemp(prefix="penstock-compiled-")
    if Path(folder).is_dir():
        # Copies modification times too, because numba uses them to validate its cache.
        shutil.copytree(folder, copy, dirs_exist_ok=True)
    os.environ[_VARIABLE] = copy


def keep_private() -> None:
    """Chooses a folder that only this user can write for torch's compiled code, if the user has not chosen one.

    torch would take a folder in /tmp by its name, which any user of the machine can make first. Call it before torch
    compiles.
    """
    if os.environ.get(_OF_TORCH):
        return
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "penstock" / "compiled"
    if _can_write(folder) and folder.stat().st_uid == os.geteuid():
        folder.chmod(0o700)
        os.environ[_OF_TORCH] = str(folder)
    else:
        os.environ[_OF_TORCH] = tempfile.mkdtemp(prefix="penstock-compiled-")


def using(*modules: ModuleType) -> Callable[[_Function], _Function]:
    """Decorates a function that compiled functions of other modules are compiled into, below numba's decorator.

    numba compiles a cached function again only if its own file changes. The names of its cache files contain the
    function's qualified name, to which this adds a digest of the sources of these modules.
    """

    def named(function: _Function) -> _Function:
        function.__qualname__ += f"_{digest_of(modules)}"
        return function

    return named


def digest_of(modules: Iterable[ModuleType]) -> str:
    """Returns a digest of the sources of modules, 16 hexadecimal digits."""
    return hashlib.sha256(b"".join(Path(str(module.__file__)).read_bytes() for module in modules)).hexdigest()[:16]


def _can_write(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
