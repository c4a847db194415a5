"""A wall clock that can be set, of the processes that are started with it; their monotonic clock goes on.

A small library is compiled for it (`wall_clock.c`). With Debian 12's libfaketime, `time.sleep` of Python 3.11 fails.
"""

import shutil
import struct
import subprocess
import sys
from pathlib import Path

import psutil

HOUR_S = 3600
_SOURCE = Path(__file__).with_name("wall_clock.c")


def unavailable() -> str:
    """Why there can be none here; empty: there can."""
    if sys.platform != "linux":
        return "wall clocks are set with LD_PRELOAD, which only Linux has"
    if shutil.which("gcc") is None or not Path("/usr/include/dlfcn.h").exists():
        return "needs gcc and libc6-dev, to compile a library that sets the wall clock"
    return ""


def library(folder: Path) -> Path:
    """Compiles the library into this folder."""
    compiled = folder / "wall_clock.so"
    subprocess.run(["gcc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", compiled, _SOURCE], check=True)
    return compiled


class WallClock:
    """The wall clock of the processes that have its variables, which begins right."""

    def __init__(self, library: Path, file: Path) -> None:
        """Args:
        library: From `library`.
        file: For how wrong the clock is; made here.
        """
        self._file = file
        self.variables = {"LD_PRELOAD": str(library), "WALL_CLOCK_OFFSET": str(file)}
        self.is_wrong_by(0)

    def is_wrong_by(self, seconds: int) -> None:
        """Sets it to the right time and so many seconds, at once."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("q", seconds))

    def is_of(self, process: psutil.Process) -> bool:
        """Whether this process has this clock."""
        return any(mapped.path == str(self._file) for mapped in process.memory_maps())
