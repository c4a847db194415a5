"""CleanRL's programs, which are files of its repository; no current release of it is on PyPI."""

import os
import subprocess
from pathlib import Path

REPOSITORY = "https://github.com/vwxyzjn/cleanrl"
COMMIT = "fe8d8a03c41a7ef5b523e2e354bd01c363e786bb"
"""The newest commit of CleanRL when the benchmarks were written, of 20 April 2026."""
VARIABLE = "CLEANRL_REPOSITORY"
"""Environment variable with the URL or the path of another copy of the repository."""

_FOLDER = Path(__file__).parents[2] / "build" / "peers" / "cleanrl-source"


def programs(repository: str = "") -> Path:
    """Returns the folder of CleanRL's programs at `COMMIT`, in a clone in build/peers that is made once.

    Raises `subprocess.CalledProcessError` if the repository can't be cloned.
    """
    if not _FOLDER.exists():
        source = repository or os.environ.get(VARIABLE) or REPOSITORY
        subprocess.run(["git", "clone", "--quiet", source, _FOLDER], check=True)
    subprocess.run(["git", "-C", _FOLDER, "checkout", "--quiet", COMMIT], check=True)
    return _FOLDER / "cleanrl"
