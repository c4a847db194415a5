"""The virtual environment of PufferLib 3.0.0, which needs more than `pip install`.

PufferLib is on PyPI as source. Its setup.py builds games with libraries from elsewhere unless NO_OCEAN is set, and
fails if it is set, because it then uses a name that it has not defined. So the source is downloaded, the name is added,
and the rest is built: the kernel that computes advantages, in C++. It takes a compiler and some minutes.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.peers.environment import ENVIRONMENTS, is_current, made, mark_current

_HERE = Path(__file__).parent
_NAME = "pufferlib"
_SOURCE = "pufferlib==3.0.0"
_LATER = ("gym==0.23.1", "gym-notices==0.1.0")
"""Packages that it imports, and whose own requirements contradict the others."""


def pufferlib_python() -> Path:
    """Returns the interpreter of PufferLib's environment, `build/peers/pufferlib`, which is made if necessary.

    Raises `subprocess.CalledProcessError` if it could not be made; pip prints the cause on stderr. Raises
    `FileNotFoundError` without its source.
    """
    python = ENVIRONMENTS / _NAME / "bin" / "python"
    if is_current(_NAME):
        return python
    made(_NAME)
    pip: list[str | Path] = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "-r", _HERE / f"{_NAME}.txt"], check=True, stdout=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="pufferlib-") as folder:
        subprocess.run(
            [*pip, "install", "--no-build-isolation", "--no-deps", _source(pip, Path(folder))],
            check=True,
            stdout=sys.stderr,
            env={**os.environ, "NO_OCEAN": "1", "MAX_JOBS": "1"},
        )
    subprocess.run([*pip, "install", "--no-deps", *_LATER], check=True, stdout=sys.stderr)
    mark_current(_NAME)
    return python


def _source(pip: list[str | Path], folder: Path) -> Path:
    """Downloads the source and completes its setup.py. Raises `FileNotFoundError` if it could not be downloaded."""
    # Fails after it has unpacked the source.
    subprocess.run(
        [*pip, "download", "--no-deps", "--no-build-isolation", "--no-clean", _SOURCE],
        check=False,
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "NO_OCEAN": "1", "TMPDIR": str(folder)},
    )
    setup = next(folder.glob("pip-download-*/pufferlib_*/setup.py"), None)
    if setup is None:
        raise FileNotFoundError(f"pip could not download the source of {_SOURCE}; check the network and the index")
    setup.write_text(completed(setup.read_text()))
    return setup.parent


def completed(program: str) -> str:
    """Returns PufferLib's setup.py with the missing name, and without CUDA, which a compiler in PATH would turn on."""
    before, marker, after = program.rpartition("if not NO_OCEAN:")
    return f"{before}c_extension_paths = []\n{marker}{after}".replace('if shutil.which("nvcc"):', "if False:")
