"""Where a result comes from: the machine, the commit and the versions, for the files that benchmarks write."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
PACKAGES = ("penstock", "torch", "numpy", "numba", "grpcio", "gymnasium")


def provenance() -> dict[str, object]:
    """Returns the machine (processor, cores, memory), the commit, the versions and the time, for a result file."""
    return {
        "machine": {
            "cpu": cpu_model(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
            "system": f"{platform.system()} {platform.release()}",
        },
        "commit": commit(),
        "versions": {"python": platform.python_version(), **versions(PACKAGES)},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def cpu_model(listing: Path = Path("/proc/cpuinfo")) -> str:
    """Returns the name of the processor."""
    try:
        lines = listing.read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def commit(folder: Path = ROOT) -> str:
    """Returns the commit of a checkout, with `+changes` if files differ from it; `unknown` outside of a checkout."""
    try:
        found = _git(folder, "rev-parse", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{found}+changes" if changed else found


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Returns the versions of those packages that are installed."""
    found = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()
