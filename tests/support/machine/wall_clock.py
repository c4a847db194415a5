"""An adjustable wall clock for child processes; their monotonic clock is unaffected.

A small library is compiled for it (`wall_clock.c`), because `time.sleep` of Python 3.11 fails with Debian 12's
libfaketime.
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
    """Returns the reason why this machine can't adjust clocks; empty if it can."""
    if sys.platform != "linux":
        return "adjusting wall clocks needs LD_PRELOAD of Linux"
    if shutil.which("gcc") is None or not Path("/usr/include/dlfcn.h").exists():
        return "adjusting wall clocks needs gcc and libc6-dev"
    return ""


def library(folder: Path) -> Path:
    """Compiles the library into this folder."""
    compiled = folder / "wall_clock.so"
    subprocess.run(["gcc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", compiled, _SOURCE], check=True)
    return compiled


class WallClock:
    """The wall clock of the processes that have its variables; correct at first."""

    def __init__(self, library: Path, file: Path) -> None:
        """Creates the clock.

        Args:
            library: Path from `library`.
            file: Path of the file for the clock's offset; created here.
        """
        self._file = file
        self.variables = {"LD_PRELOAD": str(library), "WALL_CLOCK_OFFSET": str(file)}
        self.set_offset(0)

    def set_offset(self, seconds: int) -> None:
        """Sets the clock to the correct time plus this number of seconds, at once."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("q", seconds))

    def is_of(self, process: psutil.Process) -> bool:
        """Returns whether a process uses this clock."""
        return any(mapped.path == str(self._file) for mapped in process.memory_maps())
