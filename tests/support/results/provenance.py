"""Provenance of a result: machine, commit, versions of the packages that affect it, date, and command."""

import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGES = ("torch", "numpy", "numba", "grpcio", "gymnasium", "lz4")


def of_this_run() -> dict[str, object]:
    """Returns the provenance as fields of a result file."""
    return {
        "machine": machine(),
        "commit": commit(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command(sys.orig_argv),
    }


def command(words: Sequence[str]) -> str:
    """Returns the command of a process without the folders of absolute paths, which are those of one machine."""
    return shlex.join(["python", *(re.sub(r"(^|=)/\S*/", r"\1", word) for word in words[1:])])


def machine() -> str:
    """Returns processor, cores, memory and system as text."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    system = f"{platform.system()} {platform.release()}"
    return f"{cpu_model()}, {platform.machine()}, {os.cpu_count()} cores, {memory_gib:.0f} GiB, {system}"


def cpu_model(listing: Path = Path("/proc/cpuinfo")) -> str:
    """Returns the name of the processor, or `unknown processor` where the system does not list it."""
    try:
        lines = listing.read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "unknown processor")


def commit(folder: Path = ROOT) -> str:
    """Returns the commit of a checkout, with `+changes` if files differ from it; `unknown` outside of a checkout.

    Result files may differ, because some programs write theirs after each part of their work.
    """
    try:
        found = _git(folder, "rev-parse", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!results")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{found}+changes" if changed else found


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()
