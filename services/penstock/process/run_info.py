"""The metric that names the run of a learner, so that dashboards can select a run and compare several."""

import os
import sys
from pathlib import Path

from penstock.telemetry import metrics

PRESET = "PENSTOCK_PRESET"
"""Variable that names the preset if --preset does not; docker-compose.yml reads it as well."""

COMMIT = "PENSTOCK_COMMIT"
"""Variable with the commit of the running code, where no file has it."""

COMMIT_FILE = Path(sys.prefix) / "commit"
"""File with the commit, which the build of an image writes. Variables of a container can't change it."""


def show_run(name: str, environment: str) -> None:
    """Sets the metric for a run with this name and environment. Preset and commit are empty if not known."""
    metrics.RUN_INFO.labels(name, environment, os.environ.get(PRESET, ""), commit()).set(1)


def commit(file: Path = COMMIT_FILE) -> str:
    """Returns the commit of the running code; empty if not known."""
    try:
        return file.read_text().strip()
    except OSError:
        return os.environ.get(COMMIT, "")
