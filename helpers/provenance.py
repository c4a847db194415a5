"""Provenance of a result: the machine, the commit and the versions of the packages that affect it."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("torch", "numpy", "numba", "grpcio", "gymnasium", "lz4")


def of_this_run() -> dict[str, object]:
    """Returns the provenance as fields of a result file."""
    root = Path(__file__).parents[1]
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "commit": commit.stdout.strip() or "unknown",
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
    }
